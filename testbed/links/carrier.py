"""One direction of a userspace link: frames come in, wait, and leave in order.

Pure bookkeeping, no sockets and no clock of its own, so that it can be tested without root: times are integers in
nanoseconds that the caller hands in.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque

from testbed.links.wire import DirectionAccount, Impairment

LATENESS_BOUNDS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_LATENESS_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENESS_BOUNDS_S)
HELD_LIMIT_BYTES = 512 * 1024 * 1024  # a runaway guard: rate and queue are the shaper's business, not ours


class Carrier:
    """Holds the frames of one direction between arrival and release.

    Decisions on loss and jitter come from a generator of this direction's own: the same seed and the same sequence of
    frames give the same decisions. Frames never overtake each other: a frame whose jitter would let it pass the one
    before leaves together with it.
    """

    def __init__(self, impairment: Impairment, seed: str) -> None:
        self._random = random.Random(seed)
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._last_release_ns = 0
        self._in_packets = self._in_bytes = self._out_packets = self._out_bytes = 0
        self._lost = self._overrun = 0
        self.lead_ns = (
            0  # what the rest of the path adds by itself, taken off the delay; see LinkEngine.compensate
        )
        self._lateness_counts = [0] * (len(LATENESS_BOUNDS_S) + 1)
        self._lateness_max_ns = 0
        self.impairment = impairment

    @property
    def impairment(self) -> Impairment:
        """The settings in force; assigning new ones acts on the frames that come after."""
        return self._impairment

    @impairment.setter
    def impairment(self, value: Impairment) -> None:
        self._impairment = value
        self._delay_ns = round(value.delay_s * 1e9)
        self._jitter_ns = round(value.jitter_s * 1e9)

    @property
    def next_release_ns(self) -> int | None:
        """When the frame at the head is due; None when nothing waits."""
        return self._waiting[0][0] if self._waiting else None

    def accept(self, frame: bytes, arrival_ns: int) -> None:
        """Take a frame that arrived at `arrival_ns`."""
        size = len(frame)
        self._in_packets += 1
        self._in_bytes += size
        if self._impairment.loss and self._random.random() < self._impairment.loss:
            self._lost += 1
            return
        if self._held_bytes + size > HELD_LIMIT_BYTES:
            self._overrun += 1
            return
        release_ns = arrival_ns + max(0, self._delay_ns - self.lead_ns)
        if self._jitter_ns:
            release_ns += round(self._random.uniform(-self._jitter_ns, self._jitter_ns))
        release_ns = max(release_ns, self._last_release_ns)
        self._last_release_ns = release_ns
        self._waiting.append((release_ns, frame))
        self._held_bytes += size

    def due(self, now_ns: int) -> bytes | None:
        """The next frame whose time has come, or None. The caller sends it and then calls `sent` or `refused`."""
        waiting = self._waiting
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

    def missed(self, packets: int) -> None:
        """The kernel dropped `packets` frames before we could read them."""
        self._in_packets += packets
        self._overrun += packets

    def account(self) -> DirectionAccount:
        """The books; the lateness maximum is since the last call of `account`."""
        max_s, self._lateness_max_ns = self._lateness_max_ns / 1e9, 0
        return DirectionAccount(
            in_packets=self._in_packets,
            in_bytes=self._in_bytes,
            out_packets=self._out_packets,
            out_bytes=self._out_bytes,
            lost=self._lost,
            overrun=self._overrun,
            held=len(self._waiting),
            lateness_bounds_s=LATENESS_BOUNDS_S,
            lateness_counts=tuple(self._lateness_counts),
            lateness_max_s=max_s,
        )
