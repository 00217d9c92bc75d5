"""One direction of a userspace link: frames arrive, wait, and leave in order.

It has neither sockets nor a clock, so it can be tested without root. Callers pass in the time in nanoseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection

from testbed.net.links.class_scheduler import PauseIngress, Scheduler
from testbed.net.links.impairments import Impairments
from testbed.net.links.link_engine import DirectionStats
from testbed.spec.link_direction import Direction, QueueClass

LATENESS_BOUNDS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_LATENESS_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENESS_BOUNDS_S)
QUEUE_HISTOGRAM_BINS = 64
HELD_LIMIT_BYTES = 512 * 1024 * 1024  # guards against runaway memory; the queue has its own limit


class EmulatedDirection:
    """The frames of one direction between arrival and release.

    A frame waits in the queue, is serialised onto the wire, and then propagates. The queue length follows from the time
    at which the wire becomes free, so departures need no events. Frames are reordered only where `reorder` asks for
    it: a frame whose jitter would let it overtake leaves together with the frame before it.
    """

    def __init__(self, settings: Direction, seed: str) -> None:
        # At most 29 attributes: with more, CPython 3.11 looks each of them up more slowly, and a frame takes a tenth
        # longer. Counters of rare events are therefore in `_impairments`.
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._overtaking: deque[tuple[int, bytes]] = deque()
        # departure times from the queue; used only when the queue is limited in packets
        self._departures: deque[float] = deque()
        self._impairments = Impairments(settings, seed)
        self._free_ns = 0.0  # when the wire becomes free
        self._last_release_ns = 0
        self._held_bytes = 0
        self._in_packets = self._in_bytes = self._out_packets = self._out_bytes = 0
        self._accepted_bytes = self._dropped = 0
        self._queue_peak_bytes = 0.0
        self._queue_counts = [0] * QUEUE_HISTOGRAM_BINS
        self._lateness_counts = [0] * (len(LATENESS_BOUNDS_S) + 1)
        self._lateness_max_ns = 0
        self._is_cut = False
        self.changed = True  # whether `next_release_ns` may have changed; its reader resets this
        self.set_lead(0)
        self._scheduler: Scheduler | None = None
        self.settings = settings

    @property
    def settings(self) -> Direction:
        """The settings in force; assigning new ones affects the frames that arrive afterwards."""
        return self._impairments.settings

    @settings.setter
    def settings(self, value: Direction) -> None:
        self.changed = True
        self._impairments.settings = value
        self._ns_per_byte = 8e9 / value.rate_bps
        self._delay_ns = round(value.delay_s * 1e9)
        self._queue_bytes = value.queue_bytes
        self._queue_packets = value.queue_packets
        self._ecn_bytes = value.ecn_bytes or float("inf")
        self._bins_per_byte = QUEUE_HISTOGRAM_BINS / value.queue_bytes
        self._replace_scheduler(value)

    def _replace_scheduler(self, value: Direction) -> None:
        """Create the class queues, if there are any, and move the queued frames into them."""
        former, self._scheduler = self._scheduler, None
        if classes := self._classes(value):
            self._scheduler = Scheduler(classes, value.rate_bps, value.queue_bytes, value.queue_packets)
        if former is None:
            return
        free_ns = self._free_ns
        while len(former):
            at_ns = former.next_departure(free_ns)
            assert at_ns is not None
            item = former.dequeue(at_ns)
            free_ns = at_ns + item.size * self._ns_per_byte
            if self._scheduler is None:
                self._free_ns = free_ns
                self._propagate(item.frame, free_ns)
            elif self._scheduler.enqueue_frame(item.frame, 0, item.origin) is None:
                self._dropped += 1

    def _classes(self, value: Direction) -> tuple[QueueClass, ...]:
        """Return the classes with their own queues; without any, a single queue is computed without holding frames."""
        return value.classes

    def _next_departure_ns(self, scheduler: Scheduler) -> float | None:
        return scheduler.next_departure(self._free_ns)

    def _origin(self, frame: bytes) -> PauseIngress | None:
        return None

    @property
    def next_release_ns(self) -> int | None:
        """The time when the next frame is due, or may leave its queue; None when nothing waits."""
        waiting = self._next_deque()
        release_ns = waiting[0][0] if waiting else None
        if self._scheduler is None or (departure_ns := self._next_departure_ns(self._scheduler)) is None:
            return release_ns
        moment_ns = math.ceil(departure_ns)  # round up, because nothing is due at an earlier moment
        return moment_ns if release_ns is None else min(release_ns, moment_ns)

    def _next_deque(self) -> deque[tuple[int, bytes]]:
        """Return the deque with the frame that is due next; it is empty when nothing waits."""
        if self._overtaking and (not self._waiting or self._overtaking[0][0] < self._waiting[0][0]):
            return self._overtaking
        return self._waiting

    def accept(self, frame: bytes, arrival_ns: int) -> None:
        """Accept a frame that arrived at `arrival_ns`."""
        size = len(frame)
        self.changed = True
        self._in_packets += 1
        self._in_bytes += size
        if self._is_cut:
            self._impairments.cut += 1
            return
        if self._held_bytes > HELD_LIMIT_BYTES:
            self._impairments.overrun += 1
            return
        if self._scheduler is not None:
            self._enqueue(self._scheduler, frame, arrival_ns)
            return
        departures = self._departures
        while departures and departures[0] <= arrival_ns:
            departures.popleft()
        wait_ns = self._free_ns - arrival_ns
        if wait_ns > 0:
            queued = wait_ns / self._ns_per_byte
            if self._drop_if_full(queued + size):
                return
            self._queue_counts[min(int(queued * self._bins_per_byte), QUEUE_HISTOGRAM_BINS - 1)] += 1
            if queued >= self._ecn_bytes:
                frame, changed = mark_congestion(frame)
                self._impairments.marked += changed
            sent_ns = self._free_ns + size * self._ns_per_byte
        else:
            self._queue_counts[0] += 1
            sent_ns = arrival_ns + size * self._ns_per_byte
        self._free_ns = sent_ns
        self._accepted_bytes += size
        if self._queue_packets:
            departures.append(sent_ns)
        self._propagate(frame, sent_ns)

    def _enqueue(self, scheduler: Scheduler, frame: bytes, arrival_ns: int) -> None:
        """Accept a frame where classes have their own queues."""
        self._transmit(scheduler, arrival_ns)
        before = scheduler.bytes
        if scheduler.backlog_bytes(frame) >= self._ecn_bytes:
            frame, changed = mark_congestion(frame)
            self._impairments.marked += changed
        origin = self._origin(frame)
        queued = None
        if origin is None or origin.admit(len(frame)):
            queued = scheduler.enqueue_frame(frame, arrival_ns, origin)
        self._queue_counts[min(int(before * self._bins_per_byte), QUEUE_HISTOGRAM_BINS - 1)] += 1
        if queued is None:
            self._dropped += 1
            return
        if origin is not None:
            origin.on_enqueue(len(frame), arrival_ns)
        self._accepted_bytes += len(frame)
        self._queue_peak_bytes = max(self._queue_peak_bytes, scheduler.bytes)

    def _transmit(self, scheduler: Scheduler, now_ns: int) -> None:
        """Put the frames that may leave their queues by now onto the wire."""
        while (at_ns := self._next_departure_ns(scheduler)) is not None and at_ns <= now_ns:
            frame = scheduler.dequeue_frame(at_ns)
            self._free_ns = at_ns + len(frame) * self._ns_per_byte
            self._propagate(frame, self._free_ns)

    def set_lead(self, lead_ns: int, ends: Collection[bytes] = ()) -> None:
        """Release frames earlier, to compensate for the delay of the switches; see `LinkEngine.compensate`.

        Args:
            lead_ns: How much earlier, in nanoseconds.
            ends: MAC addresses at the far end of the link. Frames to other addresses get half of the lead. If it is
                empty, every frame gets the whole lead.
        """
        self._lead_ns, self._ends = lead_ns, frozenset(ends)
        self._transit_lead_ns = lead_ns // 2 if ends else lead_ns

    def _propagate(self, frame: bytes, sent_ns: float) -> None:
        lead_ns = self._lead_ns if frame[:6] in self._ends else self._transit_lead_ns
        if self._impairments.is_noop:
            self._hold(frame, max(int(sent_ns) + max(0, self._delay_ns - lead_ns), self._last_release_ns))
        else:
            self._propagate_impaired(frame, int(sent_ns), lead_ns)

    def _drop_if_full(self, queued_bytes: float) -> bool:
        """Return whether the queue overflows with `queued_bytes`, the new frame included, and count the drop."""
        in_packets = len(self._departures) + 1
        full = in_packets > self._queue_packets if self._queue_packets else queued_bytes > self._queue_bytes
        if full:
            self._dropped += 1
            self._queue_counts[-1] += 1
        elif queued_bytes > self._queue_peak_bytes:
            self._queue_peak_bytes = queued_bytes
        return full

    def _propagate_impaired(self, frame: bytes, sent_ns: int, lead_ns: int) -> None:
        passage = self._impairments.draw(frame)
        if passage is None:
            return
        frame = passage.frame
        delay_ns = max(0, self._delay_ns + passage.jitter_ns - lead_ns)
        for _ in range(passage.copies):
            if passage.overtakes:
                self._overtaking.append((sent_ns, frame))
                self._held_bytes += len(frame)
            else:
                self._hold(frame, max(sent_ns + delay_ns, self._last_release_ns))

    def _hold(self, frame: bytes, release_ns: int) -> None:
        self._last_release_ns = release_ns
        self._waiting.append((release_ns, frame))
        self._held_bytes += len(frame)

    def pop_due(self, now_ns: int) -> bytes | None:
        """Remove and return the next frame that is due; None if there is none.

        The caller sends it and then calls `count_sent`, `count_refused` or `count_exit_down`.
        """
        if self._scheduler is not None:
            self._transmit(self._scheduler, now_ns)
        waiting = self._next_deque()
        if not waiting or waiting[0][0] > now_ns:
            return None
        release_ns, frame = waiting.popleft()
        self._held_bytes -= len(frame)
        late_ns = now_ns - release_ns
        self._lateness_counts[bisect_right(_LATENESS_BOUNDS_NS, late_ns)] += 1
        self._lateness_max_ns = max(self._lateness_max_ns, late_ns)
        return frame

    def count_sent(self, size: int) -> None:
        """Count a frame of `size` bytes from `pop_due` that was sent."""
        self._out_packets += 1
        self._out_bytes += size

    def count_refused(self) -> None:
        """Count a frame from `pop_due` that the kernel refused to send."""
        self._impairments.overrun += 1

    def cut(self, now_ns: int) -> None:
        """Cut the link: drop the frames in flight, and all that arrive until `restore`."""
        self.changed = True
        self._impairments.cut += len(self._waiting) + len(self._overtaking)
        if self._scheduler is not None:
            self._impairments.cut += self._scheduler.clear(now_ns)
        self._waiting.clear()
        self._overtaking.clear()
        self._departures.clear()
        self._held_bytes, self._free_ns, self._last_release_ns = 0, 0.0, 0
        self._is_cut = True

    def restore(self, now_ns: int) -> None:
        """Forward frames again after `cut`."""
        self._is_cut = False

    def count_exit_down(self) -> None:
        """Count a frame from `pop_due` that was lost because its exit port is down."""
        self._impairments.cut += 1

    def count_missed(self, packets: int) -> None:
        """Count frames that the kernel dropped before the emulator could read them."""
        self._in_packets += packets
        self._impairments.overrun += packets

    def stats(self, now_ns: int) -> DirectionStats:
        """Return the counters; the maximum lateness is that since the last call."""
        max_s, self._lateness_max_ns = self._lateness_max_ns / 1e9, 0
        impairments = self._impairments
        queue_bytes = max(0, round((self._free_ns - now_ns) / self._ns_per_byte))
        queued = 0
        if self._scheduler is not None:
            self._transmit(self._scheduler, now_ns)
            queue_bytes, queued = self._scheduler.bytes, len(self._scheduler)
        return DirectionStats(
            in_packets=self._in_packets,
            in_bytes=self._in_bytes,
            crossed_packets=self._in_packets,
            sent_bytes=self._accepted_bytes - queue_bytes,
            out_packets=self._out_packets,
            out_bytes=self._out_bytes,
            lost=impairments.lost,
            dropped=self._dropped,
            overrun=impairments.overrun,
            held=len(self._waiting) + len(self._overtaking) + queued,
            marked=impairments.marked,
            duplicated=impairments.faults["duplicate"],
            faults=dict(impairments.faults),
            cut=impairments.cut,
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
    """Set Congestion Experienced (RFC 3168) in an ECN-capable IPv4 frame.

    Returns:
        The frame, and whether it was changed.
    """
    if frame[12:14] != _IPV4 or len(frame) < 34 or frame[15] & 3 in (0, _CONGESTION_EXPERIENCED):
        return frame, False
    changed = bytearray(frame)
    changed[15] |= _CONGESTION_EXPERIENCED
    # RFC 1624: update the checksum incrementally, for the header's first 16-bit word, in one's complement
    checksum, before = int.from_bytes(frame[24:26], "big"), int.from_bytes(frame[14:16], "big")
    total = (~checksum & 0xFFFF) + (~before & 0xFFFF) + int.from_bytes(changed[14:16], "big")
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed), True
