"""Erasure coding: parity is sent with each group of packets, and only what it cannot recover is resent.

After SDR-RDMA (arXiv:2505.05366), whose EC uses 32 data packets and 8 parity packets, with selective repeat as
fallback. A group ends with its message. The parity of a shorter group is proportional, at least one packet.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from testbed.comm.transport.datagram.packets import Ack
from testbed.comm.transport.datagram.recoveries.base import Feedback, Item, Parity, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

DATA, PARITY = 32, 8


@dataclass
class _Group:
    """A group of packets.

    Attributes:
        first: Its first packet.
        data: Its number of data packets.
        parity: Its number of parity packets.
        unsent: Packets that were never sent.
        last: Its last serial, by path.
    """

    first: int
    data: int
    parity: int
    unsent: int
    last: dict[int, int] = field(default_factory=dict)


class Erasure(Recovery):
    """Recovery by parity. data, parity: the number of packets of a full group."""

    code: ClassVar[str | None] = "mds"

    def __init__(self, round_trips: RttEstimator, data: int = DATA, parity: int = PARITY) -> None:
        super().__init__(round_trips)
        self.data, self.parity = data, parity
        self._open: deque[_Group] = deque()  # not completely sent
        self._closed: deque[_Group] = deque()  # completely sent, perhaps in flight
        self._parities: deque[Parity] = deque()  # parity to send next

    def extend(self, count: int) -> None:
        """See Recovery. The packets belong to one message, and groups end with it."""
        for first in range(self.end, self.end + count, self.data):
            data = min(self.data, self.end + count - first)
            parity = math.ceil(data * self.parity / self.data)
            self._open.append(_Group(first, data, parity, data + parity))
        super().extend(count)

    @property
    def pending(self) -> int:
        """See Recovery."""
        return len(self._lost) + sum(group.unsent for group in self._open)

    def is_sent_below(self, end: int) -> bool:
        """See Recovery."""
        return end <= (self._open[0].first if self._open else self.end)

    def next_items(self, max_packets: int) -> list[Item]:
        """See Recovery. A group's parity follows its data."""
        items: list[Item] = list(self._next_resends(max_packets))
        items += list(self._parities)[: max_packets - len(items)]
        if len(items) < max_packets and self._open:
            group = self._open[0]
            end = min(group.first + group.data, self._limit, self.next + max_packets - len(items))
            items += range(self.next, end)
        return items

    def next_run(self, max_packets: int) -> range:
        """See Recovery. All packets belong to one group."""
        if self._parities or not self._open:
            return range(0)
        group = self._open[0]
        found = super().next_run(max_packets)
        return range(found.start, min(found.stop, group.first + group.data))

    def on_sent(self, item: Item, path: int, now_s: float) -> int:
        """See Recovery."""
        serial = super().on_sent(item, path, now_s)
        if isinstance(item, Parity):
            self._parities.remove(item)
            self._first_sent(1, path, serial)
        return serial

    def on_run_sent(self, numbers: range, path: int, now_s: float) -> int:
        """See Recovery. Packets are those of one group, all of them new or all resent."""
        first_time = numbers.start >= self._sent_end
        serial = super().on_run_sent(numbers, path, now_s)
        if first_time:
            group = self._open[0]
            if numbers.stop == group.first + group.data:
                self._parities += [
                    Parity(group.first, group.data, i, group.parity) for i in range(group.parity)
                ]
            self._first_sent(len(numbers), path, serial + len(numbers) - 1)
        return serial

    def _first_sent(self, count: int, path: int, last: int) -> None:
        """Record that `count` new packets of the first open group have left, the last with this serial."""
        group = self._open[0]
        group.last[path] = last
        group.unsent -= count
        if not group.unsent:
            self._closed.append(self._open.popleft())

    def _on_hole(self, number: int, sending: SentPackets, feedback: Feedback) -> None:
        if number < self._first_protected:
            self._lose(number, feedback)

    @property
    def _first_protected(self) -> int:
        """The first packet still protected by parity; packets below are resent individually."""
        first = self._closed or self._open
        return first[0].first if first else self.end

    def _after_ack(self, ack: Ack, feedback: Feedback, now_s: float) -> None:
        self._resend_finished_groups(feedback)

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        feedback = super().on_timer(now_s)
        self._resend_finished_groups(feedback)
        return feedback

    def _resend_finished_groups(self, feedback: Feedback) -> None:
        """Resend the missing packets of groups with nothing in flight.

        This is needed because an abandoned path gives no further feedback.
        """
        while self._closed and all(
            self.paths[path].settled > serial for path, serial in self._closed[0].last.items()
        ):
            self._resend_missing(self._closed.popleft(), feedback)

    def _resend_missing(self, group: _Group, feedback: Feedback) -> None:
        """Resend the missing packets of a group whose parity was not enough."""
        for number in range(max(group.first, self.low), group.first + group.data):
            if not self._has_come(number) and not self._is_in_flight(number):
                self._lose(number, feedback)

    def _is_in_flight(self, number: int) -> bool:
        return any(
            isinstance(sending.item, int) and sending.item <= number < sending.item + sending.packets
            for path in self.paths.values()
            for sending in path.flight
        )

    def _on_parity_timeout(self, parity: Parity, feedback: Feedback) -> None:
        while self._closed and self._closed[0].first <= parity.first:
            self._resend_missing(self._closed.popleft(), feedback)


class XorParity(Erasure):
    """Like `Erasure`, with the simplest code, which recovers one loss in each class of a group."""

    code: ClassVar[str | None] = "xor"
