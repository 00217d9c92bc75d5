"""Random impairments of a userspace link, drawn from seeded generators."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from testbed.spec.link_direction import ETHERNET_HEADER_BYTES, PACKET_FAULTS, Direction

PARETO_SHAPE = 3.0  # as in iproute2's table for netem
_PARETO_MEAN = PARETO_SHAPE / (PARETO_SHAPE - 1)
_PARETO_DEVIATION = math.sqrt(PARETO_SHAPE / (PARETO_SHAPE - 2)) / (PARETO_SHAPE - 1)


class Passage(NamedTuple):
    """A frame's fate on the fibre: its bytes, number of copies, whether it overtakes others, its deviation in delay."""

    frame: bytes
    copies: int
    overtakes: bool
    jitter_ns: int


class Impairments:
    """Loss, jitter and packet faults of one direction.

    Each kind of impairment has its own generator. The same seed and sequence of packets give the same decisions, and
    switching one kind on or off does not change the others.
    """

    def __init__(self, settings: Direction, seed: str) -> None:
        self._generators = {
            kind: random.Random(f"{seed}/{kind}") for kind in ("loss", "jitter", *PACKET_FAULTS)
        }
        self._is_bad = False  # state of the Gilbert-Elliott channel
        self._deviate = 0.0
        self.lost = 0
        self.faults = dict.fromkeys(PACKET_FAULTS, 0)
        # counted by the direction: lost because the link was cut, lost for lack of buffers or CPU time, ECN-marked
        self.cut = self.overrun = self.marked = 0
        self.settings = settings

    @property
    def settings(self) -> Direction:
        """The current settings of the direction."""
        return self._settings

    @settings.setter
    def settings(self, value: Direction) -> None:
        self._settings = value
        self.is_noop = not (value.is_random or value.mean_loss)

    def draw(self, frame: bytes) -> Passage | None:
        """Return the next frame's fate; None if it is lost."""
        if self._draw_loss():
            return None
        if len(frame) > ETHERNET_HEADER_BYTES and self._draw_fault("corrupt"):
            frame = self._flip_bit(frame)
        copies = 1 + self._draw_fault("duplicate")
        return Passage(frame, copies, self._draw_fault("reorder"), self._draw_jitter_ns())

    def _draw_loss(self) -> bool:
        probability = self._settings.loss
        generator = self._generators["loss"]
        if bursts := self._settings.loss_bursts:
            transition = bursts.leave if self._is_bad else bursts.enter
            self._is_bad ^= generator.random() < transition
            probability = bursts.loss if self._is_bad else bursts.loss_between
        lost = probability > 0 and generator.random() < probability
        self.lost += lost
        return lost

    def _draw_fault(self, kind: str) -> bool:
        share: float = getattr(self._settings, kind)
        happens = share > 0 and self._generators[kind].random() < share
        self.faults[kind] += happens
        return happens

    def _flip_bit(self, frame: bytes) -> bytes:
        """Flip a bit after the Ethernet header."""
        bit = self._generators["corrupt"].randrange(ETHERNET_HEADER_BYTES * 8, len(frame) * 8)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _draw_jitter_ns(self) -> int:
        """Return the deviation of the packet's delay, possibly negative."""
        size_s = self._settings.jitter_s
        if not size_s:
            return 0
        # Draw correlated normal deviates and map them through the cumulative distribution to the requested one, so that
        # the correlation does not change the distribution.
        correlation = self._settings.jitter_correlation
        self._deviate = correlation * self._deviate + math.sqrt(
            1 - correlation * correlation
        ) * self._generators["jitter"].gauss(0, 1)
        if self._settings.jitter_distribution == "normal":
            return round(size_s * 1e9 * self._deviate)
        quantile = 0.5 * math.erfc(-self._deviate / math.sqrt(2))
        if self._settings.jitter_distribution == "pareto":
            value = math.pow(max(1 - quantile, 1e-12), -1 / PARETO_SHAPE)
            return round(size_s * 1e9 * (value - _PARETO_MEAN) / _PARETO_DEVIATION)
        return round(size_s * 1e9 * (2 * quantile - 1))
