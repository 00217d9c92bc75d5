"""What one would say without a diagnosis: the first time-out, and the peer that it names."""

from __future__ import annotations

from testbed.comm.flight_recorder import COMPLETED, FAILED, Entry
from testbed.measure.diagnosis.operation_graph import Graph
from testbed.measure.diagnosis.verdicts import Naive, moment_text, seconds_text


def naive_answer(graph: Graph) -> Naive:
    """By the failure that came first on any clock; where none failed by the longest operation."""
    failed = [
        (entry.ended_s, rank, place)
        for rank, dump in graph.dumps.items()
        for place, entry in enumerate(dump.entries)
        if entry.state == FAILED and entry.ended_s is not None
    ]
    failed += _timed_out(graph)
    if failed:
        ended_s, rank, place = min(failed)
        entry = graph.dumps[rank].entries[place]
        blamed = _named(entry, rank)
        what = graph.node_words((rank, place))
        return Naive(
            blamed, f"rank {rank} gave up first, in {what} at {moment_text(ended_s)}: rank {blamed}'s fault"
        )
    times = [
        ((dump.time_s if entry.ended_s is None else entry.ended_s) - entry.scheduled_s, -rank, place)
        for rank, dump in graph.dumps.items()
        for place, entry in enumerate(dump.entries)
        if entry.ended_s is not None or not entry.over
    ]
    if not times:
        return Naive(None, "nothing is recorded of how long anything took")
    took_s, negative, place = max(times)
    entry = graph.dumps[-negative].entries[place]
    blamed = _named(entry, -negative) if entry.state != COMPLETED else -negative
    what = graph.node_words((-negative, place))
    return Naive(
        blamed,
        f"rank {-negative}'s {what} takes longest, {seconds_text(took_s)}: rank {blamed}'s fault",
    )


def _timed_out(graph: Graph) -> list[tuple[float, int, int]]:
    """Of ranks that say themselves that something was not done in time: when, who, and the oldest operation."""
    found = []
    for since_s, left_s, (rank, place) in graph.timed_out():
        # what nothing was left of began to be waited for earlier: it ended no later than others heard of it
        until_s = min(graph.first_failure_s, graph.dumps[rank].time_s)
        found.append((since_s + left_s if left_s else until_s, rank, place))
    return found


def _named(entry: Entry, rank: int) -> int:
    """The first peer that an operation waits for; the rank itself where it says none."""
    if entry.peer is not None:
        return entry.peer
    return min(entry.waits_for, default=rank)
