"""The diagnosis of flight recorder dumps. Pure: the same dumps give the same diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from testbed.comm.flight_recorder import COMPLETED, FAILED, Entry, NetworkPaths, RankDump
from testbed.measure.diagnosis.desync import find_mismatches
from testbed.measure.diagnosis.hangs import hang_verdicts, is_stalled
from testbed.measure.diagnosis.operation_graph import Graph, longest_s
from testbed.measure.diagnosis.slow_pairs import slow_network
from testbed.measure.diagnosis.stragglers import slow_io, slow_ranks
from testbed.measure.diagnosis.thresholds import CLOCK_ERROR_S, SAME_CLOCK_ERROR_S
from testbed.measure.diagnosis.verdicts import (
    CRASHED,
    STUCK_IN_NETWORK,
    Diagnosis,
    NaiveVerdict,
    Verdict,
    moment_text,
    seconds_text,
)
from testbed.measure.diagnosis.wait_graph import gone_ranks


def diagnose(
    dumps: Iterable[RankDump], paths: NetworkPaths | None = None, clock_error_s: float | None = None
) -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        dumps: Dumps of the ranks; some may be missing.
        paths: Network paths of the ranks' connections; None if unknown.
        clock_error_s: Largest difference between ranks' clocks. Events of different ranks that are closer than this
            have no defined order. None means CLOCK_ERROR_S, or almost 0 if the paths say that all ranks share a clock.
    """
    graph = Graph(dumps)
    paths = paths or NetworkPaths()
    if clock_error_s is None:
        clock_error_s = SAME_CLOCK_ERROR_S if paths.one_clock else CLOCK_ERROR_S
    verdicts: list[Verdict] = []
    hangs = is_stalled(graph, longest_s(graph)) or bool(gone_ranks(graph))
    if hangs:
        verdicts = hang_verdicts(graph, clock_error_s, paths)
        stuck = [pair for own in verdicts if own.kind == STUCK_IN_NETWORK for pair in own.pairs]
        if verdicts and verdicts[0].kind == STUCK_IN_NETWORK and len(stuck) == 1:
            verdicts = merge_stuck_and_slow(verdicts, slow_network(graph, paths, clock_error_s, stuck))
    wrong = find_mismatches(graph, clock_error_s)
    if wrong:
        # mismatched ranks wait for each other forever, which is not a second fault
        crashed = [own for own in verdicts if own.kind == CRASHED]
        verdicts = [*crashed, *wrong, *(own for own in verdicts if own.kind != CRASHED)]
    if not verdicts:
        verdicts = [
            *slow_io(graph, clock_error_s),
            *slow_ranks(graph),
            *slow_network(graph, paths, clock_error_s),
        ]
    named = {rank for group in graph.groups.values() for rank in group.ranks}
    return Diagnosis(
        tuple(verdicts),
        blame_first_timeout(graph),
        first_incomplete(graph),
        len(graph.dumps),
        tuple(sorted(named - set(graph.dumps))),
    )


def merge_stuck_and_slow(stuck: list[Verdict], slow: Iterable[Verdict]) -> list[Verdict]:
    """Merge a single stuck pair with a slow network part that it crosses and that also explains other pairs.

    A part that drops some packets delivers most messages on time, some late, and a few not at all.
    """
    (pair,) = stuck[0].pairs
    for part in slow:
        if part.component and pair in part.pairs and len(part.pairs) > 1:
            found = replace(
                part,
                kind=STUCK_IN_NETWORK,
                reason="both the missing and the late messages cross it",
                felt_by=stuck[0].felt_by,
                evidence=(stuck[0].evidence[0], *part.evidence),
            )
            return [found, *stuck[1:]]
    return stuck


def first_incomplete(graph: Graph) -> str:
    """Describe the first-started operation that some rank has not completed; "" if there is none."""
    nodes = (node for rank in graph.dumps for node in graph.open_nodes(rank))
    first = min(nodes, key=lambda node: graph.entry(node).scheduled_s, default=None)
    return "" if first is None else graph.node_words(first)


def blame_first_timeout(graph: Graph) -> NaiveVerdict:
    """Blame the peer of the first operation that failed (on any clock), or of the longest one if none failed."""
    entries = [
        (rank, place, entry) for rank, dump in graph.dumps.items() for place, entry in enumerate(dump.entries)
    ]
    failed = [
        (entry.ended_s, rank, place)
        for rank, place, entry in entries
        if entry.state == FAILED and entry.ended_s is not None
    ]
    for since_s, left_s, (rank, place) in graph.timed_out():
        # with no time left, the wait started earlier, and ended no later than when others noticed
        until_s = min(graph.first_failure_s, graph.dumps[rank].time_s)
        failed.append((since_s + left_s if left_s else until_s, rank, place))
    if failed:
        ended_s, rank, place = min(failed)
        blamed = _named(graph.entry((rank, place)), rank)
        what = f"rank {rank} gave up first, in {graph.node_words((rank, place))} at {moment_text(ended_s)}"
        return NaiveVerdict(blamed, f"{what}: rank {blamed}'s fault")
    times = [
        (
            (graph.dumps[rank].time_s if entry.ended_s is None else entry.ended_s) - entry.scheduled_s,
            -rank,
            place,
        )
        for rank, place, entry in entries
        if entry.ended_s is not None or not entry.over
    ]
    if not times:
        return NaiveVerdict(None, "no durations are recorded")
    took_s, negative, place = max(times)
    node = -negative, place
    blamed = node[0] if graph.entry(node).state == COMPLETED else _named(graph.entry(node), node[0])
    what = f"rank {node[0]}'s {graph.node_words(node)} takes longest, {seconds_text(took_s)}"
    return NaiveVerdict(blamed, f"{what}: rank {blamed}'s fault")


def _named(entry: Entry, rank: int) -> int:
    """Return the first peer that an operation waits for, or the rank itself if it names none."""
    if entry.peer is not None:
        return entry.peer
    return min(entry.waits_for, default=rank)
