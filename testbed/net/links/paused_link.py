"""A direction of a userspace link in a network whose switches pause: its frames wait until they may begin to leave."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.net.links.class_scheduler import Origin, Scheduler
from testbed.net.links.link_direction import Carrier
from testbed.net.links.pause import Gate, Ingress, Trail
from testbed.net.links.wire import DirectionAccount, direction_from_json
from testbed.spec.link_direction import PAUSE_FRAME_BYTES, Direction, QueueClass

PAUSING_ENGINE = "userspace"
# By the real clock frames, and so pauses, wait for a core here and in Open vSwitch: buffers have room for it.
LATE_S = 50e-3
_ONE_QUEUE = (QueueClass("all"),)


class PausingCarrier(Carrier):
    """As `Carrier`, from one switch or host to another.

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
        self.reverse: PausingCarrier | None = None
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
        """As `Carrier.next_release_ns`, or when a frame has left its switch."""
        release_ns = super().next_release_ns
        if self._on_wire is None or self._on_wire[1] is None:
            return release_ns
        left_ns = math.ceil(self._free_ns)
        return left_ns if release_ns is None else min(release_ns, left_ns)

    def due(self, now_ns: int) -> bytes | None:
        """As `Carrier.due`; a switch that gets the frame knows from where."""
        frame = super().due(now_ns)
        if frame is not None and self._far is not None:
            self._far.note(frame, self._ingress, now_ns)
        return frame

    def cut(self, now_ns: int) -> None:
        """As `Carrier.cut`; nobody hears of a pause."""
        self._free_ns = min(self._free_ns, now_ns)
        self._settle(now_ns)
        super().cut(now_ns)
        self._gate.turn(now_ns, False)

    def mend(self, now_ns: int) -> None:
        """As `Carrier.mend`; a pause that still holds is said once more."""
        super().mend(now_ns)
        if self.pausing:
            self._signal(now_ns, True)

    def account(self, now_ns: int) -> DirectionAccount:
        """As `Carrier.account`, with what was paused."""
        told = dataclasses.replace(super().account(now_ns), paused_s=self._gate.paused_ns(now_ns) / 1e9)
        if self._ingress is None:
            return told
        return dataclasses.replace(
            told,
            pauses=self._ingress.pauses,
            buffer_peak_bytes=self._ingress.peak_bytes,
            buffer_drops=self._ingress.dropped,
        )


def carriers(
    links: Sequence[Mapping[str, Any]], seed: int, late_s: float = 0.0
) -> dict[tuple[str, str], Carrier]:
    """The directions of an emulator's links, as its configuration has them; they pause where any of them may."""
    settings = {
        (link["name"], which): direction_from_json(link[which])
        for link in links
        for which in ("a_to_b", "b_to_a")
    }
    seeds = {(name, which): f"{seed}/{name}/{which}" for name, which in settings}
    if not any(direction.pause for direction in settings.values()):
        return {key: Carrier(direction, seed=seeds[key]) for key, direction in settings.items()}
    trails = {switch: Trail() for link in links for switch in (link["switch_a"], link["switch_b"]) if switch}
    found: dict[tuple[str, str], Carrier] = {}
    for link in links:
        name, near, far = link["name"], trails.get(link["switch_a"]), trails.get(link["switch_b"])
        there, back = (name, "a_to_b"), (name, "b_to_a")
        forth = PausingCarrier(settings[there], seeds[there], near, far, late_s)
        other = PausingCarrier(settings[back], seeds[back], far, near, late_s)
        forth.reverse, other.reverse = other, forth
        found[there], found[back] = forth, other
    return found
