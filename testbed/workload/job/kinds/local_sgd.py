"""Local SGD: buildings train independently and combine their weights once in several steps, as in DiLoCo.

Optionally the weights are exchanged in parts, one at a time, overlapped with training and with few bits, as in
Streaming DiLoCo. With one inner step, this is data-parallel training whose gradients cross buildings with few bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from testbed.spec.units import parse_size
from testbed.workload.job.kinds.base import WORKLOADS
from testbed.workload.local_sgd import WHOLE_BITS, OuterSchedule
from testbed.workload.plan import JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.plans.validation import PlanProblem


@WORKLOADS.register("local_sgd")
def local_sgd(
    request: WorkloadRequest,
    parameters: float | str = "1 GB",
    compute: float | str = "100 ms",
    inner_steps: int = 4,
    inner_algorithm: str = "ring",
    outer_parts: int = 1,
    outer_overlap: int = 0,
    outer_bits: int = WHOLE_BITS,
) -> JobPlan:
    """Plan DiLoCo (arXiv:2311.08105): reduce gradients inside buildings, and once in `inner_steps` over all ranks.

    Args:
        request: Request that the plan is for.
        parameters: Bytes of gradients, and of the weights' difference.
        compute: Compute time of an inner step.
        inner_steps: Inner steps between two full exchanges; a step of the plan has this many inner steps and one
            exchange.
        inner_algorithm: Algorithm of all-reduces inside buildings; all-reduces of all ranks use the variant's.
        outer_parts: Number of parts of the exchange, which start at even intervals (Streaming DiLoCo,
            arXiv:2501.18512).
        outer_overlap: Inner steps that run while a part is exchanged; with 0, the next step waits for the exchange.
        outer_bits: Bits per value in the exchange, out of 32. Widths other than 32 and 16 cannot be summed in transit:
            each rank sends its share of a building's values to its counterparts in other buildings, and the received
            values are gathered inside the building.
    """
    every = _check(inner_steps, outer_parts, outer_overlap, outer_bits)
    outer = OuterSchedule(every, outer_parts, outer_overlap, outer_bits)
    builder = PlanBuilder(request)
    buildings = list(request.by_building().values())
    inner = [builder.group("building", ranks) for ranks in buildings if len(ranks) > 1]
    whole_bytes = parse_size(parameters) if isinstance(parameters, str) else parameters
    exchanges = _Exchanges(builder, buildings, inner, whole_bytes, outer)
    last: list[Mark] = []
    turns = {turn.begins: turn for turn in outer.turns(inner_steps)}
    due: dict[int, dict[int, Mark]] = {}  # by inner step that waits for it, then by rank
    for number in range(inner_steps + 1):
        if number in turns:
            due[turns[number].due] = exchanges.begin(turns[number].part, last)
        if number == inner_steps:
            break
        arrived = due.pop(number, {})
        computed = [
            builder.compute(
                rank,
                compute,
                name=f"inner step {number}",
                after=[one for one in (*last, *arrived.values()) if one.rank == rank],
            )
            for rank in range(request.ranks)
        ]
        reduced: dict[int, Mark] = {}
        for group in inner:
            members = builder.members(group)
            after = [one for one in computed if one.rank in members]
            reduced |= builder.collective(
                group,
                "all_reduce",
                parameters,
                name=f"gradients {number}",
                after=after,
                algorithm=inner_algorithm,
            )
        last = [reduced.get(one.rank, one) for one in computed]
    return builder.plan()


def _check(inner_steps: int, parts: int, overlap: int, bits: int) -> int:
    """Return the inner steps from one part's exchange to the next one's; raise PlanProblem if options do not fit."""
    if parts < 1 or inner_steps % parts:
        raise PlanProblem(
            where="outer_parts", got=str(parts), expected=f"a divisor of {inner_steps}, as inner_steps"
        )
    every = inner_steps // parts
    if not 0 <= overlap <= every:
        expected = f"0 to {every}: inner_steps over outer_parts, from one part to the next"
        raise PlanProblem(where="outer_overlap", got=str(overlap), expected=expected)
    if not 1 <= bits <= WHOLE_BITS:
        raise PlanProblem(where="outer_bits", got=str(bits), expected=f"1 to {WHOLE_BITS}")
    return every


class _Exchanges:
    """Exchanges of parts between buildings; `whole_bytes` is the size of all parts at 32 bits."""

    def __init__(
        self,
        builder: PlanBuilder,
        buildings: list[list[int]],
        inner: list[int],
        whole_bytes: float,
        outer: OuterSchedule,
    ) -> None:
        self._builder = builder
        self._collective, self._size_bytes = outer.collective(whole_bytes, len(buildings))
        self._across: list[int] = []
        self._inner: list[int] = []
        if len(buildings) == 1:
            return
        if outer.is_summable:
            self._across = [builder.group("all")]
            return
        if len({len(ranks) for ranks in buildings}) > 1:
            got = f"{outer.bits} with buildings of {', '.join(str(len(ranks)) for ranks in buildings)} ranks"
            raise PlanProblem(
                where="outer_bits", got=got, expected="as many ranks in every building, or 32, or 16"
            )
        self._across = [builder.group("across", ranks) for ranks in zip(*buildings, strict=True)]
        self._inner = inner

    def begin(self, part: int, after: Iterable[Mark]) -> dict[int, Mark]:
        """Start the exchange of a part; return the handle of each rank's end."""
        marks, name, builder = list(after), f"outer gradients {part}", self._builder
        arrived: dict[int, Mark] = {}
        for group in self._across:
            members = builder.members(group)
            own = [one for one in marks if one.rank in members]
            share = self._size_bytes / len(self._across)
            arrived |= builder.collective(group, self._collective, share, name=name, after=own, kind="outer")
        for group in self._inner:
            own = [arrived[rank] for rank in builder.members(group)]
            arrived |= builder.collective(
                group, "all_gather", self._size_bytes, name=f"{name}, inside", after=own, kind="outer"
            )
        return arrived
