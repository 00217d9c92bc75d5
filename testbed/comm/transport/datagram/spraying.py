"""Packet spraying: packets use paths round-robin, except paths that mark or lose packets.

After MRC's states of entropy values (arXiv:2605.04333): GOOD paths are used; SKIP paths are skipped once, after a mark;
DENIED paths, after losses, are not used until a single packet has probed them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from testbed.comm.transport.datagram.packets import Ack

DENY_AFTER = 2  # losses within WINDOW_PACKETS packets and WINDOW_ROUND_TRIPS round trips of each other
WINDOW_PACKETS, WINDOW_ROUND_TRIPS = 16, 4.0
FIRST_PROBE_ROUND_TRIPS = 8.0
MAX_PROBE_ROUND_TRIPS = 1024.0


class State(Enum):
    """The state of a path."""

    GOOD = "good"
    SKIP = "skip"
    DENIED = "denied"


@dataclass
class _Path:
    state: State = State.GOOD
    losses: int = 0
    lost_s: float = -math.inf
    seen: int = 0  # packets with feedback
    lost_at: int = 0  # `seen` at the last loss
    probe_s: float = math.inf  # when to probe a denied path
    pause: float = FIRST_PROBE_ROUND_TRIPS


class Spray:
    """The path selection. `on_ack` and `record` report losses and marks."""

    def __init__(self, paths: int) -> None:
        self._paths = [_Path() for _ in range(paths)]
        self._turn = 0
        self.denied = 0  # how often a path was denied
        # by path: latest serial, packets and marks as last reported
        self._reported: dict[int, tuple[int, int, int]] = {}

    @property
    def states(self) -> list[State]:
        """The states of all paths."""
        return [path.state for path in self._paths]

    def choose(self, now_s: float) -> int:
        """Return the path of the next packet. If all are denied, it is the next one round-robin."""
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
                path.probe_s = math.inf  # use one packet as a probe
            return number
        return self._turn

    def on_ack(self, ack: Ack, now_s: float, round_trip_s: float) -> None:
        """Update the path of an acknowledgement."""
        latest_serial, received, marked = self._reported.get(ack.path, (-1, 0, 0))
        if ack.latest_serial > latest_serial:
            self._reported[ack.path] = ack.latest_serial, ack.received, ack.marked
            new = ack.received - received
            lost = max(0, ack.latest_serial - latest_serial - new)
            self.record(ack.path, new, lost, ack.marked - marked, now_s, round_trip_s)

    def record(
        self, number: int, received: int, lost: int, marked: int, now_s: float, round_trip_s: float
    ) -> None:
        """Record how many packets of a path arrived, were lost and were marked since the last call."""
        path = self._paths[number]
        path.seen += received + lost
        if lost:
            recent = now_s - path.lost_s <= WINDOW_ROUND_TRIPS * round_trip_s
            recent = recent and path.seen - path.lost_at <= WINDOW_PACKETS
            path.losses = path.losses + lost if recent else lost
            path.lost_s, path.lost_at = now_s, path.seen
            if path.state is State.DENIED:
                if path.probe_s == math.inf:  # otherwise it was sent before the path was denied
                    path.pause = min(2 * path.pause, MAX_PROBE_ROUND_TRIPS)
                    path.probe_s = now_s + path.pause * round_trip_s
            elif path.losses >= DENY_AFTER:
                path.state = State.DENIED
                path.probe_s = now_s + path.pause * round_trip_s
                self.denied += 1
        elif received and path.state is State.DENIED and path.probe_s == math.inf:
            path.state, path.losses, path.pause = State.GOOD, 0, FIRST_PROBE_ROUND_TRIPS
        if marked and path.state is State.GOOD:
            path.state = State.SKIP
