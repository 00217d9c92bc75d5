"""The end of a connection that packets come to: puts them in order, and acknowledges them as Linux does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from testbed.model.keeping import Agenda
from testbed.model.packets.frames import Frame
from testbed.model.packets.line import Line
from testbed.model.packets.timers import timer_s
from testbed.paths.lossy_windows import DELAYED_S

QUICK = 16  # the first ones do not, `TCP_MAX_QUICKACKS`
ACKNOWLEDGEMENT_BYTES = 66  # Ethernet, IP, TCP with timestamps
SELECTIVE_BYTES = 12  # more, of one that tells what is there behind a gap
# out of order so many acknowledgements of one gap go at once, others wait: a third of a round trip, 1 ms, 44 packets
DUPLICATES, COMPRESSED_SHARE, COMPRESSED_S, COMPRESSED = 3, 1 / 3, 1e-3, 44


class Acknowledgement(NamedTuple):
    """next: the first packet that is not there. news: that have come since the last one. doubled: one came twice."""

    next: int
    news: Sequence[int]
    doubled: bool


class Receiver:
    """heard: called with each acknowledgement that comes back. round_trip_s: of the empty path."""

    def __init__(
        self,
        agenda: Agenda,
        back: Sequence[Line],
        heard: Callable[[Acknowledgement], None],
        round_trip_s: float,
    ) -> None:
        self.agenda, self._back, self._heard = agenda, back, heard
        self.next = 0
        self._early: dict[int, Sequence[Callable[[], None]]] = {}
        self._news: list[int] = []
        self._waiting, self._acknowledged = 0, 0
        self._late_s = 0.0  # when what waits is acknowledged; 0: nothing does
        self._compressed_s = min(COMPRESSED_S, COMPRESSED_SHARE * round_trip_s)
        self._gap, self._duplicates, self._compressed = -1, 0, 0
        self._together_s = 0.0  # when what is compressed is acknowledged; 0: nothing is

    def take(self, number: int, full: bool, ends: Sequence[Callable[[], None]]) -> None:
        """A packet. ends: whom to tell that a message, which ends in it, is there."""
        if number < self.next or number in self._early:
            self._acknowledge(doubled=True)
            return
        self._news.append(number)
        if number != self.next:
            self._early[number] = ends
            self._acknowledge_gap()
            return
        self.next += 1
        self._waiting += 1
        told = list(ends)
        now = bool(self._early)
        while self._early and self.next in self._early:
            told += self._early.pop(self.next)
            self.next += 1
        if now or not full or self._waiting > 1 or self._acknowledged < QUICK:
            self._acknowledge()
        elif not self._late_s:
            self._late_s = timer_s(self.agenda.now_s, DELAYED_S)
            self.agenda.at(self._late_s, self._late)
        for come in told:
            come()

    def _acknowledge_gap(self) -> None:
        """Of those behind one gap the first ones at once, others together (`__tcp_ack_snd_check`)."""
        if self._gap != self.next:
            self._gap, self._duplicates = self.next, 0
        if self._compressed >= COMPRESSED or self._duplicates < DUPLICATES:
            self._duplicates += 1
            self._acknowledge()
            return
        self._compressed += 1
        if not self._together_s:
            self._together_s = self.agenda.now_s + self._compressed_s
            self.agenda.at(self._together_s, self._together)

    def _together(self) -> None:
        if self._together_s and self.agenda.now_s >= self._together_s:
            self._acknowledge()

    def _late(self) -> None:
        if self._late_s and self.agenda.now_s >= self._late_s:
            self._late_s = 0.0
            if self._waiting:
                self._acknowledge()

    def _acknowledge(self, *, doubled: bool = False) -> None:
        news, self._news = self._news, []
        self._waiting, self._late_s = 0, 0.0
        self._compressed, self._together_s = 0, 0.0
        self._acknowledged += 1
        told = Acknowledgement(self.next, news, doubled)

        def gone() -> None:
            self._news = [*news, *self._news]  # the next one says it, too

        size_bytes = ACKNOWLEDGEMENT_BYTES + (SELECTIVE_BYTES if self._early else 0)
        Frame(self.agenda, self._back, size_bytes, partial(self._heard, told), gone).go()
