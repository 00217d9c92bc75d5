"""The receiving half of a pair, without sockets: which packets have come, what to acknowledge and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.comm.transport.datagram.erasure_codes import get_code
from testbed.comm.transport.datagram.packets import MAX_AHEAD, Ack

# of a path's packets one in so many is acknowledged where its sender asks for none
ACK_EVERY = 16


@dataclass
class PathCounts:
    """Of one path: the latest serial, packets come, packets marked, packets since the last acknowledgement."""

    heard: int = -1
    came: int = 0
    marked: int = 0
    since: int = 0


@dataclass
class ParityGroup:
    """A group of packets of which parity has come: its number of data and parity packets, what has come of parity."""

    data: int
    parity: int
    has: dict[int, Any] = field(default_factory=dict)


class Receiver:
    """in_order: takes only the packet that is next, as a receiver of go-back-N does. code: of parity, one of CODES."""

    def __init__(self, in_order: bool = False, code: str = "mds") -> None:
        self.low = 0
        self.bits = 0  # bit i: low + i has come
        self.duplicates = 0
        self.mended = 0
        self._in_order = in_order
        self._code = code
        self._paths: dict[int, PathCounts] = {}
        self._due: dict[int, None] = {}  # paths to acknowledge, in order
        self._refused_at = -1  # for which next packet the sender has been told that others are refused
        self._refuses = False
        self.groups: dict[int, ParityGroup] = {}  # by the first number

    def has(self, number: int) -> bool:
        """Whether it has come."""
        return number < self.low or bool(self.bits >> (number - self.low) & 1)

    def wants(self, number: int, count: int = 1) -> bool:
        """Whether it, and those after it, would be taken now."""
        low = self.low
        if self._in_order or number == low:
            return number == low and not self.bits & ((1 << count) - 1)
        ahead = number - low
        return 0 < ahead <= MAX_AHEAD - count and not self.bits >> ahead & ((1 << count) - 1)

    def came(self, path: int, serial: int, marked: bool, asks: bool, count: int = 1) -> None:
        """Something came on a path, whatever becomes of it. serial: of the last of so many packets."""
        seen = self._paths.get(path)
        if seen is None:
            seen = self._paths[path] = PathCounts()
        seen.heard = max(seen.heard, serial)
        seen.came += count
        seen.since += count
        if marked:
            seen.marked += count
        if asks or marked or seen.since >= ACK_EVERY:
            self._due[path] = None

    def take(self, number: int, path: int, count: int = 1) -> None:
        """A packet that is wanted has come, and so many in all with those after it."""
        gap = not self.bits and number > self.low
        self.bits |= ((1 << count) - 1) << (number - self.low)
        self._advance()
        if gap:
            self._due[path] = None

    def refuse(self, number: int, path: int) -> None:
        """A packet that is not wanted has come: it came before, or not in order."""
        if number < self.low or self.has(number):
            self.duplicates += 1
            self._due[path] = None
        elif self._in_order and self._refused_at != self.low:
            self._refused_at = self.low  # once for each that is missing, as RoCE does
            self._refuses = True
            self._due[path] = None

    def parity(self, first: int, data: int, parity: int, number: int, payload: Any = None) -> None:
        """A packet of a group's parity has come; it is kept where something of the group is missing. ValueError."""
        if number >= parity or first + data > self.low + MAX_AHEAD:
            raise ValueError(f"parity {number} of {parity} for {data} packets from {first}")
        if not self.missing(first, data):
            return
        group = self.groups.setdefault(first, ParityGroup(data, parity))
        if (group.data, group.parity) != (data, parity):
            raise ValueError(f"parity for {data} packets from {first}, expected {group.data}")
        group.has[number] = payload

    def missing(self, first: int, data: int) -> Sequence[int]:
        """Which of these packets have not come, counted from the first."""
        if first + data <= self.low:
            return ()
        return [number for number in range(data) if not self.has(first + number)]

    def group_of(self, number: int) -> int | None:
        """The first number of the group of a packet; None where no parity waits for it."""
        for first, group in self.groups.items():
            if first <= number < first + group.data:
                return first
        return None

    def mendable(self, first: int) -> Sequence[int]:
        """Which of a group's packets are missing and can be had by its parity now, counted from the first."""
        group = self.groups.get(first)
        if group is None:
            return ()
        lost = self.missing(first, group.data)
        code = get_code(self._code, group.data, group.parity)
        return lost if code.mendable(lost, sorted(group.has)) else ()

    def mend(self, first: int, lost: Sequence[int], path: int) -> None:
        """What was mendable of a group has been mended."""
        for number in lost:
            self.bits |= 1 << (first + number - self.low)
            self.mended += 1
        del self.groups[first]
        self._advance()
        self._due[path] = None

    def acks(self) -> list[Ack]:
        """What to say now; that it is said is taken for granted."""
        found = []
        for path in self._due:
            seen = self._paths[path]
            seen.since = 0
            found.append(Ack(path, seen.heard, seen.came, seen.marked, self.low, self.bits, self._refuses))
            self._refuses = False
        self._due.clear()
        return found

    @property
    def seen(self) -> dict[int, PathCounts]:
        """By path."""
        return self._paths

    def _advance(self) -> None:
        if self.bits & 1:
            run = (~self.bits & (self.bits + 1)).bit_length() - 1  # of ones at the end
            self.low += run
            self.bits >>= run
            for first in [first for first, own in self.groups.items() if first + own.data <= self.low]:
                del self.groups[first]
