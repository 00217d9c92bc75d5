"""A request for a workload's plan, and a builder of plans from real sizes and durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from testbed.errors import did_you_mean
from testbed.spec import units
from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.plan import (
    COMPUTE,
    COMPUTING,
    EVERYBODY,
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Operation,
    Pause,
    RankPlan,
)
from testbed.workload.plans.validation import PlanProblem

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class WorkloadRequest:
    """A request for a plan.

    Attributes:
        buildings: The name of each rank's building; ranks are numbered from 0.
        dtype: Type of the sent elements, such as "float32".
        scale: Scale between real figures, which describe a workload, and emulated figures, which a plan has.
        seed: The scenario's seed, for random draws.
    """

    buildings: tuple[str, ...]
    dtype: str = "float32"
    scale: Scale = UNSCALED
    seed: int = 0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.buildings)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def by_building(self) -> dict[str, list[int]]:
        """Return the ranks of each building."""
        found: dict[str, list[int]] = {}
        for rank, building in enumerate(self.buildings):
            found.setdefault(building, []).append(rank)
        return found

    def seconds(self, duration: float | str) -> float:
        """Return emulated seconds for real ones, given as a number or as text such as "10 ms"; may raise ValueError."""
        real_s = units.parse_duration(duration) if isinstance(duration, str) else duration
        return self.scale.emulated_s(real_s)

    def elements(self, size: float | str, parts: int = 1) -> int:
        """Return emulated elements for real bytes, given as a number or text such as "64 MB"; at least one per part.

        The result is a multiple of `parts`. ValueError is raised for invalid text.
        """
        size_bytes = units.parse_size(size) if isinstance(size, str) else size
        return max(1, round(self.scale.emulated_bytes(size_bytes) / self.itemsize / parts)) * parts


class Mark(NamedTuple):
    """A handle of an operation, on which later operations of the same rank can depend: rank, and index in its plan."""

    rank: int
    number: int


After = Mark | Iterable[Mark]


class Options(TypedDict, total=False):
    """Options that messages and collectives share; the methods document the defaults.

    Attributes:
        name: Label in timelines and samples.
        after: Operations of this rank to wait for.
        stream: Stream on which operations run in order.
        kind: Category by which results are summed up.
        dscp: DSCP of the kind's traffic, 0 to 63; one for all operations of a kind.
    """

    name: str
    after: After
    stream: str
    kind: str
    dscp: int


class PlanBuilder:
    """A builder of every rank's plan, in the order in which operations are added.

    Operations of a rank on one stream run in order; streams run concurrently. A stream whose name begins with "queue"
    runs its operations in the order in which they become ready. `after` adds dependencies. Sizes and durations are
    real, as numbers of bytes and seconds or as text.
    """

    def __init__(self, request: WorkloadRequest) -> None:
        self.request = request
        self._ranks: list[list[Operation]] = [[] for _ in range(request.ranks)]
        self._groups: list[tuple[str, tuple[int, ...]]] = []
        self._tags: dict[tuple[int, int], int] = {}
        self._dscps: dict[str, int] = {}

    def compute(
        self,
        rank: int,
        duration: float | str,
        *,
        name: str = "compute",
        after: After = (),
        stream: str = COMPUTE,
        kind: str = "compute",
    ) -> Mark:
        """Add a computation; `kind`, one of COMPUTING, is the category under which results and figures list it."""
        if kind not in COMPUTING:
            raise PlanProblem(where=name, got=f"kind {kind}", expected=f"one of: {', '.join(COMPUTING)}")
        seconds = self.request.seconds(duration)
        return self._add(rank, Computing(name, stream, kind, self._before(rank, after), seconds))

    def pause(self, rank: int, duration: float | str, *, name: str = "pause", stream: str = "pause") -> Mark:
        """Add time that passes on a stream without occupying the rank."""
        return self._add(rank, Pause(name, stream, "pause", (), self.request.seconds(duration)))

    def message(
        self,
        source: int,
        target: int,
        size: float | str,
        **options: Unpack[Options],
    ) -> tuple[Mark, Mark]:
        """Add a message between two ranks, whose receive is posted at once.

        Args:
            source: Rank that sends.
            target: Rank that receives.
            size: Real bytes, as a number or as text.
            options: See `Options`. Only the sender waits for `after`. `stream` defaults to one for all messages of a
                pair in one direction, `kind` and `name` to "message".

        Returns:
            The handles of the send and of the receive, each for its own rank.
        """
        name, after, stream, kind = self._resolve("message", options)
        numel = self.request.elements(size)
        tag = self._tags[source, target] = self._tags.get((source, target), -1) + 1
        streams = stream or f"send {target}", stream or f"receive {source}"
        before = self._before(source, after)
        sends = Message(name, streams[0], kind, before, peer=target, numel=numel, tag=tag, sends=True)
        receives = Message(name, streams[1], kind, (), peer=source, numel=numel, tag=tag)
        return self._add(source, sends), self._add(target, receives)

    def group(self, name: str, members: Sequence[int] | None = None) -> int:
        """Add a group of ranks that run collectives together, by default all ranks; return its number.

        A rank can be in only one group of each name.
        """
        everybody = tuple(range(self.request.ranks))
        chosen = everybody if members is None else tuple(members)
        self._groups.append((EVERYBODY if chosen == everybody else name, chosen))
        return len(self._groups) - 1

    def members(self, group: int) -> tuple[int, ...]:
        """Return the ranks of a group."""
        return self._groups[group][1]

    def collective(
        self,
        group: int,
        collective: str,
        size: float | str,
        *,
        algorithm: str = "",
        **options: Unpack[Options],
    ) -> dict[int, Mark]:
        """Add a collective on every member of a group.

        Args:
            group: Number of the group.
            collective: Name of the collective.
            size: Real bytes of a rank's larger array.
            algorithm: Algorithm; by default the variant's for an all_reduce, and `auto` for others.
            options: See `Options`. Each member waits for the operations of `after` that are its own. `stream` defaults
                to one for all collectives of the group, `kind` and `name` to the collective's name.

        Returns:
            The handle of each member's part, by rank.
        """
        name, after, stream, kind = self._resolve(collective, options)
        members = self._groups[group][1]
        numel = self.request.elements(size, 1 if collective == "all_reduce" else len(members))
        if not algorithm and collective != "all_reduce":
            algorithm = "auto"
        marks = [after] if isinstance(after, Mark) else list(after)
        if others := {mark.rank for mark in marks} - set(members):
            raise PlanProblem(
                got=f"after an operation of rank {min(others)}", expected=f"of one of {members}"
            )
        return {
            rank: self._add(
                rank,
                GroupCollective(
                    name,
                    stream or f"group {group}",
                    kind,
                    self._before(rank, [mark for mark in marks if mark.rank == rank]),
                    group,
                    collective,
                    numel,
                    algorithm,
                ),
            )
            for rank in members
        }

    def plan(self) -> JobPlan:
        """Return the plan so far."""
        dscps = {kind: dscp for kind, dscp in self._dscps.items() if dscp}
        ranks: tuple[RankPlan, ...] = tuple(map(tuple, self._ranks))
        return JobPlan(ranks, tuple(self._groups), seed=self.request.seed, dscps=dscps)

    def _add(self, rank: int, operation: Operation) -> Mark:
        if not 0 <= rank < self.request.ranks:
            expected = f"0 to {self.request.ranks - 1}"
            raise PlanProblem(where=operation.name, got=f"rank {rank}", expected=expected)
        self._ranks[rank].append(operation)
        return Mark(rank, len(self._ranks[rank]) - 1)

    @staticmethod
    def _before(rank: int, after: After) -> tuple[int, ...]:
        marks = [after] if isinstance(after, Mark) else list(after)
        if wrong := [mark for mark in marks if mark.rank != rank]:
            expected = f"one of rank {rank}; what another rank did reaches it by a message or a collective"
            raise PlanProblem(got=f"after an operation of rank {wrong[0].rank}", expected=expected)
        return tuple(mark.number for mark in marks)

    def _resolve(self, usual: str, options: Options) -> tuple[str, After, str, str]:
        """Return name, after, stream and kind, and record the kind's DSCP; `usual` is the default of name and kind."""
        known = Options.__annotations__
        if wrong := [option for option in options if option not in known]:
            raise PlanProblem(where=usual, got=f"option {wrong[0]}", expected=did_you_mean(wrong[0], known))
        kind = options.get("kind") or usual
        self._record_dscp(kind, options.get("dscp", 0))
        return options.get("name") or usual, options.get("after", ()), options.get("stream", ""), kind

    def _record_dscp(self, kind: str, dscp: int) -> None:
        if self._dscps.setdefault(kind, dscp) != dscp:
            raise PlanProblem(
                where=kind, got=f"DSCPs {self._dscps[kind]} and {dscp}", expected="one DSCP per kind"
            )
