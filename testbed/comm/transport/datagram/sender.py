"""The sending half of a pair, without sockets: what may be sent now, and when to check again.

`make_sender` builds it for a path, a NIC and a clock, from `DatagramSettings`, the scenario's settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from testbed.clock import clock_here
from testbed.comm.transport.datagram.controls import CONTROLS, MIN_WINDOW_PACKETS, Control, Credits, Limits
from testbed.comm.transport.datagram.packets import MAX_AHEAD, Ack
from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Feedback, Item, Recovery
from testbed.comm.transport.datagram.rtt_estimator import MIN_RTO_S, REAL_TIME_MIN_RTO_S, RttEstimator
from testbed.comm.transport.datagram.spraying import Spray

# how much a late timer may catch up: in real time, timers are tens of microseconds late
BURST_S = 100e-6
# acknowledgements are requested this often per window, and at least every REQUEST_ACK_EVERY packets
ACKS_PER_WINDOW = 8
REQUEST_ACK_EVERY = 16


class Sender:
    """A sender: the recovery decides what to send, and the control how much may be sent now."""

    def __init__(self, recovery: Recovery, control: Control) -> None:
        self.recovery, self.control = recovery, control
        self.marked = 0  # packets with an ECN mark
        self.lost = 0  # lost packets
        self.timed_out = 0  # lost packets found by a timeout
        self._free_s = -math.inf  # when the rate allows another packet
        self._packet_s = 0.0  # the packet time at the rate used for `_free_s`
        self._recheck_s = math.inf  # when the rate may change
        self._wanted_s = -math.inf  # when credits were last requested
        self._wanted = 0
        self._rate_limited = False  # whether the rate is the current limit
        self._since_ack_request = 0  # packets since the last request for an acknowledgement

    @property
    def idle(self) -> bool:
        """Whether everything has arrived."""
        return self.recovery.idle

    def extend(self, packets: int) -> None:
        """Add a message of `packets` packets."""
        self.recovery.extend(packets)

    def next_run(self, max_packets: int, now_s: float) -> range:
        """Return consecutive data packets that may be sent now; empty if `next_items` has to decide."""
        return self.recovery.next_run(max(0, min(max_packets, self._room(now_s))))

    def next_items(self, max_packets: int, now_s: float) -> list[Item]:
        """Return up to `max_packets` items that may be sent now. Nothing changes until `on_sent`."""
        room = self._room(now_s)
        return self.recovery.next_items(min(max_packets, room)) if room > 0 else []

    def _room(self, now_s: float) -> int:
        control = self.control
        room = 1 << 30
        if control.window_packets < math.inf:
            room = max(1, int(control.window_packets)) - self.recovery.in_flight
        if isinstance(control, Credits):
            room = min(room, control.left)
        self._rate_limited = False
        self._recheck_s = control.advance(now_s)
        if control.rate_bps < math.inf and room > 0:
            packet_s = control.limits.packet_bytes * 8 / control.rate_bps
            # rescale the rest of the wait to the new rate
            if self._free_s > now_s and packet_s != self._packet_s:
                self._free_s = now_s + (self._free_s - now_s) * packet_s / self._packet_s
                self._packet_s = packet_s
            since_s = max(self._free_s, now_s - BURST_S)
            room = min(room, math.floor((now_s + packet_s / 1000 - since_s) / packet_s) + 1)
            self._rate_limited = room <= 0
        return room

    def wants_ack(self, last: bool) -> bool:
        """Return whether the next packet requests an acknowledgement. last: nothing can be sent after it for now."""
        self._since_ack_request += 1
        if last or self._since_ack_request >= self._ack_request_interval:
            self._since_ack_request = 0
            return True
        return False

    def ack_requests(self, count: int) -> slice:
        """Return which of the next `count` packets request an acknowledgement, besides the last."""
        every = self._ack_request_interval
        first = max(0, every - 1 - self._since_ack_request)
        self._since_ack_request = 0
        return slice(first, count, every)

    @property
    def _ack_request_interval(self) -> int:
        window = self.control.window_packets
        return (
            REQUEST_ACK_EVERY
            if window == math.inf
            else min(REQUEST_ACK_EVERY, max(1, int(window) // ACKS_PER_WINDOW))
        )

    def on_sent(self, item: Item, path: int, now_s: float) -> int:
        """Record that an item was sent; return its serial."""
        self._count(1, now_s)
        return self.recovery.on_sent(item, path, now_s)

    def on_run_sent(self, numbers: range, path: int, now_s: float) -> int:
        """Record that these packets were sent in order; return the first one's serial."""
        self._count(len(numbers), now_s)
        return self.recovery.on_run_sent(numbers, path, now_s)

    def _count(self, packets: int, now_s: float) -> None:
        control = self.control
        if control.rate_bps < math.inf:
            packet_s = control.limits.packet_bytes * 8 / control.rate_bps
            self._free_s = max(self._free_s, now_s - BURST_S) + packets * packet_s
            self._packet_s = packet_s
        control.on_sent(packets, now_s)

    def on_ack(self, ack: Ack, now_s: float) -> Feedback:
        """Handle an acknowledgement. Raises ValueError if no receiver can have sent it."""
        return self._apply_feedback(self.recovery.on_ack(ack, now_s), now_s)

    def on_timer(self, now_s: float) -> Feedback:
        """Handle timeouts."""
        return self._apply_feedback(self.recovery.on_timer(now_s), now_s)

    def _apply_feedback(self, feedback: Feedback, now_s: float) -> Feedback:
        self.marked += feedback.marked
        self.lost += feedback.lost
        self.timed_out += feedback.timed_out
        self.control.on_feedback(feedback, now_s)
        return feedback

    def wanted_credits(self, now_s: float) -> int | None:
        """Return the total of packets to request from a granting receiver; None if its information is current."""
        control = self.control
        if not isinstance(control, Credits):
            return None
        pending = self.recovery.pending
        wanted = control.used + pending
        again_s = self._wanted_s + self.recovery.round_trips.rto_s
        if wanted <= control.granted or (wanted <= self._wanted and now_s < again_s):
            return None
        self._wanted, self._wanted_s = wanted, now_s
        return wanted

    @property
    def due_s(self) -> float:
        """The time at which `on_timer`, `next_items` or `wanted_credits` may have new results."""
        due_s = self.recovery.due_s
        control = self.control
        if self._rate_limited and self.recovery.pending:
            due_s = min(due_s, self._free_s, self._recheck_s)
        if isinstance(control, Credits) and control.used + self.recovery.pending > control.granted:
            due_s = min(due_s, self._wanted_s + self.recovery.round_trips.rto_s)
        return due_s

    # ---- statistics

    def snapshot(self, acked_bytes: int) -> dict[str, float]:
        """Return the fields of `sockets.snapshot_connection`, with parity packets and marked packets.

        The window is 0 if there is none.
        """
        recovery, window = self.recovery, self.control.window_packets
        return {
            "rtt_s": recovery.round_trips.smoothed_s,
            "congestion_window_segments": window if window < math.inf else 0,
            "retransmits": recovery.resent,
            "bytes_acked": acked_bytes,
            "parity": recovery.parity_sent,
            "marked": self.marked,
        }

    def totals(self, settings: DatagramSettings, receiver: Receiver, spray: Spray | None) -> dict[str, Any]:
        """Return totals of both directions, in packets, seconds and bit/s. packets_twice: duplicates."""
        recovery, control = self.recovery, self.control
        totals: dict[str, Any] = {
            "recovery": settings.recovery,
            "control": settings.control,
            "round_trip_s": round(recovery.round_trips.smoothed_s, 6),
            "packets_sent": sum(path.serial for path in recovery.paths.values()),
            "packets_resent": recovery.resent,
            "parity_sent": recovery.parity_sent,
            "packets_lost": self.lost,
            "packets_late": self.timed_out,
            "packets_marked": self.marked,
            "packets_received": sum(path.received for path in receiver.seen.values()),
            "packets_mended": receiver.recovered,
            "packets_twice": receiver.duplicates,
        }
        if control.window_packets < math.inf:
            totals["window_packets"] = round(control.window_packets, 1)
        if control.rate_bps < math.inf:
            totals["rate_bps"] = round(control.rate_bps)
        if spray is not None:
            totals["paths"] = [state.value for state in spray.states]
            totals["paths_denied"] = spray.denied
        return totals

    def describe(self, receiver: Receiver) -> str:
        """Return, as text, the state of a pair, to explain why nothing arrives."""
        recovery = self.recovery
        waiting = recovery.end - recovery.low
        unacknowledged = f"{waiting} packets not acknowledged, {recovery.in_flight} of them in flight"
        missing = receiver.bits.bit_length() - receiver.bits.bit_count()
        return f"{unacknowledged}; {missing} missing before later received ones"


# In real time, ranks wait for a CPU longer than packets are in flight. Constant windows are extended by this much to
# hide that, for all peers together: the shortest queues take 64 packets.
LATE_HOST_PACKETS = 48
LATE_HOST_S = 0.005  # time that late hosts add to a round trip
# a rare, longer delay: windows grow by what a NIC sends in that time, as long as nothing is lost
LATE_PEER_S = 0.030


class Route(NamedTuple):
    """The known properties of a pair's path.

    Attributes:
        window_bytes: Window of the control `window`.
        line_bps: Rate of this rank's NIC.
        path_bps: Rate of the path's narrowest link; 0 if unknown.
        empty_s: Round trip of the empty path; infinite if unknown.
        peers: The number of other ranks.
    """

    window_bytes: int
    line_bps: float
    path_bps: float
    empty_s: float
    peers: int


def make_sender(settings: DatagramSettings, packet_bytes: int, round_trip_s: float, route: Route) -> Sender:
    """Return the sender of a pair.

    Args:
        settings: Recovery and control.
        packet_bytes: Size of a full packet, as links count it.
        round_trip_s: The initial estimate.
        route: The known properties of the path.
    """
    window_bytes, line_bps, path_bps, empty_s, peers = route
    exact = clock_here() == "free"
    host_s, least_rto_s, min_window_packets, late_packets = 0.0, MIN_RTO_S, MIN_WINDOW_PACKETS, 0.0
    if not exact:
        host_s, least_rto_s = LATE_HOST_S, REAL_TIME_MIN_RTO_S
        min_window_packets = max(MIN_WINDOW_PACKETS, LATE_HOST_PACKETS / peers)
        late_packets = min(LATE_PEER_S * line_bps / 8 / packet_bytes, MAX_AHEAD / 8)
    if settings.window_bytes is not None:
        min_window_packets, late_packets, path_bps = 1.0, 0.0, 0.0
    # feedback on a packet comes after its batch has left, and takes at least the empty path's round trip
    least_rto_s = max(least_rto_s, REQUEST_ACK_EVERY * packet_bytes * 8 / line_bps)
    if empty_s < math.inf:
        round_trip_s = max(round_trip_s, empty_s)
    limits = Limits(
        packet_bytes,
        window_bytes,
        line_bps,
        settings.rate_scale,
        host_s,
        min_window_packets,
        late_packets,
        path_bps,
        empty_s,
    )
    round_trips = RttEstimator(round_trip_s, least_rto_s)
    kind = RECOVERIES[settings.recovery]
    groups = {} if kind.code is None else {"data": settings.data, "parity": settings.parity}
    return Sender(kind(round_trips, **groups), CONTROLS[settings.control](limits, round_trips))


# the window exceeds the bandwidth-delay product, because one acknowledgement covers several packets
WINDOW_PRODUCTS = 1.25


@dataclass(frozen=True)
class DatagramSettings:
    """The settings of a datagram transport.

    Attributes:
        recovery: A name of RECOVERIES.
        control: A name of CONTROLS.
        data: Data packets of a group of an erasure code.
        parity: Parity packets of a group.
        paths: Source ports over which packets are sprayed; 1 for no spraying.
        window_bytes: Window of the control `window`; None: derived from the path.
        rate_scale: Ratio of emulated to real rates.
    """

    recovery: str = "selective_repeat"
    control: str = "window"
    data: int = 32
    parity: int = 8
    paths: int = 1
    window_bytes: int | None = None
    rate_scale: float = 1.0
