"""Hop-by-hop pause, after IEEE 802.1Qbb with one priority: a switch stops who sends to it before it overflows.

Pure: times are nanoseconds that callers hand in. Two state machines stand at the ends of a link: where it leads to, an
`Ingress` counts what came by it and still waits in the switch's queues; where it begins, a `Gate` lets frames begin or
not. What the ingress says takes its way back: the frame under way on the reverse link ends first, then the pause's own
frame, then the reverse link's delay. It is not lost and has no time-out: it holds until the resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from testbed.spec.link_direction import Pause

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
