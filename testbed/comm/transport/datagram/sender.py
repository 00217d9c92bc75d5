"""The sending half of a pair, without sockets: what may be sent now, and when to look again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from testbed.clock import clock_here
from testbed.comm.transport.datagram.controls import CONTROLS, MIN_WINDOW_PACKETS, Control, Credits, Limits
from testbed.comm.transport.datagram.packets import MAX_AHEAD, Ack
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Feedback, Item, Recovery
from testbed.comm.transport.datagram.rtt_estimator import MIN_RTO_S, REAL_TIME_MIN_RTO_S, RttEstimator

# of a sender's rate, what a late timer may catch up with: by the real clock timers come tens of microseconds late
BURST_S = 100e-6
# an acknowledgement is asked for so many times in a window, and every so many packets at least
ACKS_PER_WINDOW = 8
REQUEST_ACK_EVERY = 16


class Sender:
    """recovery says what to send, control how much of it now."""

    def __init__(self, recovery: Recovery, control: Control) -> None:
        self.recovery, self.control = recovery, control
        self.marked = 0  # packets that the network has marked
        self.lost = 0  # packets that were found to be lost
        self.late = 0  # of these by a time-out of their path
        self._free_s = -math.inf  # when the rate allows another packet
        self._packet_s = 0.0  # what a packet takes at the rate by which that was reckoned
        self._look_s = math.inf  # when the rate may be another one
        self._wanted_s = -math.inf  # when the receiver was last told what is wanted
        self._wanted = 0
        self._paced = False  # whether it is the rate that allows no more now
        self._unasked = 0  # packets since the last that asks for an acknowledgement

    @property
    def idle(self) -> bool:
        """Whether all has come."""
        return self.recovery.idle

    def extend(self, packets: int) -> None:
        """There is a message more, of so many packets."""
        self.recovery.extend(packets)

    def fresh(self, most: int, now_s: float) -> range:
        """Packets of data in a row that may be sent now; empty where `items` is to be asked."""
        return self.recovery.fresh(max(0, min(most, self._room(now_s))))

    def items(self, most: int, now_s: float) -> list[Item]:
        """What may be sent now, at most so many; nothing changes until `sent` says so."""
        room = self._room(now_s)
        return self.recovery.items(min(most, room)) if room > 0 else []

    def _room(self, now_s: float) -> int:
        control = self.control
        room = 1 << 30
        if control.window_packets < math.inf:
            room = max(1, int(control.window_packets)) - self.recovery.under_way
        if isinstance(control, Credits):
            room = min(room, control.left)
        self._paced = False
        self._look_s = control.passed(now_s)
        if control.rate_bps < math.inf and room > 0:
            packet_s = control.limits.packet_bytes * 8 / control.rate_bps
            # what is left of the wait goes at the new rate
            if self._free_s > now_s and packet_s != self._packet_s:
                self._free_s = now_s + (self._free_s - now_s) * packet_s / self._packet_s
                self._packet_s = packet_s
            since_s = max(self._free_s, now_s - BURST_S)
            room = min(room, math.floor((now_s + packet_s / 1000 - since_s) / packet_s) + 1)
            self._paced = room <= 0
        return room

    def asks(self, last: bool) -> bool:
        """Whether the packet that is sent next asks for an acknowledgement. last: nothing can be sent after it now."""
        self._unasked += 1
        if last or self._unasked >= self._ask_every:
            self._unasked = 0
            return True
        return False

    def asking(self, count: int) -> slice:
        """Which of so many packets that are sent next ask for an acknowledgement, beside the last of them."""
        every = self._ask_every
        first = max(0, every - 1 - self._unasked)
        self._unasked = 0
        return slice(first, count, every)

    @property
    def _ask_every(self) -> int:
        window = self.control.window_packets
        return (
            REQUEST_ACK_EVERY
            if window == math.inf
            else min(REQUEST_ACK_EVERY, max(1, int(window) // ACKS_PER_WINDOW))
        )

    def sent(self, item: Item, path: int, now_s: float) -> int:
        """It was sent; its serial."""
        self._count(1, now_s)
        return self.recovery.sent(item, path, now_s)

    def sent_run(self, numbers: range, path: int, now_s: float) -> int:
        """These were sent, one after the other; the serial of the first."""
        self._count(len(numbers), now_s)
        return self.recovery.sent_run(numbers, path, now_s)

    def _count(self, packets: int, now_s: float) -> None:
        control = self.control
        if control.rate_bps < math.inf:
            packet_s = control.limits.packet_bytes * 8 / control.rate_bps
            self._free_s = max(self._free_s, now_s - BURST_S) + packets * packet_s
            self._packet_s = packet_s
        control.sent(packets, now_s)

    def heard(self, ack: Ack, now_s: float) -> Feedback:
        """An acknowledgement has come. ValueError for what no receiver can have said."""
        return self._take(self.recovery.heard(ack, now_s), now_s)

    def on_timer(self, now_s: float) -> Feedback:
        """Time has passed."""
        return self._take(self.recovery.on_timer(now_s), now_s)

    def _take(self, news: Feedback, now_s: float) -> Feedback:
        self.marked += news.marked
        self.lost += news.lost
        self.late += news.late
        self.control.heard(news, now_s)
        return news

    def wants(self, now_s: float) -> int | None:
        """What to tell a receiver that grants: packets wanted in all. None where it has been told, and answers."""
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
        """When to look again: `on_timer`, `items` or `wants` may have something then."""
        due_s = self.recovery.due_s
        control = self.control
        if self._paced and self.recovery.pending:
            due_s = min(due_s, self._free_s, self._look_s)
        if isinstance(control, Credits) and control.used + self.recovery.pending > control.granted:
            due_s = min(due_s, self._wanted_s + self.recovery.round_trips.rto_s)
        return due_s


# By the real clock ranks wait for a processor, longer than packets are under way. Of a window of one size what covers
# for that, for all peers together: the shortest queues hold 64 packets.
LATE_HOST_PACKETS = 48
LATE_HOST_S = 0.005  # what they add to a round trip
# and now and then: windows grow by what a card sends meanwhile, as long as nothing is lost
LATE_PEER_S = 0.030


class Route(NamedTuple):
    """What is known of a pair's path. window_bytes: of control `window`. line_bps: of this rank's card.

    path_bps, empty_s: of its narrowest link, and its round trip when nothing else is there; 0, infinite: not known.
    peers: how many ranks there are beside this one.
    """

    window_bytes: int
    line_bps: float
    path_bps: float
    empty_s: float
    peers: int


def make_sender(settings: DatagramSettings, packet_bytes: int, round_trip_s: float, route: Route) -> Sender:
    """A sender of packets of so many bytes, as links count them. round_trip_s: a first guess."""
    window_bytes, line_bps, path_bps, empty_s, peers = route
    exact = clock_here() == "free"
    host_s, least_rto_s, least_packets, late_packets = 0.0, MIN_RTO_S, MIN_WINDOW_PACKETS, 0.0
    if not exact:
        host_s, least_rto_s = LATE_HOST_S, REAL_TIME_MIN_RTO_S
        least_packets = max(MIN_WINDOW_PACKETS, LATE_HOST_PACKETS / peers)
        late_packets = min(LATE_PEER_S * line_bps / 8 / packet_bytes, MAX_AHEAD / 8)
    if settings.window_bytes is not None:
        least_packets, late_packets, path_bps = 1.0, 0.0, 0.0
    # a packet is heard of when all that goes with it has left, and takes as long as the empty path at least
    least_rto_s = max(least_rto_s, REQUEST_ACK_EVERY * packet_bytes * 8 / line_bps)
    if empty_s < math.inf:
        round_trip_s = max(round_trip_s, empty_s)
    limits = Limits(
        packet_bytes,
        window_bytes,
        line_bps,
        settings.rate_scale,
        host_s,
        least_packets,
        late_packets,
        path_bps,
        empty_s,
    )
    round_trips = RttEstimator(round_trip_s, least_rto_s)
    kind = RECOVERIES[settings.recovery]
    groups = {} if kind.code is None else {"data": settings.data, "parity": settings.parity}
    return Sender(kind(round_trips, **groups), CONTROLS[settings.control](limits, round_trips))


# what a window is of the path's rate times its round trip: acknowledgements come for several packets at once
WINDOW_PRODUCTS = 1.25


@dataclass(frozen=True)
class DatagramSettings:
    """recovery, control: names of RECOVERIES and CONTROLS. data, parity: packets of a group of erasure codes.

    paths: source ports that packets are sprayed over; 1 for none. window_bytes: of control `window`; None: by the path.
    rate_scale: emulated rates over real ones.
    """

    recovery: str = "selective_repeat"
    control: str = "window"
    data: int = 32
    parity: int = 8
    paths: int = 1
    window_bytes: int | None = None
    rate_scale: float = 1.0
