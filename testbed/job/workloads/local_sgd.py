"""Local SGD: buildings train on their own and put their weights together now and then, as DiLoCo does.

Also in parts that take turns, while training goes on, and in few bits, as Streaming DiLoCo does; and, with one inner
step, data-parallel training whose gradients cross buildings in few bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from testbed.config.units import parse_size
from testbed.job.workloads.base import WORKLOADS
from testbed.workload.plan import JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.plans.checking import PlanProblem

WHOLE_BITS = 32


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
    """DiLoCo (arXiv:2311.08105): gradients are reduced inside buildings, and once in `inner_steps` between all ranks.

    Args:
        request: What the plan is for.
        parameters: Bytes of gradients, and of the weights' difference.
        compute: Of an inner step.
        inner_steps: Between two exchanges of all; a step of the plan has so many, and one exchange.
        inner_algorithm: Of all-reduces inside buildings; that of all ranks goes by the variant's.
        outer_parts: The exchange is cut in so many, which begin at even distances (Streaming DiLoCo, arXiv:2501.18512).
        outer_overlap: Inner steps that go on while a part is exchanged; 0: the next one waits for it.
        outer_bits: Of a number in the exchange, of 32. What is cut short cannot be added up on its way: each rank sends
            its share of a building's to those in its place elsewhere, and inside what has come is gathered.
    """
    every = _check(inner_steps, outer_parts, outer_overlap, outer_bits)
    builder = PlanBuilder(request)
    buildings = list(request.by_building().values())
    inner = [builder.group("building", ranks) for ranks in buildings if len(ranks) > 1]
    whole_bytes = parse_size(parameters) if isinstance(parameters, str) else parameters
    outer = _Outer(builder, buildings, inner, whole_bytes / outer_parts, outer_bits)
    last: list[Mark] = []
    due: dict[int, dict[int, Mark]] = {}  # by the inner step that waits for it, by rank
    for number in range(inner_steps):
        if outer_overlap and number % every == 0:
            due[number + outer_overlap] = outer.exchange(number // every, last)
        came = due.pop(number, {})
        computed = [
            builder.compute(
                rank,
                compute,
                name=f"inner step {number}",
                after=[one for one in (*last, *came.values()) if one.rank == rank],
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
        if not outer_overlap and (number + 1) % every == 0:
            due[number + 1] = outer.exchange(number // every, last)
    return builder.plan()


def _check(inner_steps: int, parts: int, overlap: int, bits: int) -> int:
    """Inner steps from one part's exchange to the next one's. PlanProblem."""
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


class _Outer:
    """Exchanges between buildings. size_bytes: of a part."""

    def __init__(
        self,
        builder: PlanBuilder,
        buildings: list[list[int]],
        inner: list[int],
        size_bytes: float,
        bits: int,
    ) -> None:
        self._builder, self._inner = builder, inner
        self._size_bytes = size_bytes * bits / WHOLE_BITS
        self._buildings = len(buildings)
        self._everybody: int | None = None
        self._across: list[int] = []
        if self._buildings == 1:
            return
        if bits == WHOLE_BITS:
            self._everybody = builder.group("all")
            return
        if len({len(ranks) for ranks in buildings}) > 1:
            got = f"{bits} with buildings of {', '.join(str(len(ranks)) for ranks in buildings)} ranks"
            raise PlanProblem(where="outer_bits", got=got, expected="as many ranks in every building, or 32")
        self._across = [builder.group("across", ranks) for ranks in zip(*buildings, strict=True)]

    def exchange(self, part: int, after: Iterable[Mark]) -> dict[int, Mark]:
        """Of a part of the weights' differences; each rank's end of it."""
        marks, name = list(after), f"outer gradients {part}"
        if self._buildings == 1:
            return {}
        builder = self._builder
        if self._everybody is not None:
            return builder.collective(
                self._everybody, "all_reduce", self._size_bytes, name=name, after=marks, kind="outer"
            )
        come: dict[int, Mark] = {}
        for group in self._across:
            members = builder.members(group)
            own = [one for one in marks if one.rank in members]
            share = self._size_bytes * self._buildings / len(self._across)
            come |= builder.collective(group, "all_gather", share, name=name, after=own, kind="outer")
        for group in self._inner:
            own = [come[rank] for rank in builder.members(group)]
            whole = self._size_bytes * self._buildings
            come |= builder.collective(
                group, "all_gather", whole, name=f"{name}, inside", after=own, kind="outer"
            )
        return come
