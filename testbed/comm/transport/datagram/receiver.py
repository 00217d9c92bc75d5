"""The receiving half of a pair, without sockets: which packets have arrived, what to acknowledge and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.comm.transport.datagram.erasure_codes import get_code
from testbed.comm.transport.datagram.packets import MAX_AHEAD, Ack

# packets of a path per acknowledgement if the sender requests none
ACK_EVERY = 16


@dataclass
class PathCounts:
    """Counts of one path: latest serial, packets received, packets marked, packets since the last acknowledgement."""

    latest_serial: int = -1
    received: int = 0
    marked: int = 0
    since: int = 0


@dataclass
class ParityGroup:
    """A group with parity: its numbers of data and parity packets, and the parity that has arrived."""

    data: int
    parity: int
    has: dict[int, Any] = field(default_factory=dict)


class Receiver:
    """The receiver's state.

    Args:
        in_order: Accept only the next packet, as a go-back-N receiver does.
        code: The erasure code, one of CODES.
    """

    def __init__(self, in_order: bool = False, code: str = "mds") -> None:
        self.low = 0
        self.bits = 0  # bit i: low + i has arrived
        self.duplicates = 0
        self.recovered = 0
        self._in_order = in_order
        self._code = code
        self._paths: dict[int, PathCounts] = {}
        self._due: dict[int, None] = {}  # paths to acknowledge, in order
        self._last_nak = -1  # the missing packet of the last NAK
        self._nak_due = False
        self.groups: dict[int, ParityGroup] = {}  # by first number

    def has(self, number: int) -> bool:
        """Return whether the packet has arrived."""
        return number < self.low or bool(self.bits >> (number - self.low) & 1)

    def wants(self, number: int, count: int = 1) -> bool:
        """Return whether the packet, and the `count` - 1 after it, would be accepted now."""
        low = self.low
        if self._in_order or number == low:
            return number == low and not self.bits & ((1 << count) - 1)
        ahead = number - low
        return 0 < ahead <= MAX_AHEAD - count and not self.bits >> ahead & ((1 << count) - 1)

    def on_packet(self, path: int, serial: int, marked: bool, asks: bool, count: int = 1) -> None:
        """Count packets on a path, whether accepted or not. serial: that of the last of `count` packets."""
        seen = self._paths.get(path)
        if seen is None:
            seen = self._paths[path] = PathCounts()
        seen.latest_serial = max(seen.latest_serial, serial)
        seen.received += count
        seen.since += count
        if marked:
            seen.marked += count
        if asks or marked or seen.since >= ACK_EVERY:
            self._due[path] = None

    def take(self, number: int, path: int, count: int = 1) -> None:
        """Accept a wanted packet, and the `count` - 1 after it."""
        gap = not self.bits and number > self.low
        self.bits |= ((1 << count) - 1) << (number - self.low)
        self._advance()
        if gap:
            self._due[path] = None

    def refuse(self, number: int, path: int) -> None:
        """Refuse an unwanted packet: a duplicate, or one that is out of order."""
        if number < self.low or self.has(number):
            self.duplicates += 1
            self._due[path] = None
        elif self._in_order and self._last_nak != self.low:
            self._last_nak = self.low  # once per missing packet, as in RoCE
            self._nak_due = True
            self._due[path] = None

    def parity(self, first: int, data: int, parity: int, number: int, payload: Any = None) -> None:
        """Accept a parity packet.

        It is kept if packets of its group are missing. Raises ValueError if it is invalid.
        """
        if number >= parity or first + data > self.low + MAX_AHEAD:
            raise ValueError(f"parity {number} of {parity} for {data} packets from {first}")
        if not self.missing(first, data):
            return
        group = self.groups.setdefault(first, ParityGroup(data, parity))
        if (group.data, group.parity) != (data, parity):
            raise ValueError(f"parity for {data} packets from {first}, expected {group.data}")
        group.has[number] = payload

    def missing(self, first: int, data: int) -> Sequence[int]:
        """Return the missing packets among these, as offsets from the first."""
        if first + data <= self.low:
            return ()
        return [number for number in range(data) if not self.has(first + number)]

    def group_of(self, number: int) -> int | None:
        """Return the first number of a packet's group; None if no parity is waiting for it."""
        for first, group in self.groups.items():
            if first <= number < first + group.data:
                return first
        return None

    def recoverable(self, first: int) -> Sequence[int]:
        """Return the missing packets of a group that its parity can recover now, as offsets from the first."""
        group = self.groups.get(first)
        if group is None:
            return ()
        lost = self.missing(first, group.data)
        code = get_code(self._code, group.data, group.parity)
        return lost if code.recoverable(lost, sorted(group.has)) else ()

    def recover(self, first: int, lost: Sequence[int], path: int) -> None:
        """Record that the missing packets of a group were recovered."""
        for number in lost:
            self.bits |= 1 << (first + number - self.low)
            self.recovered += 1
        del self.groups[first]
        self._advance()
        self._due[path] = None

    def acks(self) -> list[Ack]:
        """Return the acknowledgements that are due, and consider them sent."""
        acks = []
        for path in self._due:
            seen = self._paths[path]
            seen.since = 0
            acks.append(
                Ack(path, seen.latest_serial, seen.received, seen.marked, self.low, self.bits, self._nak_due)
            )
            self._nak_due = False
        self._due.clear()
        return acks

    @property
    def seen(self) -> dict[int, PathCounts]:
        """The counts by path."""
        return self._paths

    def _advance(self) -> None:
        if self.bits & 1:
            run = (~self.bits & (self.bits + 1)).bit_length() - 1  # trailing ones
            self.low += run
            self.bits >>= run
            for first in [first for first, group in self.groups.items() if first + group.data <= self.low]:
                del self.groups[first]
