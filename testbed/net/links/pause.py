"""Hop-by-hop pause, after IEEE 802.1Qbb with one priority: a switch stops who sends to it before it overflows.

Pure: times are nanoseconds that callers hand in. Two state machines stand at the ends of a link: where it leads to, an
`Ingress` counts what came by it and still waits in the switch's queues; where it begins, a `Gate` lets frames begin or
not. What the ingress says takes its way back: the frame under way on the reverse link ends first, then the pause's own
frame, then the reverse link's delay. It is not lost and has no time-out: it holds until the resume.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.net.links.class_scheduler import Origin, Scheduler
from testbed.net.links.emulated_direction import EmulatedDirection
from testbed.net.links.link_engine import DirectionStats, direction_from_json
from testbed.spec.link_direction import PAUSE_FRAME_BYTES, Direction, Pause, QueueClass

Signal = Callable[[float, bool], None]
"""Tells the sender: at a moment, to pause (true) or to resume."""
_KEY_FROM, _KEY_TO = 26, 110  # behind what a switch may change of an IPv4 header: its marks, its time to live
_EXPECTED_NS = 1_000_000_000


class Gate:
    """Whether the port of a link's sender may begin a frame. A frame that has begun ends."""

    def __init__(self) -> None:
        self._turns: deque[tuple[float, bool]] = deque()  # when it closes (true) or opens, in order
        self._last_ns = 0.0
        self._closed = False
        self._closed_since_ns = 0.0
        self._paused_ns = 0.0

    def turn(self, at_ns: float, closed: bool) -> None:
        """It closes or opens at a moment to come, not before what it was told last."""
        self._last_ns = max(self._last_ns, at_ns)
        self._turns.append((self._last_ns, closed))

    def opens_ns(self, at_ns: float) -> float | None:
        """The first moment from `at_ns` on at which it is open; None if it was not told yet of any."""
        closed = self._closed
        for turn_ns, closes in self._turns:
            if turn_ns > at_ns and not closed:
                return at_ns
            if closed and not closes:
                at_ns = max(at_ns, turn_ns)
            closed = closes
        return None if closed else at_ns

    def forget(self, until_ns: float) -> None:
        """Nobody will ask of what was before."""
        while self._turns and self._turns[0][0] <= until_ns:
            self._note(*self._turns.popleft())

    def _note(self, at_ns: float, closes: bool) -> None:
        if closes and not self._closed:
            self._closed_since_ns = at_ns
        elif self._closed and not closes:
            self._paused_ns += at_ns - self._closed_since_ns
        self._closed = closes

    def paused_ns(self, now_ns: float) -> float:
        """For how long it has been closed until now, all in all."""
        total_ns, closed, since_ns = self._paused_ns, self._closed, self._closed_since_ns
        for at_ns, closes in self._turns:
            if at_ns > now_ns:
                break
            if closes and not closed:
                since_ns = at_ns
            elif closed and not closes:
                total_ns += at_ns - since_ns
            closed = closes
        return total_ns + (now_ns - since_ns if closed else 0.0)


class Ingress:
    """What a switch holds of what came in by one link, and what it tells who sends there.

    late_bytes: room beyond the buffer for what comes because pauses are late, where they can be.
    """

    def __init__(self, pause: Pause, signal: Signal, late_bytes: int = 0) -> None:
        self.limit(pause, late_bytes)
        self._signal = signal
        self.held_bytes = self.peak_bytes = 0
        self.pauses = self.dropped = 0
        self.pausing = False

    def limit(self, pause: Pause, late_bytes: int = 0) -> None:
        """Other thresholds, for what comes and leaves from now on."""
        self.pause = pause
        self._room_bytes = pause.buffer_bytes + late_bytes

    def takes(self, size: int) -> bool:
        """Whether the buffer has room for a frame of `size` bytes; else it is dropped."""
        room = self.held_bytes + size <= self._room_bytes
        self.dropped += not room
        return room

    def came(self, size: int, at_ns: float) -> None:
        """A frame is in one of the switch's queues."""
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        if self.held_bytes > self.pause.xoff_bytes and not self.pausing:
            self.pausing = True
            self.pauses += 1
            self._signal(at_ns, True)

    def left(self, size: int, at_ns: float) -> None:
        """A frame has left the switch, to its last bit."""
        self.held_bytes -= size
        if self.pausing and self.held_bytes <= self.pause.xon_bytes:
            self.pausing = False
            self._signal(at_ns, False)


class Trail:
    """By which link a frame came into a switch: the switch itself is the kernel's, which does not say.

    What is handed to it is noted, and known again where it comes out: by its IPv4 identification and what follows the
    header's first half. Frames that are alike are known in the order in which they came. What has not come out after a
    second ended in the switch, or in a node beside it.
    """

    def __init__(self) -> None:
        self._notes: dict[bytes, deque[tuple[float, Ingress | None]]] = {}
        self._order: deque[tuple[float, bytes]] = deque()

    def note(self, frame: bytes, ingress: Ingress | None, now_ns: float) -> None:
        """A frame is handed to the switch."""
        key = _key(frame)
        self._notes.setdefault(key, deque()).append((now_ns, ingress))
        self._order.append((now_ns, key))
        while self._order[0][0] < now_ns - _EXPECTED_NS:
            noted_ns, old = self._order.popleft()
            if (notes := self._notes.get(old)) and notes[0][0] <= noted_ns:
                self._forget(old, notes)

    def follow(self, frame: bytes) -> Ingress | None:
        """Where a frame that leaves the switch came in; None for what was never noted, such as its own."""
        key = _key(frame)
        notes = self._notes.get(key)
        return None if notes is None else self._forget(key, notes)

    def _forget(self, key: bytes, notes: deque[tuple[float, Ingress | None]]) -> Ingress | None:
        _, ingress = notes.popleft()
        if not notes:
            del self._notes[key]
        return ingress


def _key(frame: bytes) -> bytes:
    return frame[16:22] + frame[_KEY_FROM:_KEY_TO]


PAUSING_ENGINE = "userspace"
# By the real clock frames, and so pauses, wait for a core here and in Open vSwitch: buffers have room for it.
LATE_S = 50e-3
_ONE_QUEUE = (QueueClass("all"),)


class PausableDirection(EmulatedDirection):
    """As `EmulatedDirection`, from one switch or host to another.

    near, far: trails of the switches at its ends, None where that is a host. A switch at the far end keeps account of
    what comes, and pauses this sender, if the direction says so; its buffer has room for `late_s` of the link more.
    """

    def __init__(
        self, settings: Direction, seed: str, near: Trail | None, far: Trail | None, late_s: float
    ) -> None:
        self._near, self._far = near, far
        self._late_s = late_s
        self._gate = Gate()
        self._ingress: Ingress | None = None
        # size, where it came from; until the wire is free
        self._on_wire: tuple[int, Origin | None] | None = None
        self.reverse: PausableDirection | None = None
        super().__init__(settings, seed)
        if far is not None and settings.pause is not None:
            self._ingress = Ingress(settings.pause, self._signal, self._late_bytes(settings))

    @property
    def pausing(self) -> bool:
        """Whether the far end has said to stop, and not to go on."""
        return self._ingress is not None and self._ingress.pausing

    def _signal(self, at_ns: float, pause: bool) -> None:
        """The far end says at a moment to pause, or to resume."""
        assert self.reverse is not None
        self._gate.turn(self.reverse.pause_arrives_ns(at_ns), pause)
        self.changed = True

    def pause_arrives_ns(self, at_ns: float) -> float:
        """When a pause's frame is across this direction: it goes before all others, but for the one under way."""
        return max(at_ns, self._free_ns) + PAUSE_FRAME_BYTES * self._ns_per_byte + self._delay_ns

    def _classes(self, value: Direction) -> tuple[QueueClass, ...]:
        return value.classes or _ONE_QUEUE

    def _reschedule(self, value: Direction) -> None:
        super()._reschedule(value)
        if self._ingress is not None and value.pause is not None:
            self._ingress.limit(value.pause, self._late_bytes(value))

    def _late_bytes(self, value: Direction) -> int:
        return math.ceil(value.rate_bps / 8 * self._late_s)

    def _start_ns(self, scheduler: Scheduler) -> float | None:
        self._gate.forget(self._free_ns)
        ready_ns = scheduler.next_at(self._free_ns)
        return None if ready_ns is None else self._gate.opens_ns(ready_ns)

    def _origin(self, frame: bytes) -> Origin | None:
        return self._near.follow(frame) if self._near is not None else None

    def _leave(self, scheduler: Scheduler, now_ns: int) -> None:
        self._settle(now_ns)
        while (at_ns := self._start_ns(scheduler)) is not None and at_ns <= now_ns:
            waiting = scheduler.pop(at_ns)
            self._free_ns = at_ns + waiting.size * self._ns_per_byte
            self._on_wire = waiting.size, waiting.origin
            self._into_fibre(waiting.frame, self._free_ns)
            self._settle(now_ns)

    def _settle(self, now_ns: float) -> None:
        """A frame takes room in its switch until its last bit has left."""
        if self._on_wire is None or self._free_ns > now_ns:
            return
        (size, origin), self._on_wire = self._on_wire, None
        if origin is not None:
            origin.left(size, self._free_ns)

    @property
    def next_release_ns(self) -> int | None:
        """As `EmulatedDirection.next_release_ns`, or when a frame has left its switch."""
        release_ns = super().next_release_ns
        if self._on_wire is None or self._on_wire[1] is None:
            return release_ns
        left_ns = math.ceil(self._free_ns)
        return left_ns if release_ns is None else min(release_ns, left_ns)

    def due(self, now_ns: int) -> bytes | None:
        """As `EmulatedDirection.due`; a switch that gets the frame knows from where."""
        frame = super().due(now_ns)
        if frame is not None and self._far is not None:
            self._far.note(frame, self._ingress, now_ns)
        return frame

    def cut(self, now_ns: int) -> None:
        """As `EmulatedDirection.cut`; nobody hears of a pause."""
        self._free_ns = min(self._free_ns, now_ns)
        self._settle(now_ns)
        super().cut(now_ns)
        self._gate.turn(now_ns, False)

    def mend(self, now_ns: int) -> None:
        """As `EmulatedDirection.mend`; a pause that still holds is said once more."""
        super().mend(now_ns)
        if self.pausing:
            self._signal(now_ns, True)

    def account(self, now_ns: int) -> DirectionStats:
        """As `EmulatedDirection.account`, with what was paused."""
        told = dataclasses.replace(super().account(now_ns), paused_s=self._gate.paused_ns(now_ns) / 1e9)
        if self._ingress is None:
            return told
        return dataclasses.replace(
            told,
            pauses=self._ingress.pauses,
            buffer_peak_bytes=self._ingress.peak_bytes,
            buffer_drops=self._ingress.dropped,
        )


def create_directions(
    links: Sequence[Mapping[str, Any]], seed: int, late_s: float = 0.0
) -> dict[tuple[str, str], EmulatedDirection]:
    """The directions of an emulator's links, as its configuration has them; they pause where any of them may."""
    settings = {
        (link["name"], which): direction_from_json(link[which])
        for link in links
        for which in ("a_to_b", "b_to_a")
    }
    seeds = {(name, which): f"{seed}/{name}/{which}" for name, which in settings}
    if not any(direction.pause for direction in settings.values()):
        return {key: EmulatedDirection(direction, seed=seeds[key]) for key, direction in settings.items()}
    trails = {switch: Trail() for link in links for switch in (link["switch_a"], link["switch_b"]) if switch}
    found: dict[tuple[str, str], EmulatedDirection] = {}
    for link in links:
        name, near, far = link["name"], trails.get(link["switch_a"]), trails.get(link["switch_b"])
        there, back = (name, "a_to_b"), (name, "b_to_a")
        forth = PausableDirection(settings[there], seeds[there], near, far, late_s)
        other = PausableDirection(settings[back], seeds[back], far, near, late_s)
        forth.reverse, other.reverse = other, forth
        found[there], found[back] = forth, other
    return found
