"""Hop-by-hop pause (IEEE 802.1Qbb with one priority): a switch pauses its senders before its buffer overflows.

There is no input or output here, and callers pass in the time in nanoseconds. A link has two state machines: at its far
end a `PauseIngress` counts the link's bytes that wait in the switch's queues, and at its near end a `PauseGate` decides
whether frames may start. A pause travels over the reverse link: it waits for the frame in transmission, then takes its
own serialisation time and the reverse link's delay. It is never lost and has no time-out: it lasts until the resume.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.net.links.class_scheduler import PauseIngress, Scheduler
from testbed.net.links.emulated_direction import EmulatedDirection
from testbed.net.links.link_engine import DirectionStats, direction_from_json
from testbed.spec.link_direction import PAUSE_FRAME_BYTES, Direction, QueueClass

_KEY_START, _KEY_END = 26, 110  # after the IPv4 header fields that a switch may change: DSCP, ECN and TTL
_ENTRY_LIFETIME_NS = 1_000_000_000


class PauseGate:
    """The pause state of a link's sender. A pause never interrupts a frame in transmission."""

    def __init__(self) -> None:
        self._transitions: deque[tuple[float, bool]] = deque()  # when it closes (True) or opens, in order
        self._last_ns = 0.0
        self._closed = False
        self._closed_since_ns = 0.0
        self._paused_ns = 0.0

    def schedule(self, at_ns: float, closed: bool) -> None:
        """Close or open the gate at a moment, or at that of the last transition if this is later."""
        self._last_ns = max(self._last_ns, at_ns)
        self._transitions.append((self._last_ns, closed))

    def next_open_ns(self, at_ns: float) -> float | None:
        """Return the first moment from `at_ns` on at which the gate is open; None if none is scheduled yet."""
        closed = self._closed
        for transition_ns, closes in self._transitions:
            if transition_ns > at_ns and not closed:
                return at_ns
            if closed and not closes:
                at_ns = max(at_ns, transition_ns)
            closed = closes
        return None if closed else at_ns

    def discard_until(self, until_ns: float) -> None:
        """Discard the transitions up to a moment; callers must not ask for earlier states afterwards."""
        while self._transitions and self._transitions[0][0] <= until_ns:
            at_ns, closes = self._transitions.popleft()
            if closes and not self._closed:
                self._closed_since_ns = at_ns
            elif self._closed and not closes:
                self._paused_ns += at_ns - self._closed_since_ns
            self._closed = closes

    def paused_ns(self, now_ns: float) -> float:
        """Return the total time for which the gate has been closed until now."""
        now = copy.copy(self)
        now._transitions = self._transitions.copy()
        now.discard_until(now_ns)
        return now._paused_ns + (now_ns - now._closed_since_ns if now._closed else 0.0)


class FrameOrigins:
    """A table of the links by which frames entered a switch.

    The kernel's switch does not report it. A frame is recorded when it is handed to the switch, and recognised when it
    comes out: by its IPv4 identification and the bytes after the first half of the header. Identical frames are matched
    in their order of arrival. An entry expires after a second: its frame ended in the switch or in a node attached to
    it.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, deque[tuple[float, PauseIngress | None]]] = {}
        self._order: deque[tuple[float, bytes]] = deque()

    def record(self, frame: bytes, ingress: PauseIngress | None, now_ns: float) -> None:
        """Record a frame that is handed to the switch."""
        key = _frame_key(frame)
        self._entries.setdefault(key, deque()).append((now_ns, ingress))
        self._order.append((now_ns, key))
        while self._order[0][0] < now_ns - _ENTRY_LIFETIME_NS:
            recorded_ns, old = self._order.popleft()
            if (entries := self._entries.get(old)) and entries[0][0] <= recorded_ns:
                self._remove_first(old, entries)

    def take(self, frame: bytes) -> PauseIngress | None:
        """Return the origin of a frame that leaves the switch; None without an entry, as for the switch's frames."""
        key = _frame_key(frame)
        entries = self._entries.get(key)
        return None if entries is None else self._remove_first(key, entries)

    def _remove_first(
        self, key: bytes, entries: deque[tuple[float, PauseIngress | None]]
    ) -> PauseIngress | None:
        _, ingress = entries.popleft()
        if not entries:
            del self._entries[key]
        return ingress


def _frame_key(frame: bytes) -> bytes:
    return frame[16:22] + frame[_KEY_START:_KEY_END]


PAUSE_ENGINE = "userspace"
# Under the real clock, frames, and thus pauses, wait for a CPU core here and in Open vSwitch; buffers get room for it.
PAUSE_LATENESS_S = 50e-3
_ONE_QUEUE = (QueueClass("all"),)


class PausableDirection(EmulatedDirection):
    """An `EmulatedDirection` that the switch at its far end can pause.

    Args:
        settings: The direction's settings; without `pause` the far end sends none.
        seed: Seed of the impairments.
        near: Frame origins of the switch at the near end; None for a host.
        far: Frame origins of the switch at the far end; None for a host, which never pauses.
        lateness_s: How late pauses may be; the far switch's buffer has room for the link's bytes in this extra time.
    """

    def __init__(
        self,
        settings: Direction,
        seed: str,
        near: FrameOrigins | None,
        far: FrameOrigins | None,
        lateness_s: float,
    ) -> None:
        self._near, self._far = near, far
        self._lateness_s = lateness_s
        self._gate = PauseGate()
        self._ingress: PauseIngress | None = None
        # size and origin of the frame in transmission
        self._on_wire: tuple[int, PauseIngress | None] | None = None
        self.reverse: PausableDirection | None = None
        super().__init__(settings, seed)
        if far is not None and settings.pause is not None:
            self._ingress = PauseIngress(settings.pause, self._signal, self._late_bytes(settings))

    @property
    def is_pausing(self) -> bool:
        """Whether the far end has sent a pause and no resume yet."""
        return self._ingress is not None and self._ingress.is_pausing

    def _signal(self, at_ns: float, pause: bool) -> None:
        assert self.reverse is not None
        self._gate.schedule(self.reverse.pause_arrival_ns(at_ns), pause)
        self.changed = True

    def pause_arrival_ns(self, at_ns: float) -> float:
        """Return when a pause sent over this direction arrives: only the frame in transmission goes before it."""
        return max(at_ns, self._free_ns) + PAUSE_FRAME_BYTES * self._ns_per_byte + self._delay_ns

    def _classes(self, value: Direction) -> tuple[QueueClass, ...]:
        return value.classes or _ONE_QUEUE

    def _replace_scheduler(self, value: Direction) -> None:
        super()._replace_scheduler(value)
        if self._ingress is not None and value.pause is not None:
            self._ingress.set_limits(value.pause, self._late_bytes(value))

    def _late_bytes(self, value: Direction) -> int:
        return math.ceil(value.rate_bps / 8 * self._lateness_s)

    def _next_departure_ns(self, scheduler: Scheduler) -> float | None:
        self._gate.discard_until(self._free_ns)
        ready_ns = scheduler.next_departure(self._free_ns)
        return None if ready_ns is None else self._gate.next_open_ns(ready_ns)

    def _origin(self, frame: bytes) -> PauseIngress | None:
        return self._near.take(frame) if self._near is not None else None

    def _transmit(self, scheduler: Scheduler, now_ns: int) -> None:
        self._finish_transmission(now_ns)
        while (at_ns := self._next_departure_ns(scheduler)) is not None and at_ns <= now_ns:
            item = scheduler.dequeue(at_ns)
            self._free_ns = at_ns + item.size * self._ns_per_byte
            self._on_wire = item.size, item.origin
            self._propagate(item.frame, self._free_ns)
            self._finish_transmission(now_ns)

    def _finish_transmission(self, now_ns: float) -> None:
        """Release a frame's room in its switch once its last bit has left."""
        if self._on_wire is None or self._free_ns > now_ns:
            return
        (size, origin), self._on_wire = self._on_wire, None
        if origin is not None:
            origin.on_dequeue(size, self._free_ns)

    @property
    def next_release_ns(self) -> int | None:
        """The time when the next frame is due, may leave its queue, or has left its switch; None when nothing waits."""
        release_ns = super().next_release_ns
        if self._on_wire is None or self._on_wire[1] is None:
            return release_ns
        left_ns = math.ceil(self._free_ns)
        return left_ns if release_ns is None else min(release_ns, left_ns)

    def pop_due(self, now_ns: int) -> bytes | None:
        """Remove and return the next frame that is due, and record its origin for the switch that receives it."""
        frame = super().pop_due(now_ns)
        if frame is not None and self._far is not None:
            self._far.record(frame, self._ingress, now_ns)
        return frame

    def cut(self, now_ns: int) -> None:
        """Cut the link as `EmulatedDirection.cut` does, and open the gate."""
        self._free_ns = min(self._free_ns, now_ns)
        self._finish_transmission(now_ns)
        super().cut(now_ns)
        self._gate.schedule(now_ns, False)

    def restore(self, now_ns: int) -> None:
        """Forward frames again, and repeat a pause that is still in force."""
        super().restore(now_ns)
        if self.is_pausing:
            self._signal(now_ns, True)

    def stats(self, now_ns: int) -> DirectionStats:
        """Return the counters, with those of pauses."""
        stats = dataclasses.replace(super().stats(now_ns), paused_s=self._gate.paused_ns(now_ns) / 1e9)
        if self._ingress is None:
            return stats
        return dataclasses.replace(
            stats,
            pauses=self._ingress.pauses,
            buffer_peak_bytes=self._ingress.peak_bytes,
            buffer_drops=self._ingress.dropped,
        )


def create_directions(
    links: Sequence[Mapping[str, Any]], seed: int, lateness_s: float = 0.0
) -> dict[tuple[str, str], EmulatedDirection]:
    """Create the directions of an emulator's links; all of them are pausable if any link has `pause`.

    Args:
        links: The links, as in the emulator's configuration.
        seed: Seed of the run.
        lateness_s: How late pauses may be.

    Returns:
        The directions by (link name, "a_to_b" or "b_to_a").
    """
    settings = {
        (link["name"], which): direction_from_json(link[which])
        for link in links
        for which in ("a_to_b", "b_to_a")
    }
    seeds = {(name, which): f"{seed}/{name}/{which}" for name, which in settings}
    if not any(direction.pause for direction in settings.values()):
        return {key: EmulatedDirection(direction, seed=seeds[key]) for key, direction in settings.items()}
    origins = {
        switch: FrameOrigins() for link in links for switch in (link["switch_a"], link["switch_b"]) if switch
    }
    found: dict[tuple[str, str], EmulatedDirection] = {}
    for link in links:
        name, near, far = link["name"], origins.get(link["switch_a"]), origins.get(link["switch_b"])
        there, back = (name, "a_to_b"), (name, "b_to_a")
        forth = PausableDirection(settings[there], seeds[there], near, far, lateness_s)
        other = PausableDirection(settings[back], seeds[back], far, near, lateness_s)
        forth.reverse, other.reverse = other, forth
        found[there], found[back] = forth, other
    return found
