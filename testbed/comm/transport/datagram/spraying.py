"""Which of several paths the next packet takes: in turn, but for those that mark or lose.

After MRC's states of entropy values (arXiv:2605.04333): GOOD paths are used, SKIP ones passed over once, for a mark;
DENIED ones, for losses, are left alone until a packet is risked on them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from testbed.comm.transport.datagram.packets import Ack

DENY_AFTER = 2  # losses within so many packets of the path, and round trips, of each other
WINDOW_PACKETS, WINDOW_ROUND_TRIPS = 16, 4.0
FIRST_PROBE_ROUND_TRIPS = 8.0
MAX_PROBE_ROUND_TRIPS = 1024.0


class State(Enum):
    """Of a path."""

    GOOD = "good"
    SKIP = "skip"
    DENIED = "denied"


@dataclass
class _Path:
    state: State = State.GOOD
    losses: int = 0
    lost_s: float = -math.inf
    seen: int = 0  # packets of which is known what became of them; when one was lost last
    lost_at: int = 0
    probe_s: float = math.inf  # when a denied path is tried again
    pause: float = FIRST_PROBE_ROUND_TRIPS


class Spray:
    """paths: how many. What was lost and marked on each is told by `heard`."""

    def __init__(self, paths: int) -> None:
        self._paths = [_Path() for _ in range(paths)]
        self._turn = 0
        self.denied = 0  # times that a path was denied
        # by path: the latest serial, packets, marks that were told of
        self._told: dict[int, tuple[int, int, int]] = {}

    @property
    def states(self) -> list[State]:
        """Of each path."""
        return [path.state for path in self._paths]

    def choose(self, now_s: float) -> int:
        """The path of the next packet; all are denied: the one whose turn it is."""
        count = len(self._paths)
        for _ in range(2 * count):
            number = self._turn
            self._turn = (number + 1) % count
            path = self._paths[number]
            if path.state is State.SKIP:
                path.state = State.GOOD
                continue
            if path.state is State.DENIED:
                if now_s < path.probe_s:
                    continue
                path.probe_s = math.inf  # one packet; what becomes of it decides
            return number
        return self._turn

    def told(self, ack: Ack, now_s: float, round_trip_s: float) -> None:
        """A receiver has said how many packets of a path have come, and which was the last."""
        heard, came, marked = self._told.get(ack.path, (-1, 0, 0))
        if ack.heard > heard:
            self._told[ack.path] = ack.heard, ack.came, ack.marked
            new = ack.came - came
            lost = max(0, ack.heard - heard - new)
            self.heard(ack.path, new, lost, ack.marked - marked, now_s, round_trip_s)

    def heard(
        self, number: int, came: int, lost: int, marked: int, now_s: float, round_trip_s: float
    ) -> None:
        """Since the last time so many packets of a path have come, were lost, were marked."""
        path = self._paths[number]
        path.seen += came + lost
        if lost:
            recent = now_s - path.lost_s <= WINDOW_ROUND_TRIPS * round_trip_s
            recent = recent and path.seen - path.lost_at <= WINDOW_PACKETS
            path.losses = path.losses + lost if recent else lost
            path.lost_s, path.lost_at = now_s, path.seen
            if path.state is State.DENIED:
                if path.probe_s == math.inf:  # else it was sent before
                    path.pause = min(2 * path.pause, MAX_PROBE_ROUND_TRIPS)
                    path.probe_s = now_s + path.pause * round_trip_s
            elif path.losses >= DENY_AFTER:
                path.state = State.DENIED
                path.probe_s = now_s + path.pause * round_trip_s
                self.denied += 1
        elif came and path.state is State.DENIED and path.probe_s == math.inf:
            path.state, path.losses, path.pause = State.GOOD, 0, FIRST_PROBE_ROUND_TRIPS
        if marked and path.state is State.GOOD:
            path.state = State.SKIP
