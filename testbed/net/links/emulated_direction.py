"""One direction of a userspace link: frames come in, wait, and leave in order.

Pure bookkeeping, no sockets and no clock of its own, so that it can be tested without root: times are integers in
nanoseconds that the caller hands in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection

from testbed.net.links.class_scheduler import Origin, Scheduler
from testbed.net.links.impairments import Impairments
from testbed.net.links.link_engine import DirectionStats
from testbed.spec.link_direction import Direction, QueueClass

LATENESS_BOUNDS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_LATENESS_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENESS_BOUNDS_S)
QUEUE_PARTS = 64
HELD_LIMIT_BYTES = 512 * 1024 * 1024  # a runaway guard: the queue is limited by itself


class EmulatedDirection:
    """Holds the frames of one direction between arrival and release.

    A frame first waits until those before it are on the wire, then is put on the wire bit by bit, then travels. How
    long the queue is follows from when the wire will be free, so nothing has to be done when a frame leaves it. Frames
    never overtake each other unless asked to: one whose jitter would let it pass leaves together with that before it.
    """

    def __init__(self, settings: Direction, seed: str) -> None:
        # no more than 29 attributes: with another one CPython 3.11 finds each of them more slowly, and a frame takes a
        # sixth longer
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._overtaking: deque[tuple[int, bytes]] = deque()
        # when each frame leaves the queue; kept where that is limited in packets
        self._leaving: deque[float] = deque()
        self._fibre = Impairments(settings, seed)
        self._free_ns = 0.0  # when the wire has sent all that came
        self._last_release_ns = 0
        self._held_bytes = 0
        self._in_packets = self._in_bytes = self._out_packets = self._out_bytes = 0
        self._accepted_bytes = self._dropped = self._overrun = self._marked = 0
        self._queue_peak_bytes = 0.0
        self._queue_counts = [0] * QUEUE_PARTS
        self._lateness_counts = [0] * (len(LATENESS_BOUNDS_S) + 1)
        self._lateness_max_ns = 0
        self._dark = False
        self.changed = True  # since somebody last asked when the next frame is due; who asks sets it back
        self.lead(0)
        self._scheduler: Scheduler | None = None
        self.settings = settings

    @property
    def settings(self) -> Direction:
        """What is in force; assigning acts on the frames that come after."""
        return self._fibre.settings

    @settings.setter
    def settings(self, value: Direction) -> None:
        self.changed = True
        self._fibre.settings = value
        self._ns_per_byte = 8e9 / value.rate_bps
        self._delay_ns = round(value.delay_s * 1e9)
        self._queue_bytes = value.queue_bytes
        self._queue_packets = value.queue_packets
        self._ecn_bytes = value.ecn_bytes or float("inf")
        self._queue_part = QUEUE_PARTS / value.queue_bytes
        self._reschedule(value)

    def _reschedule(self, value: Direction) -> None:
        """Queues of their own for classes, if there are any; what waits in the former ones goes on in the new."""
        former, self._scheduler = self._scheduler, None
        if classes := self._classes(value):
            room = value.rate_bps, value.queue_bytes, value.queue_packets
            self._scheduler = Scheduler(classes, *room)
        if former is None:
            return
        free_ns = self._free_ns
        while len(former):
            at_ns = former.next_at(free_ns)
            assert at_ns is not None
            waiting = former.pop(at_ns)
            free_ns = at_ns + waiting.size * self._ns_per_byte
            if self._scheduler is None:
                self._free_ns = free_ns
                self._into_fibre(waiting.frame, free_ns)
            elif self._scheduler.put(waiting.frame, 0, waiting.origin) is None:
                self._dropped += 1

    def _classes(self, value: Direction) -> tuple[QueueClass, ...]:
        """Which have queues of their own; none: there is one, of which no frame need be held."""
        return value.classes

    def _start_ns(self, scheduler: Scheduler) -> float | None:
        """When the next frame begins to leave; None while none can."""
        return scheduler.next_at(self._free_ns)

    def _origin(self, frame: bytes) -> Origin | None:
        """Who keeps account of a frame that has come."""
        return None

    @property
    def next_release_ns(self) -> int | None:
        """When the next frame is due, or one may leave its queue; None when nothing waits."""
        waiting = self._first()
        release_ns = waiting[0][0] if waiting else None
        if self._scheduler is None or (leaves_ns := self._start_ns(self._scheduler)) is None:
            return release_ns
        moment_ns = math.ceil(leaves_ns)  # not before: who comes too early finds nothing to do
        return moment_ns if release_ns is None else min(release_ns, moment_ns)

    def _first(self) -> deque[tuple[int, bytes]]:
        """Those of whom the next is due; empty when nothing waits."""
        if self._overtaking and (not self._waiting or self._overtaking[0][0] < self._waiting[0][0]):
            return self._overtaking
        return self._waiting

    def accept(self, frame: bytes, arrival_ns: int) -> None:
        """Take a frame that arrived at `arrival_ns`."""
        size = len(frame)
        self.changed = True
        self._in_packets += 1
        self._in_bytes += size
        if self._dark:
            self._fibre.cut += 1
            return
        if self._held_bytes > HELD_LIMIT_BYTES:
            self._overrun += 1
            return
        if self._scheduler is not None:
            self._queue_up(self._scheduler, frame, arrival_ns)
            return
        leaving = self._leaving
        while leaving and leaving[0] <= arrival_ns:
            leaving.popleft()
        wait_ns = self._free_ns - arrival_ns
        if wait_ns > 0:
            queued = wait_ns / self._ns_per_byte
            if self._full(queued + size):
                return
            self._queue_counts[min(int(queued * self._queue_part), QUEUE_PARTS - 1)] += 1
            if queued >= self._ecn_bytes:
                frame, changed = mark_congestion(frame)
                self._marked += changed
            sent_ns = self._free_ns + size * self._ns_per_byte
        else:
            self._queue_counts[0] += 1
            sent_ns = arrival_ns + size * self._ns_per_byte
        self._free_ns = sent_ns
        self._accepted_bytes += size
        if self._queue_packets:
            leaving.append(sent_ns)
        self._into_fibre(frame, sent_ns)

    def _queue_up(self, scheduler: Scheduler, frame: bytes, arrival_ns: int) -> None:
        """As `accept`, where classes have queues of their own."""
        self._leave(scheduler, arrival_ns)
        before = scheduler.bytes
        if scheduler.waiting_bytes(frame) >= self._ecn_bytes:
            frame, changed = mark_congestion(frame)
            self._marked += changed
        origin = self._origin(frame)
        taken = None
        if origin is None or origin.takes(len(frame)):
            taken = scheduler.put(frame, arrival_ns, origin)
        self._queue_counts[min(int(before * self._queue_part), QUEUE_PARTS - 1)] += 1
        if taken is None:
            self._dropped += 1
            return
        if origin is not None:
            origin.came(len(frame), arrival_ns)
        self._accepted_bytes += len(frame)
        self._queue_peak_bytes = max(self._queue_peak_bytes, scheduler.bytes)

    def _leave(self, scheduler: Scheduler, now_ns: int) -> None:
        """What may leave its queue by now goes onto the wire."""
        while (at_ns := self._start_ns(scheduler)) is not None and at_ns <= now_ns:
            frame = scheduler.take(at_ns)
            self._free_ns = at_ns + len(frame) * self._ns_per_byte
            self._into_fibre(frame, self._free_ns)

    def lead(self, lead_ns: int, ends: Collection[bytes] = ()) -> None:
        """Take this off the delay of frames; of those to others than `ends`, if there are any, half.

        See `LinkEngine.compensate`.
        """
        self._lead_ns, self._ends = lead_ns, frozenset(ends)
        self._passing_ns = lead_ns // 2 if ends else lead_ns

    def _into_fibre(self, frame: bytes, sent_ns: float) -> None:
        lead_ns = self._lead_ns if frame[:6] in self._ends else self._passing_ns
        if self._fibre.perfect:
            self._send(frame, max(int(sent_ns) + max(0, self._delay_ns - lead_ns), self._last_release_ns))
        else:
            self._send_through_fibre(frame, int(sent_ns), lead_ns)

    def _full(self, bytes_with_it: float) -> bool:
        """Whether the queue has no room; then the frame is dropped."""
        in_packets, in_bytes = len(self._leaving) + 1, bytes_with_it
        full = in_packets > self._queue_packets if self._queue_packets else in_bytes > self._queue_bytes
        if full:
            self._dropped += 1
            self._queue_counts[-1] += 1
        elif in_bytes > self._queue_peak_bytes:
            self._queue_peak_bytes = in_bytes
        return full

    def _send_through_fibre(self, frame: bytes, sent_ns: int, lead_ns: int) -> None:
        if self._fibre.loses():
            return
        frame = self._fibre.corrupt(frame)
        overtakes, twice = self._fibre.overtakes(), self._fibre.duplicates()
        delay_ns = max(0, self._delay_ns + self._fibre.deviation_ns() - lead_ns)
        for _ in range(1 + twice):
            if overtakes:
                self._overtaking.append((sent_ns, frame))
                self._held_bytes += len(frame)
            else:
                self._send(frame, max(sent_ns + delay_ns, self._last_release_ns))

    def _send(self, frame: bytes, release_ns: int) -> None:
        self._last_release_ns = release_ns
        self._waiting.append((release_ns, frame))
        self._held_bytes += len(frame)

    def due(self, now_ns: int) -> bytes | None:
        """The next frame whose time has come, or None. The caller sends it and then calls `sent` or `refused`."""
        if self._scheduler is not None:
            self._leave(self._scheduler, now_ns)
        waiting = self._first()
        if not waiting or waiting[0][0] > now_ns:
            return None
        release_ns, frame = waiting.popleft()
        self._held_bytes -= len(frame)
        late_ns = now_ns - release_ns
        self._lateness_counts[bisect_right(_LATENESS_BOUNDS_NS, late_ns)] += 1
        self._lateness_max_ns = max(self._lateness_max_ns, late_ns)
        return frame

    def sent(self, size: int) -> None:
        """A frame of `size` bytes given out by `due` is on its way."""
        self._out_packets += 1
        self._out_bytes += size

    def refused(self) -> None:
        """The kernel did not take a frame given out by `due`."""
        self._overrun += 1

    def cut(self, now_ns: int) -> None:
        """The link is cut: what is on its way is lost, and what comes until it is mended."""
        self.changed = True
        self._fibre.cut += len(self._waiting) + len(self._overtaking)
        if self._scheduler is not None:
            self._fibre.cut += self._scheduler.clear(now_ns)
        self._waiting.clear()
        self._overtaking.clear()
        self._leaving.clear()
        self._held_bytes, self._free_ns, self._last_release_ns = 0, 0.0, 0
        self._dark = True

    def mend(self, now_ns: int) -> None:
        """The link carries frames again."""
        self._dark = False

    def lost_at_the_end(self) -> None:
        """The port that a frame given out by `due` should leave by is down."""
        self._fibre.cut += 1

    def missed(self, packets: int) -> None:
        """The kernel dropped `packets` frames before we could read them."""
        self._in_packets += packets
        self._overrun += packets

    def account(self, now_ns: int) -> DirectionStats:
        """The counters; the lateness maximum is since the last call of `account`."""
        max_s, self._lateness_max_ns = self._lateness_max_ns / 1e9, 0
        fibre = self._fibre
        queue_bytes = max(0, round((self._free_ns - now_ns) / self._ns_per_byte))
        queued = 0
        if self._scheduler is not None:
            self._leave(self._scheduler, now_ns)
            queue_bytes, queued = self._scheduler.bytes, len(self._scheduler)
        return DirectionStats(
            in_packets=self._in_packets,
            in_bytes=self._in_bytes,
            crossed_packets=self._in_packets,
            sent_bytes=self._accepted_bytes - queue_bytes,
            out_packets=self._out_packets,
            out_bytes=self._out_bytes,
            lost=fibre.lost,
            dropped=self._dropped,
            overrun=self._overrun,
            held=len(self._waiting) + len(self._overtaking) + queued,
            marked=self._marked,
            duplicated=fibre.duplicated,
            reordered=fibre.reordered,
            corrupted=fibre.corrupted,
            cut=fibre.cut,
            queue_bytes=queue_bytes,
            queue_peak_bytes=round(self._queue_peak_bytes),
            queue_counts=tuple(self._queue_counts),
            lateness_bounds_s=LATENESS_BOUNDS_S,
            lateness_counts=tuple(self._lateness_counts),
            lateness_max_s=max_s,
        )


_IPV4 = b"\x08\x00"
_CONGESTION_EXPERIENCED = 3


def mark_congestion(frame: bytes) -> tuple[bytes, bool]:
    """The frame with Congestion Experienced (RFC 3168) if it is ECN-capable IPv4, and whether that changed it."""
    if frame[12:14] != _IPV4 or len(frame) < 34 or frame[15] & 3 in (0, _CONGESTION_EXPERIENCED):
        return frame, False
    changed = bytearray(frame)
    changed[15] |= _CONGESTION_EXPERIENCED
    # RFC 1624: the checksum moves by what the first word of the header moved, in one's complement
    total = (~int.from_bytes(frame[24:26], "big") & 0xFFFF) + (~_word(frame) & 0xFFFF) + _word(changed)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed), True


def _word(frame: bytes | bytearray) -> int:
    return int.from_bytes(frame[14:16], "big")
