"""Plans of collectives as data: which blocks a rank sends to whom and receives from whom, round by round.

A plan contains no sizes. The array is cut into numbered blocks at fixed shares of its length, so one plan serves arrays
of every size, and bytes on the wire follow from the plan. A plan can be reversed (`reverse`): an all-gather played
backwards is a reduce-scatter, because the paths on which a block spreads become the paths on which its parts are added
up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

Runs = tuple[tuple[int, int], ...]


class Transfer(NamedTuple):
    """One message: the peer, and the blocks in it as runs [start, end)."""

    peer: int
    runs: Runs


class Round(NamedTuple):
    """Messages that are in flight at once; the round ends when all of its receives are done.

    The sends of a round need what earlier rounds received. `reduces`: received blocks are reduced into the local
    ones.
    """

    phase: str
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()
    reduces: bool = False


Strand = tuple[Round, ...]
Stage = tuple[Strand, ...]


@dataclass(frozen=True)
class Plan:
    """One rank's part of a collective: independent channels, each a sequence of stages.

    The strands of a stage run independently as well, each as a sequence of rounds. Block b holds the elements from
    cuts[b] / whole to cuts[b + 1] / whole of the array, rounded down. Strand k of a stage talks to strand k of the
    same stage on other ranks, so all ranks have the same number of strands; some may be empty.
    """

    whole: int
    cuts: tuple[int, ...]
    channels: tuple[tuple[Stage, ...], ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a plan with one channel."""
        (stages,) = self.channels
        return stages

    def bounds(self, numel: int) -> list[int]:
        """Return where blocks start and end in an array of `numel` elements."""
        whole = self.whole
        return [numel * cut // whole for cut in self.cuts]

    @property
    def rounds(self) -> int:
        """The number of rounds that this rank executes in sequence."""
        return max(sum(max(map(len, stage), default=0) for stage in stages) for stages in self.channels)

    def sent(self, bounds: Sequence[int]) -> dict[int, int]:
        """Return the elements sent per peer for blocks with these bounds; peers that get none are left out."""
        found: dict[int, int] = {}
        strands = [strand for stages in self.channels for stage in stages for strand in stage]
        for peer, runs in (transfer for strand in strands for step in strand for transfer in step.sends):
            if count := sum(bounds[end] - bounds[start] for start, end in runs):
                found[peer] = found.get(peer, 0) + count
        return found


def even(blocks: int, *stages: Stage) -> Plan:
    """Return a plan on `blocks` blocks of equal size."""
    return Plan(blocks, tuple(range(blocks + 1)), (stages,))


def runs_of(blocks: Iterable[int]) -> Runs:
    """Return block numbers, given in any order, as runs of consecutive ones."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block:
            found[-1] = (found[-1][0], block + 1)
        else:
            found.append((block, block + 1))
    return tuple(found)


def blocks_of(runs: Runs) -> list[int]:
    """Return the numbers of the blocks in these runs."""
    return [block for start, end in runs for block in range(start, end)]


def reverse(plan: Plan, phase: str | None = None, reduces: bool = True) -> Plan:
    """Return the plan played backwards: what was received is sent. `phase` renames its rounds."""

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
    """Return a plan that executes several plans on the same blocks in sequence.

    Two single-strand plans are joined into one strand, so a rank starts the second without waiting for other strands.
    """
    stages = list(first.stages)
    for plan in others:
        if len(stages) == len(plan.stages) == 1 and len(stages[0]) == len(plan.stages[0]) == 1:
            stages = [(stages[0][0] + plan.stages[0][0],)]
        else:
            stages += plan.stages
    return replace(first, channels=(tuple(stages),))


def first_rounds(plan: Plan, most: int) -> Plan:
    """Return the plan cut off after the first `most` rounds of each channel; its result is incomplete."""

    def truncate(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        found, left = [], most
        for stage in stages:
            found.append(tuple(strand[: max(0, left)] for strand in stage))
            left -= max(map(len, stage), default=0)
        return tuple(found)

    return replace(plan, channels=tuple(map(truncate, plan.channels)))


def relabel(plan: Plan, name: Callable[[int], int]) -> Plan:
    """Return the plan with its blocks renumbered by `name`."""
    return replace(plan, channels=(_relabel_stages(plan.stages, name),))


def in_channels(plan: Plan, channels: int) -> Plan:
    """Return the plan with every block cut into `channels` parts, which pass through all stages independently.

    While one part is reduced, another is in flight; while one part crosses between buildings, another is still inside.
    """
    if channels == 1:
        return plan
    cuts = [
        start * channels + channel * (end - start)
        for start, end in pairwise(plan.cuts)
        for channel in range(channels)
    ]
    parts = tuple(
        _relabel_stages(stages, lambda block, channel=channel: block * channels + channel)  # type: ignore[misc]
        for stages in plan.channels
        for channel in range(channels)
    )
    return Plan(plan.whole * channels, (*cuts, plan.cuts[-1] * channels), parts)


def _relabel_stages(stages: tuple[Stage, ...], name: Callable[[int], int]) -> tuple[Stage, ...]:
    return tuple(tuple(_relabel_strand(strand, name) for strand in stage) for stage in stages)


def _relabel_strand(strand: Strand, name: Callable[[int], int]) -> Strand:
    def relabeled(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(Transfer(t.peer, runs_of(map(name, blocks_of(t.runs)))) for t in transfers)

    return tuple(
        step._replace(sends=relabeled(step.sends), receives=relabeled(step.receives)) for step in strand
    )
