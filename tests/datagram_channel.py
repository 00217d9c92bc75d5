"""Datagram sender and receiver state machines on a simulated network that delays, loses and reorders packets."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from testbed.comm.transport.datagram.controls import Control, Limits
from testbed.comm.transport.datagram.packets import Ack
from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Item, Parity, Recovery
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator
from testbed.comm.transport.datagram.sender import Sender

PACKET_BYTES = 1000
LIMITS = Limits(PACKET_BYTES, line_bps=80e6)
Fate = Callable[[Item, int], bool]
"""Whether a packet is lost, given the packet and the number of earlier transmissions."""


@dataclass
class Channel:
    """A simulated connection over one or more paths.

    delays_s: one-way delay of each path.
    rate_bps: rate of each path; its queue is unbounded.
    """

    recovery: str = "selective_repeat"
    control: Callable[[Limits, RttEstimator], Control] = Control
    delays_s: tuple[float, ...] = (0.005,)
    rate_bps: float = 80e6
    loses: Fate = lambda item, times: False
    loses_ack: Callable[[int], bool] = lambda number: False
    marks: Callable[[int], bool] = lambda number: False
    limits: Limits = LIMITS
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind: type[Recovery] = RECOVERIES[self.recovery]
        round_trips = RttEstimator(2 * max(self.delays_s))
        self.sender = Sender(kind(round_trips, **self.options), self.control(self.limits, round_trips))
        self.receiver = Receiver(kind.in_order, kind.code or "mds")
        self.now_s = 0.0
        self.sent: list[tuple[float, Item]] = []
        self.received: list[int] = []
        self._times: dict[Item, int] = {}
        self._free_s = [0.0] * len(self.delays_s)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._acks = count()
        self._next_path = 0

    @property
    def packet_s(self) -> float:
        """Serialization time of a packet on a path, in seconds."""
        return PACKET_BYTES * 8 / self.rate_bps

    def transfer(self, *messages: int, until_s: float = math.inf) -> float:
        """Send messages of so many packets; returns when the receiver has all, or infinity after `until_s`.

        Raises AssertionError if the transfer stalls.
        """
        for packets in messages:
            self.sender.extend(packets)
        done_s = math.inf
        for _ in range(2_000_000):
            self._pump()
            if done_s == math.inf and self.receiver.low == self.sender.recovery.end:
                done_s = self.now_s
            if self.sender.idle:
                return done_s
            due_s = self.sender.due_s
            next_s = min(due_s, self._events[0][0] if self._events else math.inf)
            assert next_s < math.inf, f"no event is left, {self.receiver.low} packets were received"
            if next_s > until_s:
                return math.inf
            self.now_s = max(self.now_s, next_s)
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[-1]()
            if self.sender.recovery.due_s <= self.now_s:
                self.sender.on_timer(self.now_s)
        raise AssertionError("the transfer never ends")

    def _pump(self) -> None:
        while items := self.sender.next_items(64, self.now_s):
            for position, item in enumerate(items):
                path = self._next_path % len(self.delays_s)
                self._next_path += 1
                asks = self.sender.wants_ack(position == len(items) - 1)
                self._send(item, path, self.sender.on_sent(item, path, self.now_s), asks)

    def _send(self, item: Item, path: int, serial: int, asks: bool) -> None:
        times = self._times[item] = self._times.get(item, -1) + 1
        number = len(self.sent)
        self.sent.append((self.now_s, item))
        self._free_s[path] = max(self._free_s[path], self.now_s) + self.packet_s
        if not self.loses(item, times):
            at_s = self._free_s[path] + self.delays_s[path]
            self._schedule(at_s, lambda: self._arrive(item, path, serial, self.marks(number), asks))

    def _arrive(self, item: Item, path: int, serial: int, marked: bool, asks: bool) -> None:
        receiver = self.receiver
        receiver.on_packet(path, serial, marked, asks)
        first: int | None
        if isinstance(item, Parity):
            first = item.first
            receiver.parity(item.first, item.data, item.parity, item.number)
        else:
            first = receiver.group_of(item)
            if receiver.wants(item):
                receiver.take(item, path)
                self.received.append(item)
            else:
                receiver.refuse(item, path)
        if first is not None and (lost := receiver.recoverable(first)):
            self.received += [first + number for number in lost]
            receiver.recover(first, lost, path)
        for ack in receiver.acks():
            if not self.loses_ack(next(self._acks)):
                self._schedule(self.now_s + self.delays_s[ack.path], partial(self._on_ack, ack))

    def _on_ack(self, ack: Ack) -> None:
        self.sender.on_ack(ack, self.now_s)

    def _schedule(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._number), action))
