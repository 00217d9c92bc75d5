"""The wait-for graph of ranks, followed to its ends: a rank that is gone or missing, messages in flight, or a cycle.

Edges lead from a rank's open operation to the peers that owe it messages. If a peer has sent them, the network is to
blame. If it has sent fewer, it is behind, and its own waits are followed in turn. Only message counts are used, no
clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from testbed.comm.flight_recorder import FAILED, SCHEDULED, Entry, PeerTraffic, RankDump
from testbed.measure.diagnosis.desync import nonblocking_operations
from testbed.measure.diagnosis.operation_graph import (
    ABSENT,
    JOINED,
    RECEIVES,
    UNKNOWN,
    Graph,
    Key,
    Node,
    noticed_losses,
)
from testbed.measure.diagnosis.thresholds import SAME_STALL_SHARE

NETWORK = "network"  # from the first rank to the second
NOT_JOINED = "not joined"
GONE = "gone"
STOPPED = "stopped"
CONTROL = "control"  # its operation is still in its control part
SHORT = "short"  # it has completed but sent fewer messages than expected
UNEXPLAINED = "unexplained"  # all have joined, and there are no message counts

_NOTHING = PeerTraffic()
_WELL = ("", "finished")
# exit reasons of ranks that ended because of other ranks
_GAVE_UP = re.compile(
    r"not done within|nothing within|lost peer|aborted|revoked|exit status 1", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Cause:
    """An end of the wait-for graph: the ranks at fault, and the operation that waits ((group, 0) for a message)."""

    kind: str
    ranks: tuple[int, ...]
    key: Key


@dataclass
class Impact:
    """A cause's impact: its start (on the direct waiters' clocks), its age, direct waits, and all waiting ranks."""

    since_s: float = math.inf
    age_s: float = 0.0
    direct: set[Node] = field(default_factory=set)
    waiters: set[int] = field(default_factory=set)


@dataclass
class Waiting:
    """The causes of all waits, and the cycles of nodes that wait only for each other."""

    causes: dict[Cause, Impact]
    circles: list[tuple[Node, ...]]

    def by_ranks(self, *kinds: str) -> dict[tuple[int, ...], tuple[Impact, list[Key]]]:
        """Return the causes of the given kinds, merged by ranks, with their impact and the operations that wait."""
        merged: dict[tuple[int, ...], tuple[Impact, list[Key]]] = {}
        for cause, felt in self.causes.items():
            if cause.kind in kinds:
                own, keys = merged.setdefault(cause.ranks, (Impact(), []))
                own.since_s, own.age_s = min(own.since_s, felt.since_s), max(own.age_s, felt.age_s)
                own.waiters |= felt.waiters
                own.direct |= felt.direct
                keys.append(cause.key)
        return merged


def gave_up(dump: RankDump) -> bool:
    """Return whether a rank or one of its operations ended because of other ranks."""
    return any(entry.state == FAILED for entry in dump.entries) or bool(_GAVE_UP.search(dump.ended))


def gone_ranks(graph: Graph) -> dict[int, str]:
    """Return the ranks that ended on their own, and how; leave out those that gave up because of others."""
    found = {
        rank: dump.ended
        for rank, dump in graph.dumps.items()
        if dump.ended not in _WELL and not gave_up(dump)
    }
    return {} if len(found) == len(graph.dumps) > 1 else found


def has_stopped(graph: Graph, rank: int) -> bool:
    """Return whether a rank that is not known to have ended has stopped making progress.

    There are two cases. If other ranks have failed and it has not, one of two conditions is required. It has waited
    longer than their timeout, or all messages that it sent have arrived (the kernel still sends those of a paused
    process). A rank with a failed NIC, in contrast, gives up in time. If none has failed, messages of several peers
    must be waiting for it.
    """
    dump = graph.dumps[rank]
    if dump.ended not in _WELL or gave_up(dump):
        return False
    if any(gone == rank for gone, _ in noticed_losses(graph, -math.inf)):
        return False  # it has closed its connections
    others = [own for own in graph.dumps.values() if own.rank != rank]
    impatient = [own.rank for own in others if gave_up(own)]
    if not impatient:
        return _all_came(graph, rank) and len(unread(graph, rank)) > 1
    if 2 * len(impatient) < len(others) or graph.last_activity_s(rank) >= graph.first_failure_s:
        return False
    patience_s = graph.first_failure_s - min(graph.open_since_s(other) for other in impatient)
    if dump.time_s - graph.open_since_s(rank) > patience_s:
        return True
    waits = any(graph.entry(node).waits_for for node in graph.open_nodes(rank))
    return _all_came(graph, rank) and (not waits or bool(unread(graph, rank)))


def _exchanged(graph: Graph, rank: int) -> Iterator[tuple[int, PeerTraffic, PeerTraffic]]:
    """Yield each peer of a rank's open operations, with the rank's counts and the peer's counts."""
    for node in graph.open_nodes(rank):
        for peer, own in graph.entry(node).peers.items():
            there = _other_part(graph, node, peer)
            if there is not None:
                yield peer, own, graph.entry(there).peers.get(rank, _NOTHING)


def _all_came(graph: Graph, rank: int) -> bool:
    """Return whether no rank is still waiting for messages that this rank has sent."""
    exchanged = _exchanged(graph, rank)
    return not any(theirs.missing and own.sent > theirs.received for _, own, theirs in exchanged)


def unread(graph: Graph, rank: int) -> set[int]:
    """Return the peers whose sent messages this rank has not read although it is waiting for them."""
    return {
        peer for peer, own, theirs in _exchanged(graph, rank) if own.missing and theirs.sent > own.received
    }


def _other_part(graph: Graph, node: Node, peer: int) -> Node | None:
    """Return a peer's part of an operation."""
    entry = graph.entry(node)
    if entry.sequence:
        return graph.node(peer, (entry.group, entry.sequence))
    return graph.counterpart(node, 0.0) if peer == entry.peer else None


class _Follower:
    def __init__(self, graph: Graph, gone: Iterable[int], clock_error_s: float) -> None:
        self.graph = graph
        self.gone = set(gone)
        self.clock_error_s = clock_error_s
        self.harmless = nonblocking_operations(graph)
        # if a rank is gone, others may look stopped only because they have not noticed it yet
        self.stopped = {rank for rank in graph.dumps if not self.gone and has_stopped(graph, rank)}

    def nexts(self, node: Node) -> list[Node | Cause]:
        """Return the nodes and causes that an open operation waits for directly."""
        rank = node[0]
        entry = self.graph.entry(node)
        key = (entry.group, entry.sequence)
        if fault := self._fault(rank, key):
            return fault
        return self._of_collective(node, entry, key) if entry.sequence else self._of_message(node, entry, key)

    def _fault(self, rank: int, key: Key) -> list[Node | Cause]:
        """Return the cause if a rank is gone or stopped, else an empty result."""
        if rank in self.gone:
            return [Cause(GONE, (rank,), key)]
        return [Cause(STOPPED, (rank,), key)] if rank in self.stopped else []

    def _of_collective(self, node: Node, entry: Entry, key: Key) -> list[Node | Cause]:
        graph, rank = self.graph, node[0]
        members = [peer for peer in graph.members(key[0]) if peer != rank]
        absent = [peer for peer in members if graph.standing(peer, key) in (ABSENT, UNKNOWN)]
        if missing := entry.waits_for:
            return [one for peer in missing for one in self._towards(node, entry, key, peer)]
        found: list[Node | Cause] = []
        for peer, own in entry.peers.items():
            there = graph.node(peer, key)
            theirs = graph.entry(there).peers.get(rank, _NOTHING) if there else _NOTHING
            if own.sent <= theirs.received:
                continue
            if there is None:
                found += self._behind(peer, key, node)
            elif theirs.missing:
                stopped = peer in self.stopped
                found.append(Cause(STOPPED, (peer,), key) if stopped else Cause(NETWORK, (rank, peer), key))
            elif graph.entry(there).state != "completed":
                found.append(there)
        if found:
            return found
        if absent and not entry.peers:
            return [one for peer in absent for one in self._behind(peer, key, node)]
        others = [graph.entry(other) for other in graph.collectives.get(key, {}).items() if other != node]
        if entry.started_s is None and any(other.started_s is not None for other in others):
            return [Cause(CONTROL, (rank,), key)]
        if not entry.peers:
            return [Cause(UNEXPLAINED, tuple(sorted(graph.collectives.get(key, {}))), key)]
        return [Cause(NOT_JOINED, (rank,), key)] if entry.state == SCHEDULED else []

    def _of_message(self, node: Node, entry: Entry, key: Key) -> list[Node | Cause]:
        peer = entry.peer
        if peer is None:
            return []
        there = self.graph.counterpart(node, self.clock_error_s) if peer in self.graph.dumps else None
        if there is None:
            return self._behind(peer, key, node)
        theirs = self.graph.entry(there)
        if theirs.started_s is None and not theirs.peers and theirs.state == SCHEDULED:
            return [there]
        sender, target = (peer, node[0]) if entry.name in RECEIVES else (node[0], peer)
        return self._fault(peer, key) or [Cause(NETWORK, (sender, target), key)]

    def _towards(self, node: Node, entry: Entry, key: Key, peer: int) -> list[Node | Cause]:
        """Return the next nodes or causes for a peer that owes messages to an open collective."""
        graph, rank = self.graph, node[0]
        standing = graph.standing(peer, key)
        if standing == JOINED:
            there = graph.node(peer, key)
            assert there is not None
            theirs = graph.entry(there)
            if fault := self._fault(peer, key):  # its last messages may not have left its transport
                return fault
            if theirs.peers.get(rank, _NOTHING).sent > entry.peers[peer].received:
                return [Cause(NETWORK, (peer, rank), key)]
            return [Cause(SHORT, (peer,), key)] if theirs.state == "completed" else [there]
        if standing in (ABSENT, UNKNOWN):
            return self._behind(peer, key, node)
        return [Cause(NETWORK, (peer, rank), key)]

    def _behind(self, peer: int, key: Key, waiter: Node) -> list[Node | Cause]:
        """Return the next nodes or causes for a peer that has not joined an operation."""
        if peer not in self.graph.dumps:
            return [Cause(GONE, (peer,), key)]
        if fault := self._fault(peer, key):
            return fault
        if key[1] and self.graph.left_out(peer, key):
            return [Cause(NOT_JOINED, (peer,), key)]
        nodes = [node for node in self.graph.open_nodes(peer) if node != waiter and node not in self.harmless]
        return [*nodes] if nodes else [Cause(NOT_JOINED, (peer,), key)]


def follow_waits(graph: Graph, gone: Iterable[int], clock_error_s: float) -> Waiting:
    """Follow all open operations to their causes; `gone` has the ranks that are known to have ended."""
    follower = _Follower(graph, gone, clock_error_s)
    nodes = [node for rank in graph.dumps if rank not in follower.gone for node in graph.open_nodes(rank)]
    nexts = {node: follower.nexts(node) for node in nodes}
    for node in [one for found in nexts.values() for one in found if isinstance(one, tuple)]:
        if node not in nexts:
            nexts[node] = follower.nexts(node)
    causes: dict[Cause, Impact] = {}
    circling: dict[Node, frozenset[Node]] = {}
    for node in nodes:
        reached, ends = _reach(nexts, node)
        for cause in ends:
            causes.setdefault(cause, Impact()).waiters.add(node[0])
        if not ends and node in reached:
            circling[node] = frozenset(reached)
    for node in nodes:
        for one in nexts[node]:
            if isinstance(one, Cause):
                _feel(graph, causes[one], one, node)
    return Waiting(_of_one_stall(causes), _circles(circling))


def _reach(nexts: dict[Node, list[Node | Cause]], start: Node) -> tuple[set[Node], set[Cause]]:
    """Return all nodes reachable from a node (itself only through a cycle), and all causes."""
    reached: set[Node] = set()
    ends: set[Cause] = set()
    pending = [start]
    while pending:
        for one in nexts.get(pending.pop(), ()):
            if isinstance(one, Cause):
                ends.add(one)
            elif one not in reached:
                reached.add(one)
                pending.append(one)
    return reached, ends


def _feel(graph: Graph, felt: Impact, cause: Cause, node: Node) -> None:
    """Record a direct wait for a cause, and its start."""
    entry = graph.entry(node)
    since_s = entry.scheduled_s
    for peer in cause.ranks:
        own = entry.peers.get(peer)
        if own is not None:
            times = (own.expected_first_s, own.received_last_s)
            since_s = max([since_s, *(value for value in times if value is not None)])
    felt.direct.add(node)
    felt.since_s = min(felt.since_s, since_s)
    felt.age_s = max(felt.age_s, graph.seen_until_s(node) - since_s)


def _of_one_stall(causes: dict[Cause, Impact]) -> dict[Cause, Impact]:
    """Leave out waits that are much younger than the oldest one, since they follow from ranks giving up."""
    oldest_s = max((felt.age_s for felt in causes.values()), default=0.0)
    return {
        cause: felt
        for cause, felt in sorted(causes.items())
        if cause.kind == GONE or felt.age_s >= SAME_STALL_SHARE * oldest_s
    }


def _circles(circling: dict[Node, frozenset[Node]]) -> list[tuple[Node, ...]]:
    """Return the strongly connected groups of nodes: those that all reach each other."""
    found: list[tuple[Node, ...]] = []
    left = set(circling)
    while left:
        node = min(left)
        own = {other for other in circling[node] if node in circling.get(other, ())} | {node}
        left -= own
        found.append(tuple(sorted(own)))
    return found


def waiters_words(graph: Graph, felt: Impact) -> list[str]:
    """Describe the first direct waits for a cause."""
    return [f"rank {node[0]} waits in {graph.node_words(node)}" for node in sorted(felt.direct)[:4]]
