"""Verification of plans: does an algorithm's plan compute what its collective promises?

Plans are executed on sets of contributions, without data and without a network, so a plug-in's plans can be checked
before a network is built.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache

from testbed.comm.collectives.plan import Plan, Round, Runs, Strand, blocks_of
from testbed.comm.collectives.registry import Algorithm, Collective, PlanRequest, algorithm_of, collective_of
from testbed.plugins import PluginError, is_file_name

Held = dict[int, int]
"""Contributions to each block, one bit per rank."""


class WrongPlan(PluginError):
    """Plans that do not compute what their collective promises; the message names rank, round, peer and source line."""


class _Mistake(Exception):
    pass


def check_if_plugin(collective: str, algorithm: str, groups: Sequence[int | str]) -> None:
    """Check the plans of an algorithm or collective that is not built in; uneven rows have no plans to check.

    `groups` is the building of each rank. Raises WrongPlan or PluginError.
    """
    if is_plugin(collective, algorithm):
        known = collective_of(collective)
        numbers = {building: number for number, building in enumerate(dict.fromkeys(groups))}
        buildings = tuple(numbers[building] for building in groups)
        _check_once(known, algorithm_of(known, algorithm), buildings)


def is_plugin(collective: str, algorithm: str) -> bool:
    """Return whether an algorithm or its collective is a plug-in; always False for uneven rows. Raises PluginError."""
    known = collective_of(collective)
    if known.uneven:
        known.algorithms.find(algorithm)
        return False
    made = algorithm_of(known, algorithm)
    of_file = is_file_name(algorithm) or is_file_name(collective)
    return of_file or not made.make.__module__.startswith(f"{__package__}.")


@lru_cache(maxsize=512)
def _check_once(collective: Collective, algorithm: Algorithm, groups: tuple[int, ...]) -> None:
    for pieces in (1, 3) if algorithm.chunks is not None else (1,):
        check_plans(collective, algorithm, groups, pieces=pieces)


def check_plans(
    collective: str | Collective,
    algorithm: str | Algorithm,
    groups: Sequence[int],
    root: int = 0,
    pieces: int = 1,
) -> list[Plan]:
    """Return all ranks' plans after checking them.

    Every message must have both ends, no rank may wait forever, and each rank must end with the blocks that it should
    have.

    Args:
        collective: Name or definition.
        algorithm: Name or definition.
        groups: The building of each rank.
        root: The root rank, if the collective has one.
        pieces: Channels or chunks.

    Raises:
        WrongPlan: If a plan is wrong.
        PluginError: If a planner raises.
    """
    known = collective_of(collective)
    made = algorithm_of(known, algorithm)
    plans = [made(PlanRequest(rank, tuple(groups), root, pieces)) for rank in range(len(groups))]
    try:
        _check(known, plans, root)
    except _Mistake as mistake:
        file, line = made.source
        raise WrongPlan(
            f"algorithm {made.name} of {known.name}, {len(groups)} ranks in buildings {list(groups)}: {mistake} "
            f"({file}, line {line})"
        ) from None
    return plans


def _check(collective: Collective, plans: Sequence[Plan], root: int) -> None:
    size, first = len(plans), plans[0]
    for rank, plan in enumerate(plans):
        if (plan.whole, plan.cuts) != (first.whole, first.cuts):
            raise _Mistake(f"ranks 0 and {rank} cut the array differently")
        if _shape(plan) != _shape(first):
            raise _Mistake(f"ranks 0 and {rank} have different numbers of channels, stages or strands")
        _check_rounds(rank, plan, size)
    blocks = collective.blocks(size)
    positions = {cut: number for number, cut in enumerate(first.cuts)}
    sides = [
        (side(rank, size, root)) for side in (collective.before, collective.after) for rank in range(size)
    ]
    used = {block for side in sides for block in side}
    if positions.get(first.whole) != len(first.cuts) - 1 or first.cuts[0] != 0:
        raise _Mistake(f"cuts: got {first.cuts}, expected ones from 0 to {first.whole}")
    if any(
        number * first.whole % blocks or number * first.whole // blocks not in positions for number in used
    ):
        raise _Mistake(f"cuts: expected one at each of the {blocks} blocks of the collective")

    def parts(own: Sequence[int]) -> list[int]:
        """Return the plan's blocks that make up these blocks of the collective."""
        edges = [(block * first.whole // blocks, (block + 1) * first.whole // blocks) for block in own]
        return [part for low, high in edges for part in range(positions[low], positions[high])]

    held: list[Held] = [
        dict.fromkeys(parts(collective.before(rank, size, root)), 1 << rank) for rank in range(size)
    ]
    every: Held = {}
    for own in held:
        for part, bit in own.items():
            every[part] = every.get(part, 0) | bit
    for channel in range(len(first.channels)):
        _Channel(plans, channel, held, collective.reduces).run()
    for rank in range(size):
        for part in parts(collective.after(rank, size, root)):
            found = held[rank].get(part, 0)
            if collective.reduces and found != every[part]:
                missing = [other for other in range(size) if (every[part] & ~found) >> other & 1]
                raise _Mistake(f"rank {rank} ends without what rank {missing[0]} has for block {part}")
            if not found & every[part]:
                raise _Mistake(f"rank {rank} ends without block {part}")


def _shape(plan: Plan) -> list[list[int]]:
    return [[len(stage) for stage in stages] for stages in plan.channels]


def _check_rounds(rank: int, plan: Plan, size: int) -> None:
    count = len(plan.cuts) - 1
    steps = [step for stages in plan.channels for stage in stages for strand in stage for step in strand]
    for step in steps:
        for peer, runs in (*step.sends, *step.receives):
            if peer == rank or not 0 <= peer < size:
                raise _Mistake(f"rank {rank} in {step.phase!r}: a message with rank {peer}")
            if any(not 0 <= start <= end <= count for start, end in runs):
                raise _Mistake(f"rank {rank} in {step.phase!r}: blocks {runs} of {count}")
        for peer, runs in step.receives:
            for other, sent in step.sends:
                # without reduction, a rank may send a peer the same blocks that it receives from it
                if (step.reduces or peer != other) and (both := {*blocks_of(runs)} & {*blocks_of(sent)}):
                    what = f"block {min(both)} is received while it is sent"
                    raise _Mistake(f"rank {rank} in {step.phase!r}: {what}")


class _Channel:
    """One channel of all ranks' plans; every rank advances as far as the blocks in `held` allow."""

    def __init__(self, plans: Sequence[Plan], channel: int, held: list[Held], reduces: bool) -> None:
        self.stages = [plan.channels[channel] for plan in plans]
        self.held, self.reduces = held, reduces
        self.wires: defaultdict[tuple[int, int, int, int], deque[tuple[Runs, Held]]] = defaultdict(deque)
        self.stage_of = [0] * len(plans)
        # per rank, by strand of its current stage: the round, and whether its sends are done
        self.rounds: list[dict[int, tuple[int, bool]]] = [defaultdict(lambda: (0, False)) for _ in plans]

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in range(len(self.stages)):
                moved |= self._advance(rank)
        for rank, stages in enumerate(self.stages):
            if self.stage_of[rank] < len(stages):
                raise _Mistake(self._deadlock(rank))
        for (source, target, *_), messages in self.wires.items():
            if messages:
                raise _Mistake(f"rank {source} sends rank {target} a message that it does not receive")

    def _advance(self, rank: int) -> bool:
        if self.stage_of[rank] == len(self.stages[rank]):
            return False
        before = dict(self.rounds[rank])
        stage = self.stages[rank][self.stage_of[rank]]
        over = [self._strand(rank, number, strand) for number, strand in enumerate(stage)]
        if all(over):
            self.stage_of[rank] += 1
            self.rounds[rank].clear()
            return True
        return before != self.rounds[rank]

    def _strand(self, rank: int, number: int, strand: Strand) -> bool:
        position, sent = self.rounds[rank][number]
        stage = self.stage_of[rank]
        while position < len(strand):
            step = strand[position]
            if not sent:
                for peer, runs in step.sends:
                    self.wires[rank, peer, stage, number].append((runs, self._content(rank, step, runs)))
                sent = True
            if not all(self.wires[peer, rank, stage, number] for peer, _ in step.receives):
                break
            for peer, runs in step.receives:
                self._receive(rank, peer, step, runs, *self.wires[peer, rank, stage, number].popleft())
            position, sent = position + 1, False
        self.rounds[rank][number] = (position, sent)
        return position == len(strand)

    def _content(self, rank: int, step: Round, runs: Runs) -> Held:
        own = self.held[rank]
        for block in blocks_of(runs):
            if block not in own:
                raise _Mistake(f"rank {rank} in {step.phase!r} sends block {block}, which it does not have")
        return {block: own[block] for block in blocks_of(runs)}

    def _receive(self, rank: int, peer: int, step: Round, runs: Runs, sent: Runs, content: Held) -> None:
        where = f"rank {rank} in {step.phase!r}"
        if blocks_of(sent) != blocks_of(runs):
            raise _Mistake(f"{where} expects blocks {runs} of rank {peer}, which sends {sent}")
        if step.reduces and not self.reduces:
            raise _Mistake(f"{where} reduces, in a collective that copies")
        for block, parts in content.items():
            before = self.held[rank].get(block, 0)
            if step.reduces and parts & before:
                raise _Mistake(f"{where} reduces block {block} of rank {peer} twice")
            if step.reduces and not before:
                raise _Mistake(f"{where} reduces block {block} of rank {peer} into nothing")
            self.held[rank][block] = parts | before if step.reduces else parts

    def _deadlock(self, rank: int) -> str:
        stage = self.stages[rank][self.stage_of[rank]]
        for number, strand in enumerate(stage):
            position, _ = self.rounds[rank][number]
            if position < len(strand):
                step = strand[position]
                peers = [
                    peer
                    for peer, _ in step.receives
                    if not self.wires[peer, rank, self.stage_of[rank], number]
                ]
                when = f"round {position + 1} of {len(strand)} in {step.phase!r}"
                return f"rank {rank} waits forever for rank {peers[0] if peers else '?'}, {when}"
        return f"rank {rank} waits forever"
