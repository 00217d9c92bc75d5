"""What a rank measures: operation records, TCP_INFO readings, its host's counters."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport.event_loop import StallDetector
from testbed.comm.transport.socket_view import NoSocketView, SocketView
from testbed.comm.transport.sockets import WireCounts, changed_options
from testbed.net.links.protocol_counters import ProtocolCounts, read_protocol_counts
from testbed.workload.plan import Computing, GroupCollective, Message, Operation, Pause

LOOKS = 50  # in a step, where nothing else wakes a rank
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.001, 0.020
LATE_S = 0.0001  # nothing is late where computing takes no time, but for the finest steps of its timers
REAL_WAIT_S, REAL_LATE_S = 0.05, 0.05


@dataclass(frozen=True)
class HostCounts:
    """What a host's IPv4 and its rank's connections had counted at one moment; None where the kernel does not tell.

    peers: of the connections with each peer.
    """

    host: ProtocolCounts
    own: WireCounts | None
    peers: Mapping[int, WireCounts] | None = None


class HostMonitor:
    """Of one rank in a namespace that it has for itself. `begin` before each step, `end` after it."""

    def __init__(self, sockets: SocketView) -> None:
        self._sockets = sockets
        self._exact = clock_here() == "free"
        self._before: HostCounts | None = None
        self._open: frozenset[object] = frozenset()
        self._options = sockets.socket_options()
        wait_s = LONGEST_WAIT_S if self._exact else REAL_WAIT_S
        late_s = LATE_S if self._exact else REAL_LATE_S
        self._stall_detector = sockets.stall_detector = StallDetector(wait_s, wait_s + late_s)

    def begin(self) -> None:
        """A step is going to start."""
        # the rank's own first, and last in the end: what comes between is taken for its own, not for somebody's
        peers = self._sockets.peer_counts()
        self._open = self._sockets.open_connections()
        self._before = HostCounts(read_protocol_counts(), self._total(peers), peers)
        self._stall_detector.gaps.clear()

    def _changed_options(self) -> list[str]:
        """What somebody has changed of this rank's sockets since they were looked at last."""
        known, self._options = self._options, self._sockets.socket_options()
        return [
            f"the connection with rank {which[0]}: {words}"
            for which, options in self._options.items()
            for words in changed_options(known.get(which, {}), options)
        ]

    def _total(self, peers: Mapping[int, WireCounts] | None) -> WireCounts | None:
        return None if peers is None else self._sockets.wire_counts(peers)

    def end(self, start_s: float, end_s: float) -> dict[str, Any]:
        """What was seen during the step, ready for JSON."""
        before = self._before
        assert before is not None
        host = read_protocol_counts()
        peers, read_s = self._sockets.peer_counts(), time.monotonic()
        after = HostCounts(host, self._total(peers), peers)
        # where nobody looks meanwhile, no stall shorter than the step is noticed
        wait_s = end_s - start_s if isinstance(self._sockets, NoSocketView) else self._stall_detector.wait_s
        # of a connection that was closed meanwhile, as when a peer is lost, nobody tells any more what it carried
        whole = self._open <= self._sockets.open_connections()
        found: dict[str, Any] = {"traffic": traffic(before, after) if whole else None, "looks_s": wait_s}
        stalls = [
            {"at_s": max(0.0, since_s - start_s), "for_s": until_s - max(since_s, start_s)}
            for since_s, until_s in self._stall_detector.gaps
            if until_s > start_s and since_s < end_s
        ]
        if stalls:
            found["stalls"] = stalls
        if changed := self._changed_options():
            found["socket_changes"] = changed
        if whole and self._sockets.counts_payload:
            found |= witnesses(before, after, read_s)
        if self._exact:
            self._stall_detector.wait_s = min(max((end_s - start_s) / LOOKS, SHORTEST_WAIT_S), wait_s)
            self._stall_detector.gap_s = self._stall_detector.wait_s + LATE_S
        return found


def retransmitted_segments() -> int:
    """Segments that TCP has sent again from this process's host so far."""
    return read_protocol_counts().tcp_resent


def witnesses(before: HostCounts, after: HostCounts, read_s: float) -> dict[str, Any]:
    """Return what the kernel says of the messages that came in a step: payload and headers by peer, and the last byte.

    read_s: when `after` was read. `last_byte_s` is exact to one of the kernel's ticks, and missing where it is not
    known; so are all of them where the kernel does not tell.
    """
    if before.peers is None or after.peers is None:
        return {}
    early = {peer: counts.bytes_in for peer, counts in before.peers.items()}
    grown = {peer: counts.bytes_in - early.get(peer, 0) for peer, counts in after.peers.items()}
    found: dict[str, Any] = {
        "received_bytes": {str(peer): count for peer, count in grown.items() if count > 0}
    }
    quiet_s = min((after.peers[peer].quiet_s for peer, count in grown.items() if count > 0), default=math.inf)
    if math.isfinite(quiet_s):
        found["last_byte_s"] = read_s - quiet_s
    return found


def traffic(before: HostCounts, after: HostCounts) -> dict[str, Any] | None:
    """What the host's IPv4 and the rank's connections carried between two counts, each way; None: not known.

    `opened`: connections, or subflows of them, that came meanwhile: some of their first segments are the listener's.
    """
    early, late = before.own, after.own
    if early is None or late is None or late.subflows < early.subflows:
        return None
    found: dict[str, Any] = {"opened": late.subflows - early.subflows}
    found["resent"] = after.host.tcp_resent - before.host.tcp_resent
    for way, segments in (("out", "segments_out"), ("in", "segments_in")):
        names = {
            "packets": f"{way}_packets",
            "headers": "out_headers" if way == "out" else "in_packets",
            "bytes": f"{way}_bytes",
            **{word: f"{word}_{way}" for word in ("udp", "icmp")},
        }
        found[way] = {
            **{word: getattr(after.host, name) - getattr(before.host, name) for word, name in names.items()},
            "own_packets": getattr(late, segments) - getattr(early, segments),
            "own_bytes": getattr(late, f"bytes_{way}") - getattr(early, f"bytes_{way}"),
        }
    # links that flip bits on purpose bring the ranks packets that no connection takes
    found["in"]["packets"] -= after.host.in_errors - before.host.in_errors
    return found


# what grows as a connection does something
_DONE = ("bytes_acked", "retransmits", "went_back", "out_of_sequence")


class SocketSampler:
    """Reads all connections every `interval_s`, in a thread of its own, and keeps what changed. A context manager."""

    def __init__(self, rank: int, sockets: SocketView, interval_s: float) -> None:
        self.records: list[dict[str, Any]] = []
        self._rank = rank
        self._sockets = sockets
        self._interval_s = interval_s
        self._seen: dict[tuple[Any, ...], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="socket-sampler", daemon=True)

    def __enter__(self) -> SocketSampler:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.sample()

    def sample(self) -> None:
        """One reading of every connection that has done something since the last."""
        time_s = time.monotonic()
        for peer, key, figures in self._sockets.snapshots():
            connection = peer, key
            done = sum(figures.get(name, 0) for name in _DONE)
            if self._seen.get(connection) != done:
                self._seen[connection] = int(done)
                marks = {"dscp": key.traffic.dscp, "channel": key.channel}
                self.records.append({"time_s": time_s, "rank": self._rank, "peer": peer, **marks, **figures})


Sample = dict[str, Any]


def shared_streams(plan: Iterable[Operation]) -> frozenset[str]:
    """Those that several of a rank's operations are on."""
    counts = Counter(operation.stream for operation in plan)
    return frozenset(stream for stream, count in counts.items() if count > 1)


def operation_sample(
    head: Mapping[str, Any],
    operation: Operation,
    index: int,
    span: tuple[float, float],
    itemsize: int,
    shared: frozenset[str] = frozenset(),
    late_s: float | None = None,
) -> Sample:
    """Of one operation. head: variant, trial, step and rank; span: when it began and ended; shared: streams.

    late_s: how long after the begin of the span it was begun in truth, where that is known.
    """
    return {
        **head,
        "operation": _word(operation),
        "index": index,
        "name": operation.name,
        "start_s": span[0],
        "end_s": span[1],
        "bytes": getattr(operation, "numel", 0) * itemsize,
        **_marks(head["rank"], operation, shared),
        **({} if late_s is None else {"late_s": round(late_s, 6)}),
    }


def step_sample(
    head: Mapping[str, Any],
    name: str,
    span: tuple[float, float],
    sent_bytes: Mapping[int, int],
    elements: tuple[int, int],
    seen: Mapping[str, Any],
) -> Sample:
    """Of all of it. sent_bytes: by peer; elements: wrong ones, and those that were checked; seen: of the host."""
    return {
        **head,
        "operation": "step",
        "name": name,
        "start_s": span[0],
        "end_s": span[1],
        "bytes": sum(sent_bytes.values()),
        "sent_bytes": {str(peer): count for peer, count in sent_bytes.items() if count},
        "wrong": elements[0],
        "checked": elements[1],
        **seen,
    }


def _marks(rank: int, operation: Operation, shared: frozenset[str]) -> dict[str, str]:
    """Its stream, if not its alone, and what is the same at both ends of a message."""
    if isinstance(operation, Message):
        here, there = (rank, operation.peer) if operation.sends else (operation.peer, rank)
        return {"stream": operation.stream, "message": f"{here}>{there}/{operation.tag}"}
    return {"stream": operation.stream} if operation.stream in shared else {}


def _word(operation: Operation) -> str:
    """An operation's kind in records."""
    if isinstance(operation, Computing | Pause):
        return operation.kind
    if isinstance(operation, Message):
        return "send" if operation.sends else "recv"
    assert isinstance(operation, GroupCollective)
    return operation.collective
