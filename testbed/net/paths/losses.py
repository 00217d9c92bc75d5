"""Effect of losses on one connection: closed forms, and a simulation of its window.

How large a window losses leave is the congestion control's to say (`congestion`). What is lost among a message's last
packets is known of round trips later, what is lost before them meanwhile. Factors to both come from calibration.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import NamedTuple

from testbed.net.paths.congestion import CONGESTION_CONTROLS, CongestionControl, Growth, LossResponse
from testbed.plugins import OWN_FILE

TAIL_PACKETS = 10  # a first window of RFC 6928
USUAL = "reno"  # stands for congestion controls that the model does not know, and says so


def is_known_control(name: str) -> bool:
    """Whether the model has this congestion control, or it is in a file."""
    return name in CONGESTION_CONTROLS or OWN_FILE.fullmatch(name) is not None


def find_control(name: str) -> type[CongestionControl]:
    """By name, or of a file as FILE.py:NAME; the usual one for a name that the model does not know. PluginError."""
    return CONGESTION_CONTROLS.find(name if is_known_control(name) else USUAL)


@dataclass(frozen=True)
class LossyConnection:
    """A connection over a path that loses packets.

    congestion_control: what the model knows it by, a name or FILE.py:NAME. loss: share, 0 to 1; path_rate: bytes per
    second of the path; packet_bytes: payload of a full packet. How long a pair still sends before a message,
    `busy_s`, makes no difference here: windows are what they are on average.
    """

    congestion_control: str
    loss: float
    rtt_s: float
    path_rate: float
    packet_bytes: float
    response: LossResponse

    @cached_property
    def window_bytes(self) -> float:
        """What is under way on average; infinite where losses do not matter."""
        packets = find_control(self.congestion_control).window_packets(self.loss, self.rtt_s)
        return self.response.window * packets * self.packet_bytes

    @property
    def begins(self) -> bool:
        """Whether its window is known from its first packet on, not only on average."""
        return find_control(self.congestion_control).window is not None

    def begun(self, one_way_s: float, draw: Random) -> LossyWindow:
        """A connection from its first packet on; one_way_s: until a packet is there."""
        growth = find_control(self.congestion_control).window
        assert growth is not None
        return LossyWindow(
            growth(), self.loss, self.rtt_s, one_way_s, self.packet_bytes / self.path_rate, draw
        )

    @property
    def mended_s(self) -> float:
        """Until what was lost has come after all."""
        return self.response.recovery * self.rtt_s

    def least_s(self, size_bytes: float, open_bytes: float = math.inf) -> float:
        """What a message takes to leave with nothing else on the path: a window at once, the rest by round trips.

        open_bytes: of the window, what is not taken by messages before; less than 0 where those wait, too.
        """
        open_bytes = min(open_bytes, self.window_bytes)
        at_once = max(0.0, min(size_bytes, open_bytes))
        rest_s = (
            0.0 if size_bytes <= open_bytes else (size_bytes - open_bytes) / self.window_bytes * self.rtt_s
        )
        return max(size_bytes / self.path_rate, at_once / self.path_rate + rest_s)

    def opened_bytes(self, open_bytes: float, seconds: float) -> float:
        """What is open of the window so much later: acknowledgements open all of it in a round trip."""
        if math.isinf(self.window_bytes):
            return math.inf
        return min(self.window_bytes, open_bytes + self.window_bytes * seconds / self.rtt_s)

    def late_chance(self, size_bytes: float, busy_s: float = 0.0) -> float:
        """That a message ends later by `mended_s`: nothing comes behind its last packets that tells of a loss."""
        packets = min(math.ceil(size_bytes / self.packet_bytes), TAIL_PACKETS)
        return 1 - (1 - self.loss) ** packets


FIRST_PACKETS = 10  # RFC 6928
LEAST_PACKETS = 2.0
DUPLICATES = 3  # packets behind a lost one that tell of it at once
REORDERING = 0.25  # of a round trip that fewer are waited for, RFC 8985
TOGETHER = 1 / 32  # of a round trip
# packets that an acknowledgement tells of, and how long it waits for the second one: `TCP_DELACK_MIN`
EACH, DELAYED_S = 2, 0.04
TIMEOUT_S = 0.2  # Linux' least, beyond a round trip


@dataclass(eq=False)
class PacketLoss:
    """Of a packet: when it was sent, and when it is known. told: called when that is known to be earlier."""

    sent_s: float
    known_s: float
    behind: int
    told: list[Callable[[], None]] = field(default_factory=list)


class Sent(NamedTuple):
    """When a message's last byte has left, in seconds; losses: that it, or one before it, still waits for."""

    left_s: float
    in_time_s: float
    one_way_s: float
    losses: tuple[PacketLoss, ...]

    @property
    def there_s(self) -> float:
        """When all of it is there, as far as is known now."""
        return max([self.in_time_s, *(loss.known_s + self.one_way_s for loss in self.losses)])


class _Flight(NamedTuple):
    """Packets that are acknowledged together, for a window of which it was known whether it was full."""

    known_s: float
    packets: int


class LossyWindow:
    """A connection over a path that loses packets and carries nothing else.

    growth: of its congestion control. loss: share; rtt_s: round trip; one_way_s: until a packet is there; packet_s:
    what the path's slowest hop takes for a full one.
    """

    def __init__(
        self, growth: Growth, loss: float, rtt_s: float, one_way_s: float, packet_s: float, draw: Random
    ) -> None:
        self._growth, self._loss, self._draw = growth, loss, draw
        self._rtt_s, self._one_way_s, self._packet_s = rtt_s, one_way_s, packet_s
        self.window = float(FIRST_PACKETS)
        self._together_s = TOGETHER * rtt_s
        self._threshold = math.inf
        self._flying: deque[_Flight] = deque()
        self._under_way = 0
        self._alone_s = math.inf  # when a packet that no other came after is acknowledged
        self._apart = False  # what is sent next is acknowledged apart, as it tells of a loss
        self._line_free_s = -math.inf  # when the path's slowest hop has all of what was sent
        # that are not known yet, the next to be first; of those that are sent again, when they are acknowledged
        self._losses: list[PacketLoss] = []
        self._again: list[float] = []
        self._mended: list[PacketLoss] = []  # that messages may wait for
        self._reduced_s = -math.inf
        self._mended_s = -math.inf
        self._full, self._most, self._most_until_s = False, 0, -math.inf
        self._asked_s = self._sent_s = -math.inf
        self._next_loss = self._gap()

    def send(self, packets: int, now_s: float) -> Sent:
        """So many more, behind what was sent before. now_s: no earlier than that was asked for."""
        at_s = max(now_s, self._asked_s)
        self._hear(at_s)
        if not self._under_way and at_s > self._sent_s > -math.inf:
            self._growth.waited(at_s - self._sent_s)
        left = packets
        while left:
            self._hear(at_s)
            room = int(self.window) - self._under_way
            if room < 1:
                self._use(at_s, full=True)
                at_s = self._next_s()
                continue
            some = min(left, room, self._next_loss)
            begins_s = max(at_s, self._line_free_s)
            if self._losses:
                self._tell(begins_s + self._packet_s, some)
            self._line_free_s = begins_s + some * self._packet_s
            left -= some
            self._next_loss -= some
            gone = not self._next_loss
            if some > gone:
                self._fly(begins_s + self._packet_s + self._rtt_s, some - gone)
            if gone:
                self._next_loss = self._gap()
                self._lose(self._line_free_s)
        self._use(at_s, full=int(self.window) <= self._under_way)
        self._asked_s, self._sent_s = at_s, max(at_s, self._line_free_s)
        there_s = self._line_free_s + self._one_way_s
        late = tuple(loss for loss in self._mended if loss.known_s + self._one_way_s > there_s)
        self._mended = list(late)
        return Sent(self._line_free_s, there_s, self._one_way_s, late)

    def _tell(self, sent_s: float, packets: int) -> None:
        """Of what is lost and not known: so many behind it."""
        for loss in self._losses:
            if loss.behind >= DUPLICATES:
                continue
            loss.behind += packets
            known_s = sent_s + self._rtt_s * (1 if loss.behind >= DUPLICATES else 1 + REORDERING)
            if known_s < loss.known_s:
                loss.known_s = known_s
                for told in loss.told:
                    told()
        self._losses.sort(key=attrgetter("known_s"))

    def _gap(self) -> int:
        """Packets until the next that is lost, that one with them."""
        return 1 + int(math.log(1.0 - self._draw.random()) / math.log1p(-self._loss))

    def _fly(self, known_s: float, packets: int) -> None:
        """Those of a small part of a round trip go together, at their mean time: a window would fall to pieces."""
        self._under_way += packets
        if self._alone_s < math.inf:
            packets += 1
        self._alone_s = math.inf
        if packets % EACH:
            packets -= 1
            self._alone_s = known_s + DELAYED_S
            if not packets:
                return
        if self._flying and not self._apart and 0 <= known_s - self._flying[-1].known_s < self._together_s:
            last = self._flying.pop()
            both = last.packets + packets
            known_s = (last.known_s * last.packets + known_s * packets) / both
            packets = both
        self._apart = False
        self._flying.append(_Flight(known_s, packets))

    def _lose(self, sent_s: float) -> None:
        """One is lost; unless others are sent behind it, a timeout tells of it."""
        loss = PacketLoss(sent_s, sent_s + 2 * self._rtt_s + TIMEOUT_S, 0)
        self._under_way += 1
        insort(self._losses, loss, key=attrgetter("known_s"))
        self._mended.append(loss)
        self._apart = True

    def _next_s(self) -> float:
        """When something is heard next: acknowledgements, of what was sent again, too, or of a loss."""
        next_s = self._flying[0].known_s if self._flying else math.inf
        if self._losses:
            next_s = min(next_s, self._losses[0].known_s)
        if self._again:
            next_s = min(next_s, self._again[0])
        return min(next_s, self._alone_s)

    def _hear(self, now_s: float) -> None:
        """Of all until now, in its order."""
        while (next_s := self._next_s()) <= now_s:
            if self._losses and self._losses[0].known_s <= next_s:
                self._reduce(self._losses.pop(0))
            elif self._again and self._again[0] <= next_s:
                self._under_way -= 1
                self._grow(_Flight(self._again.pop(0), 1))
            elif self._alone_s <= next_s:
                self._under_way -= 1
                self._grow(_Flight(self._alone_s, 1))
                self._alone_s = math.inf
            else:
                flight = self._flying.popleft()
                self._under_way -= flight.packets
                self._grow(flight)

    def _reduce(self, loss: PacketLoss) -> None:
        """Once for all that are lost in a round trip."""
        known_s, sent_s = loss.known_s, loss.sent_s
        if (
            self._draw.random() < self._loss
        ):  # what is sent again is lost, too, of which others behind it tell
            loss.known_s += (1 + REORDERING) * self._rtt_s
            loss.behind = DUPLICATES
            insort(self._losses, loss, key=attrgetter("known_s"))
        else:
            insort(self._again, known_s + self._rtt_s)
        self._mended_s = max(self._mended_s, known_s + self._rtt_s)
        if sent_s > self._reduced_s:
            self._reduced_s = known_s
            left = int(self._growth.after_loss(float(int(self.window))))  # the kernel's are whole
            self.window = max(LEAST_PACKETS, float(left))
            self._threshold = self.window

    def _grow(self, flight: _Flight) -> None:
        """A window that is full grows; one that doubles does so if half of it is used."""
        if flight.known_s < self._mended_s:
            return
        if self.window < self._threshold:
            if self._full or self.window < 2 * self._most:
                grown = self.window + flight.packets
                self.window = min(grown, max(self.window, self._threshold))
                if self._growth.leaves_by_trains and self.window * self._packet_s > self._rtt_s / 2:
                    self._threshold = self.window
        elif self._full:
            left = flight.packets
            while left > 0:
                self.window = self._growth.grown(self.window, min(left, EACH), flight.known_s, self._rtt_s)
                left -= EACH

    def _use(self, now_s: float, *, full: bool) -> None:
        """What the window is used for counts for a round trip."""
        if full or now_s >= self._most_until_s or (not self._full and self._under_way > self._most):
            self._full, self._most = full, self._under_way
            self._most_until_s = self._flying[-1].known_s if self._flying else now_s

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._flying = deque(_Flight(own.known_s - seconds, own.packets) for own in self._flying)
        for loss in {*self._losses, *self._mended}:
            loss.sent_s -= seconds
            loss.known_s -= seconds
        self._again = [known_s - seconds for known_s in self._again]
        self._alone_s -= seconds
        self._line_free_s -= seconds
        self._reduced_s -= seconds
        self._mended_s -= seconds
        self._most_until_s -= seconds
        self._asked_s -= seconds
        self._sent_s -= seconds
        self._growth.shift(seconds)
