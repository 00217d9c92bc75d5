"""A request for a workload's plan, and a builder of plans in real figures: computing, messages and collectives with
dependencies.
"""

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

    pass


@dataclass(frozen=True)
class WorkloadRequest:
    """What a plan is for.

    Attributes:
        buildings: The name of each rank's building; ranks are numbered from 0.
        dtype: Of the elements that travel, such as "float32".
        scale: Between real figures, in which a workload is described, and those of the emulation, which a plan has.
        seed: The scenario's, for what is drawn at random.
    """

    buildings: tuple[str, ...]
    dtype: str = "float32"
    scale: Scale = UNSCALED
    seed: int = 0

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.buildings)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def by_building(self) -> dict[str, list[int]]:
        """The ranks in each building."""
        found: dict[str, list[int]] = {}
        for rank, building in enumerate(self.buildings):
            found.setdefault(building, []).append(rank)
        return found

    def seconds(self, duration: float | str) -> float:
        """Emulated seconds for real ones, as a number or as files have them ("10 ms"). ValueError."""
        real_s = units.parse_duration(duration) if isinstance(duration, str) else duration
        return self.scale.emulated_s(real_s)

    def elements(self, size: float | str, parts: int = 1) -> int:
        """Emulated elements for real bytes, as a number or as files have them ("64 MB"); at least one per part.

        parts: equal ones, by which the result can be divided. ValueError.
        """
        size_bytes = units.parse_size(size) if isinstance(size, str) else size
        return max(1, round(self.scale.emulated_bytes(size_bytes) / self.itemsize / parts)) * parts


class Mark(NamedTuple):
    """One operation of a rank, by its number in the rank's plan, for others of this rank to wait for."""

    rank: int
    number: int


After = Mark | Iterable[Mark]


class Options(TypedDict, total=False):
    """What messages and collectives may be given alike; what is left out is said where they are.

    name: in timelines and samples. after: operations of this rank to wait for. stream: on which they come one after
    the other. kind: by which figures are summed up. dscp: the kind's traffic class, 0 to 63, one for all of a kind.
    """

    name: str
    after: After
    stream: str
    kind: str
    dscp: int


class PlanBuilder:
    """Every rank's operations, in the order in which they are added.

    Operations of a rank that are on one stream come one after the other; streams go on side by side. One whose name
    begins with "queue" takes them in the order in which they can begin. `after` says what else an operation waits for.
    Sizes and durations are real ones, as numbers of bytes and seconds or as text.
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
        """Computing for so long; kind: one of COMPUTING, as which figures and drawings show it."""
        if kind not in COMPUTING:
            raise PlanProblem(where=name, got=f"kind {kind}", expected=f"one of: {', '.join(COMPUTING)}")
        seconds = self.request.seconds(duration)
        return self._add(rank, Computing(name, stream, kind, self._before(rank, after), seconds))

    def pause(self, rank: int, duration: float | str, *, name: str = "pause", stream: str = "pause") -> Mark:
        """Time that passes on a stream, whatever the rank does."""
        return self._add(rank, Pause(name, stream, "pause", (), self.request.seconds(duration)))

    def message(
        self,
        source: int,
        target: int,
        size: float | str,
        **options: Unpack[Options],
    ) -> tuple[Mark, Mark]:
        """From one rank to another, where its receive is posted at once. Returns (sent, received), of either rank.

        after: what the sender waits for. stream: by default all messages of a pair in one direction are on one. kind
        and name: by default "message". More on `Options`.
        """
        name, after, stream, kind = self._read("message", options)
        numel = self.request.elements(size)
        tag = self._tags[source, target] = self._tags.get((source, target), -1) + 1
        streams = stream or f"send {target}", stream or f"receive {source}"
        before = self._before(source, after)
        sends = Message(name, streams[0], kind, before, peer=target, numel=numel, tag=tag, sends=True)
        receives = Message(name, streams[1], kind, (), peer=source, numel=numel, tag=tag)
        return self._add(source, sends), self._add(target, receives)

    def group(self, name: str, members: Sequence[int] | None = None) -> int:
        """Ranks that do collectives together; by default all. A rank is in one group of a name. Returns its number."""
        everybody = tuple(range(self.request.ranks))
        chosen = everybody if members is None else tuple(members)
        self._groups.append((EVERYBODY if chosen == everybody else name, chosen))
        return len(self._groups) - 1

    def members(self, group: int) -> tuple[int, ...]:
        """The ranks of a group."""
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
        """On every member of a group; size: of a rank's larger array. Returns each member's part of it.

        after: what members wait for, each for its own. algorithm: by default the variant's, for an all_reduce, and
        `auto` for others. stream: by default the group's collectives are on one. kind and name: by default the
        collective. More on `Options`.
        """
        name, after, stream, kind = self._read(collective, options)
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
        """What has been added."""
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

    def _read(self, usual: str, options: Options) -> tuple[str, After, str, str]:
        """Name, after, stream and kind; the kind's DSCP is noted. usual: name and kind where none is given."""
        known = Options.__annotations__
        if wrong := [option for option in options if option not in known]:
            raise PlanProblem(where=usual, got=f"option {wrong[0]}", expected=did_you_mean(wrong[0], known))
        kind = options.get("kind") or usual
        self._note(kind, options.get("dscp", 0))
        return options.get("name") or usual, options.get("after", ()), options.get("stream", ""), kind

    def _note(self, kind: str, dscp: int) -> None:
        if self._dscps.setdefault(kind, dscp) != dscp:
            raise PlanProblem(
                where=kind, got=f"DSCPs {self._dscps[kind]} and {dscp}", expected="one DSCP per kind"
            )
