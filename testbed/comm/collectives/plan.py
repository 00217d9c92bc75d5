"""What a collective does, as data: which blocks a rank sends to whom and receives from whom, round by round.

A plan knows no sizes: the array is cut into numbered blocks at fixed shares of its length, so one plan serves arrays of
every size, bytes on the wire follow from the plan, and a plan can be reversed: played backwards, an all-gather is a
reduce-scatter (`reverse`), for the paths on which a block spreads become those on which its parts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

Runs = tuple[tuple[int, int], ...]


class Transfer(NamedTuple):
    """One message: its other end, and the blocks in it, as runs [start, end)."""

    peer: int
    runs: Runs


class Round(NamedTuple):
    """Messages under way at once; over when all receives are done. `reduces`: what comes is reduced with what is here.

    A round's sends need what the rounds before have received.
    """

    phase: str
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()
    reduces: bool = False


Strand = tuple[Round, ...]
Stage = tuple[Strand, ...]


@dataclass(frozen=True)
class Plan:
    """One rank's part: channels that go on independently; in each, stages that come one after the other.

    The strands of a stage go on independently again, each in rounds.
    Block b holds the elements from cuts[b] / whole to cuts[b + 1] / whole of the array, rounded down. Strand k of a
    stage talks to strand k of the same stage on other ranks, so that all ranks have equally many, some empty.
    """

    whole: int
    cuts: tuple[int, ...]
    channels: tuple[tuple[Stage, ...], ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Of a plan with one channel."""
        (stages,) = self.channels
        return stages

    def bounds(self, numel: int) -> list[int]:
        """Where blocks start and end in an array of so many elements."""
        whole = self.whole
        return [numel * cut // whole for cut in self.cuts]

    @property
    def rounds(self) -> int:
        """How many rounds this rank goes through one after the other."""
        return max(sum(max(map(len, stage), default=0) for stage in stages) for stages in self.channels)

    def sent(self, bounds: Sequence[int]) -> dict[int, int]:
        """Elements sent per peer, for blocks with these bounds; no entry where there are none."""
        found: dict[int, int] = {}
        strands = [strand for stages in self.channels for stage in stages for strand in stage]
        for peer, runs in (transfer for strand in strands for step in strand for transfer in step.sends):
            if count := sum(bounds[end] - bounds[start] for start, end in runs):
                found[peer] = found.get(peer, 0) + count
        return found


def even(blocks: int, *stages: Stage) -> Plan:
    """A plan on so many blocks of equal size."""
    return Plan(blocks, tuple(range(blocks + 1)), (stages,))


def runs_of(blocks: Iterable[int]) -> Runs:
    """Numbers of blocks, in any order, as runs of consecutive ones."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block:
            found[-1] = (found[-1][0], block + 1)
        else:
            found.append((block, block + 1))
    return tuple(found)


def blocks_of(runs: Runs) -> list[int]:
    """The numbers of the blocks in these runs."""
    return [block for start, end in runs for block in range(start, end)]


def reverse(plan: Plan, phase: str | None = None, reduces: bool = True) -> Plan:
    """The plan played backwards: what was received is sent; `phase` renames its rounds."""

    def reversed_round(step: Round) -> Round:
        return Round(phase or step.phase, step.receives, step.sends, reduces)

    channels = tuple(
        tuple(
            tuple(tuple(map(reversed_round, reversed(strand))) for strand in stage)
            for stage in reversed(stages)
        )
        for stages in plan.channels
    )
    return replace(plan, channels=channels)


def then(first: Plan, *others: Plan) -> Plan:
    """One plan after the other, on the same blocks; where both are single strands, without a pause for the others."""
    stages = list(first.stages)
    for plan in others:
        if len(stages) == len(plan.stages) == 1 and len(stages[0]) == len(plan.stages[0]) == 1:
            stages = [(stages[0][0] + plan.stages[0][0],)]
        else:
            stages += plan.stages
    return replace(first, channels=(tuple(stages),))


def first_rounds(plan: Plan, most: int) -> Plan:
    """The plan broken off after so many rounds of each channel; nothing is whole then."""

    def begun(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        found, left = [], most
        for stage in stages:
            found.append(tuple(strand[: max(0, left)] for strand in stage))
            left -= max(map(len, stage), default=0)
        return tuple(found)

    return replace(plan, channels=tuple(map(begun, plan.channels)))


def relabel(plan: Plan, name: Callable[[int], int]) -> Plan:
    """The same with other numbers for blocks."""
    return replace(plan, channels=(_all_renamed(plan.stages, name),))


def in_channels(plan: Plan, channels: int) -> Plan:
    """Every block cut in as many parts as channels, which go on independently through all stages.

    One part is reduced while another travels, one is in the next building while another is still inside.
    """
    if channels == 1:
        return plan
    cuts = [
        start * channels + channel * (end - start)
        for start, end in pairwise(plan.cuts)
        for channel in range(channels)
    ]
    parts = tuple(
        _all_renamed(stages, lambda block, channel=channel: block * channels + channel)  # type: ignore[misc]
        for stages in plan.channels
        for channel in range(channels)
    )
    return Plan(plan.whole * channels, (*cuts, plan.cuts[-1] * channels), parts)


def _all_renamed(stages: tuple[Stage, ...], name: Callable[[int], int]) -> tuple[Stage, ...]:
    return tuple(tuple(_renamed(strand, name) for strand in stage) for stage in stages)


def _renamed(strand: Strand, name: Callable[[int], int]) -> Strand:
    def moved(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(Transfer(t.peer, runs_of(map(name, blocks_of(t.runs)))) for t in transfers)

    return tuple(step._replace(sends=moved(step.sends), receives=moved(step.receives)) for step in strand)
