"""Verdicts on stragglers: ranks with long gaps between operations, or slow control paths.

Only time differences on one clock are compared, so clocks need not be synchronised.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from testbed.comm.flight_recorder import RankDump
from testbed.measure.diagnosis.desync import peers_of
from testbed.measure.diagnosis.operation_graph import Graph
from testbed.measure.diagnosis.thresholds import (
    LEAST_CONTROL_S,
    LEAST_EXCESS_SHARE,
    LEAST_OPERATIONS,
    SLOW_IO_SHARE,
    SLOW_IO_TIMES,
    SLOW_RANK_OFTEN,
    SLOW_RANK_SHARE,
)
from testbed.measure.diagnosis.verdicts import SLOW_IO, SLOW_RANK, Verdict, ranks_text, seconds_text

Position = tuple[object, ...]
"""The identity of a place in the program, the same on all ranks with that program."""

WINDOWS = (
    1.0,
    0.5,
    0.25,
)  # shares of the comparable points, counted from the end, since a rank may become slow late


@dataclass(frozen=True)
class Compared:
    """A point in the program: when a rank reached it, its own time there, and the median of its peers, in seconds."""

    when_s: float
    own_s: float
    others_s: float


def slow_ranks(graph: Graph) -> list[Verdict]:
    """Return verdicts on ranks that take longer between operations than ranks with the same program."""
    times = {rank: own_times(graph, dump) for rank, dump in graph.dumps.items()}
    found = []
    for rank, peers in peers_of(graph).items():
        compared = _compare(times, rank, sorted(peers))
        for share in WINDOWS:
            verdict = _slow(rank, compared[-math.ceil(share * len(compared)) :] if compared else [], peers)
            if verdict:
                found.append(verdict)
                break
    return sorted(found, key=lambda own: (-own.certainty, own.ranks))


def own_times(graph: Graph, dump: RankDump) -> dict[Position, tuple[float, float]]:
    """Return, by position, when a rank started each operation, and its own time before the start.

    A rank's own time runs from when it last started or completed an operation. Messages are counted from the end, since
    ring buffers may start anywhere.
    """
    found: dict[Position, tuple[float, float]] = {}
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    entries = sorted(dump.entries, key=lambda entry: entry.scheduled_s)
    for place in range(len(entries) - 1, 0, -1):
        entry = entries[place]
        since_s = entries[place - 1].scheduled_s
        for before in entries[:place]:
            if before.ended_s is not None and before.ended_s <= entry.scheduled_s:
                since_s = max(since_s, before.ended_s)
        label = (graph.family(entry.group), entry.name, entry.size_bytes)
        counts[label] += 1
        if entries[place - 1].over and entries[place - 1].ended_s is None:
            continue  # its end is not recorded, so the time cannot be attributed to the rank
        position: Position = (label, entry.sequence or -counts[label])
        found[position] = (entry.scheduled_s, entry.scheduled_s - since_s)
    return found


def _compare(
    times: Mapping[int, Mapping[Position, tuple[float, float]]], rank: int, peers: Sequence[int]
) -> list[Compared]:
    found = []
    for position, (when_s, own_s) in times[rank].items():
        others = [times[peer][position][1] for peer in peers if position in times[peer]]
        if others:
            found.append(Compared(when_s, own_s, median(others)))
    return sorted(found, key=lambda own: own.when_s)


def _slow(rank: int, compared: Sequence[Compared], peers: set[int]) -> Verdict | None:
    usual_s = sum(own.others_s for own in compared)
    excess_s = sum(own.own_s - own.others_s for own in compared)
    # points without computation do not show which rank computes slowly
    telling = [own for own in compared if own.others_s * len(compared) > 0.1 * usual_s]
    if len(telling) < LEAST_OPERATIONS or usual_s <= 0 or excess_s < SLOW_RANK_SHARE * usual_s:
        return None
    if excess_s < LEAST_EXCESS_SHARE * (compared[-1].when_s - compared[0].when_s):
        return None
    late = [own for own in telling if own.own_s > (1 + SLOW_RANK_SHARE / 2) * own.others_s]
    if len(late) < SLOW_RANK_OFTEN * len(telling):
        return None
    return Verdict(
        SLOW_RANK,
        (rank,),
        since_s=late[0].when_s,
        certainty=0.95 if len(peers) > 1 else 0.8,
        reason=f"compared with {len(peers)} ranks with the same program, each by its own clock",
        felt_by=len(peers),
        evidence=(
            f"between operations rank {rank} needs {seconds_text(usual_s + excess_s)} where ranks with the same"
            f" program need {seconds_text(usual_s)}: {1 + excess_s / usual_s:.2f} times as long",
            f"in {len(late)} of {len(telling)} places of the program",
        ),
        look_at=f"clocks, temperature and other processes of rank {rank}'s host and accelerator; its input",
    )


def slow_io(graph: Graph, clock_error_s: float) -> list[Verdict]:
    """Return verdicts on ranks whose control part takes many times longer than the others' in the same operations.

    Time before the last rank joins does not count, since ranks may wait for late ones in their control part.
    """
    own: dict[int, list[Compared]] = {rank: [] for rank in graph.dumps}
    took_s: dict[int, float] = defaultdict(float)
    for key in sorted(graph.collectives):
        entries = {rank: graph.entry((rank, place)) for rank, place in graph.collectives[key].items()}
        control_s = {
            rank: max(0.0, entry.started_s - entry.scheduled_s)
            for rank, entry in entries.items()
            if entry.started_s is not None
        }
        for rank, value_s in control_s.items():
            entry = entries[rank]
            others = [control_s[other] for other in control_s if other != rank]
            if not others or entry.ended_s is None or entry.started_s is None:
                continue
            came_s = max(one.scheduled_s for other, one in entries.items() if other != rank)
            counted_s = min(value_s, max(0.0, entry.started_s - came_s + 2 * clock_error_s))
            own[rank].append(Compared(entry.scheduled_s, counted_s, median(others)))
            took_s[rank] += entry.ended_s - entry.scheduled_s
    found = []
    for rank, compared in own.items():
        slow = [one for one in compared if one.own_s > SLOW_IO_TIMES * max(one.others_s, LEAST_CONTROL_S)]
        usual_s = sum(one.others_s for one in slow)
        long_s = sum(one.own_s for one in slow)
        if len(slow) < LEAST_OPERATIONS or long_s - usual_s < SLOW_IO_SHARE * took_s[rank]:
            continue
        times = f"{long_s / usual_s:.0f} times as long" if usual_s > 0 else "the others' take no time"
        found.append(
            Verdict(
                SLOW_IO,
                (rank,),
                since_s=slow[0].when_s,
                certainty=0.95,
                reason="each by its own clock, in the same operations",
                felt_by=len(
                    {other for group in graph.groups.values() if rank in group.ranks for other in group.ranks}
                )
                - 1,
                evidence=(
                    f"from call to first byte rank {rank} takes {seconds_text(long_s / len(slow))}, the others in"
                    f" the same operations {seconds_text(usual_s / len(slow))}: {times}",
                    f"in {len(slow)} of {len(compared)} operations",
                ),
                look_at=f"{ranks_text((rank,))}: memory registration, page cache and file systems, its control network",
            )
        )
    return sorted(found, key=lambda verdict: verdict.ranks)
