"""Verdicts on hangs, from the ends of the wait-for graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from testbed.comm.flight_recorder import FAILED, NetworkPaths
from testbed.measure.diagnosis import wait_graph
from testbed.measure.diagnosis.desync import find_divergence, peers_of
from testbed.measure.diagnosis.fault_localisation import network_verdicts
from testbed.measure.diagnosis.operation_graph import ABSENT, Graph, Key, activity_s
from testbed.measure.diagnosis.thresholds import STALLED_TIMES
from testbed.measure.diagnosis.verdicts import (
    CRASHED,
    DEADLOCK,
    RANK_NOT_JOINED,
    SILENT,
    SLOW_IO,
    STUCK_IN_NETWORK,
    Verdict,
    moment_text,
    ranks_text,
)
from testbed.measure.diagnosis.wait_graph import (
    Impact,
    Waiting,
    waiters_words,
)

ORDER = (CRASHED, SILENT, RANK_NOT_JOINED, DEADLOCK, STUCK_IN_NETWORK, SLOW_IO)


def is_stalled(graph: Graph, longest_s: float) -> bool:
    """Return whether any open operation should have completed in a healthy run: failed, abandoned or too old."""
    for rank, dump in graph.dumps.items():
        for node in graph.open_nodes(rank):
            entry = graph.entry(node)
            if entry.state == FAILED or dump.ended not in ("", "finished"):
                return True
            if dump.time_s - activity_s(entry) > STALLED_TIMES * longest_s > 0:
                return True
    return False


def hang_verdicts(graph: Graph, clock_error_s: float, paths: NetworkPaths) -> list[Verdict]:
    """Return the verdicts on a run that hangs, most likely first."""
    gone = wait_graph.gone_ranks(graph)
    found = wait_graph.follow_waits(graph, gone, clock_error_s)
    verdicts = [
        *_gone(graph, gone, found, paths),
        *_still(graph, found, paths),
        *_not_joined(graph, found),
        *_circles(graph, found),
        *network_verdicts(graph, found, paths, clock_error_s),
        *_control(graph, found),
    ]
    return sorted(
        verdicts, key=lambda own: (own.kind != CRASHED, -own.felt_by, ORDER.index(own.kind), own.ranks)
    )


def _by_host(graph: Graph, paths: NetworkPaths, ranks: Iterable[int]) -> list[tuple[tuple[int, ...], str]]:
    """Group ranks by host, and name the host if it has several ranks and all of them are in `ranks`."""
    ranks = sorted(ranks)
    hosts = {rank: dump.host for rank, dump in graph.dumps.items()} | dict(paths.hosts)
    found: dict[tuple[int, ...], str] = {}
    for rank in ranks:
        name = hosts.get(rank, "")
        own = tuple(other for other, host in sorted(hosts.items()) if host == name != "")
        is_whole = len(own) > 1 and set(own) <= set(ranks)
        found[own if is_whole else (rank,)] = f"host {name}" if is_whole else ""
    return list(found.items())


def _impact_by_rank(found: Waiting, kind: str) -> dict[int, Impact]:
    return {ranks[0]: own for ranks, (own, _) in found.by_ranks(kind).items()}


def _gone(graph: Graph, gone: Mapping[int, str], found: Waiting, paths: NetworkPaths) -> Iterator[Verdict]:
    felt = _impact_by_rank(found, wait_graph.GONE)
    for ranks, host in _by_host(graph, paths, {*gone, *felt}):
        impacts = [felt[rank] for rank in ranks if rank in felt]
        known = [rank for rank in ranks if rank in gone]
        last_s = max((graph.last_activity_s(rank) for rank in known), default=-math.inf)
        evidence = [f"rank {rank}: {gone[rank]}" for rank in known[:4]]
        evidence += [f"rank {rank} left no dump" for rank in ranks if rank not in graph.dumps]
        evidence += [line for own in impacts for line in waiters_words(graph, own)][:4]
        if math.isfinite(last_s):
            evidence.append(f"its recorder has nothing after {moment_text(last_s)}")
        else:
            last_s = min((own.since_s for own in impacts), default=-math.inf)
        yield Verdict(
            CRASHED,
            ranks,
            host,
            since_s=last_s if math.isfinite(last_s) else None,
            certainty=0.98 if known else 0.6,
            reason="its process ended" if known else "it has no dump and is waited for",
            felt_by=len({waiter for own in impacts for waiter in own.waiters}),
            evidence=evidence,
            look_at=f"the log and exit status of {host or ranks_text(ranks)}, and its host's kernel log",
        )


def _still(graph: Graph, found: Waiting, paths: NetworkPaths) -> Iterator[Verdict]:
    felt = _impact_by_rank(found, wait_graph.STOPPED)
    for ranks, host in _by_host(graph, paths, felt):
        last_s = max(graph.last_activity_s(rank) for rank in ranks)
        failed = math.isfinite(graph.first_failure_s)
        lines = [f"{ranks_text(ranks)}: its last activity was at {moment_text(last_s)}"]
        if failed:
            lines.append(f"others gave up at {moment_text(graph.first_failure_s)}, and it has not noticed")
        lines += [line for rank in ranks for line in waiters_words(graph, felt[rank])][:4]
        # a stopped process reads no messages; one that reads them is alive, but its program does not continue
        left = sorted({peer for rank in ranks for peer in wait_graph.unread(graph, rank)})
        who = host or ranks_text(ranks)
        stuck = "is stopped, swaps, or hangs in a system call or its GPU"
        kind, reason = (
            RANK_NOT_JOINED,
            "it neither continues nor gives up, and has read all that was sent to it",
        )
        look_at = f"what {who} does instead: its stack, or whether it {stuck}"
        if left:
            lines.append(f"messages of {ranks_text(tuple(left))} wait to be read")
            kind, reason = SILENT, "it neither continues nor gives up"
            look_at = f"whether {who} {stuck}"
        yield Verdict(
            kind,
            ranks,
            host,
            since_s=last_s,
            certainty=0.9 if failed else 0.7,
            reason=reason,
            felt_by=len({waiter for rank in ranks for waiter in felt[rank].waiters} - set(ranks)),
            evidence=lines,
            look_at=look_at,
        )


def _not_joined(graph: Graph, found: Waiting) -> Iterator[Verdict]:
    for ranks, (felt, keys) in found.by_ranks(wait_graph.NOT_JOINED, wait_graph.SHORT).items():
        key = max(keys)
        rank = ranks[0]
        lines = []
        for own in sorted(set(keys))[:3]:
            if not own[1]:
                continue
            joined = len(graph.collectives.get(own, {}))
            lines.append(f"{graph.words(own)}: {joined} of {len(graph.members(own[0]))} ranks have joined")
            if graph.left_out(rank, own):
                lines.append(f"rank {rank} has continued with later operations of {graph.group_name(own[0])}")
        lines += waiters_words(graph, felt)
        opened = graph.open_nodes(rank)
        doing = f"waits in {graph.node_words(opened[0])}" if opened else "is in no operation"
        lines.append(
            f"rank {rank} {doing}; its last activity was at {moment_text(graph.last_activity_s(rank))}"
        )
        yield Verdict(
            RANK_NOT_JOINED,
            ranks,
            since_s=felt.since_s,
            certainty=0.95,
            reason="all waiting ranks wait for it, directly or indirectly, and it waits for none",
            felt_by=len(felt.waiters),
            evidence=lines,
            look_at=(
                f"what rank {rank} does instead of {graph.words(key) if key[1] else 'sending'}: its stack, its"
                " data loader, its branch of the program"
            ),
        )


def _circles(graph: Graph, found: Waiting) -> Iterator[Verdict]:
    peers = peers_of(graph) if found.circles else {}
    for circle in found.circles:
        ranks = tuple(sorted({node[0] for node in circle}))
        keys = sorted({(graph.entry(node).group, graph.entry(node).sequence) for node in circle})
        lines = [f"rank {node[0]} waits in {graph.node_words(node)}" for node in circle[:6]]
        stray = {rank: own for rank in ranks if (own := find_divergence(graph, rank, peers[rank]))}
        for rank, own in sorted(stray.items())[:3]:
            lines.append(
                f"rank {rank} called {own.did} where ranks with the same program called {own.instead}"
            )
        odd = _odd_one(graph, ranks, keys)
        if odd is not None:
            lines.append(f"all but rank {odd[0]} are in {graph.words(odd[1])}")
        culprits = ranks
        if len(stray) == 1:
            ((rank, only),) = stray.items()
            kind, culprits = RANK_NOT_JOINED if only.left_out else DEADLOCK, (rank,)
            reason = "it deviated from its program, which the other ranks with that program continued"
        elif odd is not None:
            kind, culprits = RANK_NOT_JOINED, (odd[0],)
            reason = "it alone is in another operation, the others are together"
        else:
            kind = DEADLOCK
            reason = "each waits for the next in a cycle, and none has deviated from its program"
        yield Verdict(
            kind,
            culprits,
            since_s=min(graph.entry(node).scheduled_s for node in circle),
            certainty=0.9,
            reason=reason,
            felt_by=len(ranks),
            evidence=lines,
            look_at=f"the order in which {ranks_text(culprits)} called {' and '.join(map(graph.words, keys[:3]))}",
        )


def _odd_one(graph: Graph, ranks: Sequence[int], keys: Sequence[Key]) -> tuple[int, Key] | None:
    """Return the one rank of a cycle that is missing where at least two others wait, if there is exactly one."""
    missing = set()
    for key in keys:
        absent = [rank for rank in graph.members(key[0]) if key[1] and graph.standing(rank, key) == ABSENT]
        if len(absent) == 1 and absent[0] in ranks and len(graph.collectives[key]) > 1:
            missing.add((absent[0], key))
    return min(missing) if len({rank for rank, _ in missing}) == 1 else None


def _control(graph: Graph, found: Waiting) -> list[Verdict]:
    return [
        Verdict(
            SLOW_IO,
            ranks,
            since_s=felt.since_s,
            certainty=0.8,
            reason="its operation has not started to move data, those of the others have",
            felt_by=len(felt.waiters),
            evidence=waiters_words(graph, felt),
            look_at=f"what rank {ranks[0]} does before data moves: memory registration, files, its control network",
        )
        for ranks, (felt, _) in found.by_ranks(wait_graph.CONTROL).items()
    ]
