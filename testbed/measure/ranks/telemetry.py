"""The measurements of a rank: operation records, TCP_INFO readings, and its host's counters."""

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

LOOKS = 50  # wake-ups in a step if nothing else wakes a rank
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.001, 0.020
LATE_S = 0.0001  # timer resolution; on an idle CPU nothing else is late
REAL_WAIT_S, REAL_LATE_S = 0.05, 0.05


@dataclass(frozen=True)
class HostCounts:
    """Counters of a host's IPv4 and of its rank's connections at one point in time; None if the kernel lacks them.

    `peers` has the counters of the connections with each peer.
    """

    host: ProtocolCounts
    own: WireCounts | None
    peers: Mapping[int, WireCounts] | None = None


class HostMonitor:
    """A monitor of a rank's own network namespace; call `begin` before each step and `end` after it."""

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
        """Read all counters before a step."""
        # the rank's own counters are read first here and last at the end, so packets between the readings count as its
        # own
        peers = self._sockets.peer_counts()
        self._open = self._sockets.open_connections()
        self._before = HostCounts(read_protocol_counts(), self._total(peers), peers)
        self._stall_detector.gaps.clear()

    def _changed_options(self) -> list[str]:
        """Return changes of this rank's socket options since the last call."""
        known, self._options = self._options, self._sockets.socket_options()
        return [
            f"the connection with rank {key[0]}: {change}"
            for key, options in self._options.items()
            for change in changed_options(known.get(key, {}), options)
        ]

    def _total(self, peers: Mapping[int, WireCounts] | None) -> WireCounts | None:
        return None if peers is None else self._sockets.wire_counts(peers)

    def end(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return the observations of the step, as data for JSON."""
        before = self._before
        assert before is not None
        host = read_protocol_counts()
        peers, read_s = self._sockets.peer_counts(), time.monotonic()
        after = HostCounts(host, self._total(peers), peers)
        # without a stall detector, a stall shorter than the step goes unnoticed
        wait_s = end_s - start_s if isinstance(self._sockets, NoSocketView) else self._stall_detector.wait_s
        # the traffic of a connection that was closed during the step, such as that of a lost peer, is unknown
        whole = self._open <= self._sockets.open_connections()
        found: dict[str, Any] = {"traffic": host_traffic(before, after) if whole else None, "looks_s": wait_s}
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
            found |= kernel_observations(before, after, read_s)
        if self._exact:
            self._stall_detector.wait_s = min(max((end_s - start_s) / LOOKS, SHORTEST_WAIT_S), wait_s)
            self._stall_detector.gap_s = self._stall_detector.wait_s + LATE_S
        return found


def retransmitted_segments() -> int:
    """Return the number of segments that TCP has retransmitted from this process's host so far."""
    return read_protocol_counts().tcp_resent


def kernel_observations(before: HostCounts, after: HostCounts, read_s: float) -> dict[str, Any]:
    """Return the kernel's view of the messages received in a step: bytes by peer, and the time of the last byte.

    `read_s` is when `after` was read. `last_byte_s` is exact to a kernel tick, and missing if unknown. The result is
    empty if the kernel does not report the counters.
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


def host_traffic(before: HostCounts, after: HostCounts) -> dict[str, Any] | None:
    """Return the traffic of the host's IPv4 and of the rank's connections between two readings; None if unknown.

    `opened` counts new connections or subflows, since some of their first segments belong to the listener.
    """
    early, late = before.own, after.own
    if early is None or late is None or late.subflows < early.subflows:
        return None
    found: dict[str, Any] = {"opened": late.subflows - early.subflows}
    found["resent"] = after.host.tcp_resent - before.host.tcp_resent
    for direction, segments in (("out", "segments_out"), ("in", "segments_in")):
        names = {
            "packets": f"{direction}_packets",
            "headers": "out_headers" if direction == "out" else "in_packets",
            "bytes": f"{direction}_bytes",
            **{protocol: f"{protocol}_{direction}" for protocol in ("udp", "icmp")},
        }
        found[direction] = {
            **{key: getattr(after.host, name) - getattr(before.host, name) for key, name in names.items()},
            "own_packets": getattr(late, segments) - getattr(early, segments),
            "own_bytes": getattr(late, f"bytes_{direction}") - getattr(early, f"bytes_{direction}"),
        }
    # packets corrupted by links reach the host, but no connection accepts them
    found["in"]["packets"] -= after.host.in_errors - before.host.in_errors
    return found


# counters that grow with a connection's activity
_ACTIVITY = ("bytes_acked", "retransmits", "went_back", "out_of_sequence")


class SocketSampler:
    """A context manager that reads all connections every `interval_s` in a thread and records the active ones."""

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
        """Record a reading of every connection that was active since the last one."""
        time_s = time.monotonic()
        for peer, key, figures in self._sockets.snapshots():
            connection = peer, key
            activity = sum(figures.get(name, 0) for name in _ACTIVITY)
            if self._seen.get(connection) != activity:
                self._seen[connection] = int(activity)
                marks = {"dscp": key.traffic.dscp, "channel": key.channel}
                self.records.append({"time_s": time_s, "rank": self._rank, "peer": peer, **marks, **figures})


Sample = dict[str, Any]


def shared_streams(plan: Iterable[Operation]) -> frozenset[str]:
    """Return the streams that more than one of a rank's operations use."""
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
    """Return the sample of one operation.

    Args:
        head: Variant, trial, step and rank.
        operation: The operation.
        index: Its index in the plan.
        span: Its start and end.
        itemsize: Bytes of an element.
        shared: Streams that several operations use.
        late_s: Time from the start of the span to the operation's actual start, if known.
    """
    return {
        **head,
        "operation": _kind(operation),
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
    """Return the sample of a whole step.

    Args:
        head: Variant, trial, step and rank.
        name: Name of the variant.
        span: Start and end of the step.
        sent_bytes: Payload bytes sent to each peer.
        elements: Number of wrong elements and of checked ones.
        seen: Observations of the host.
    """
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
    """Return an operation's stream, if shared, and the key that both ends of a message have."""
    if isinstance(operation, Message):
        sender, receiver = (rank, operation.peer) if operation.sends else (operation.peer, rank)
        return {"stream": operation.stream, "message": f"{sender}>{receiver}/{operation.tag}"}
    return {"stream": operation.stream} if operation.stream in shared else {}


def _kind(operation: Operation) -> str:
    """Return an operation's kind in records."""
    if isinstance(operation, Computing | Pause):
        return operation.kind
    if isinstance(operation, Message):
        return "send" if operation.sends else "recv"
    assert isinstance(operation, GroupCollective)
    return operation.collective
