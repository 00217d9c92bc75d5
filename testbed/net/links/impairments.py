"""What happens to packets on a userspace link's fibre: chance decides, from seeded generators."""

from __future__ import annotations

import math
import random

from testbed.spec.link_direction import Direction

PARETO_SHAPE = 3.0  # as in iproute2's table for netem
_PARETO_MEAN = PARETO_SHAPE / (PARETO_SHAPE - 1)
_PARETO_DEVIATION = math.sqrt(PARETO_SHAPE / (PARETO_SHAPE - 2)) / (PARETO_SHAPE - 1)


class Impairments:
    """Loss, corruption, duplication, overtaking and jitter of one direction.

    Every kind of decision has a generator of its own: the same seed and the same sequence of packets give the same
    decisions, and to switch one kind on or off changes nothing in the others.
    """

    def __init__(self, settings: Direction, seed: str) -> None:
        kinds = ("loss", "corrupt", "duplicate", "reorder", "jitter")
        self._loss, self._corrupt, self._duplicate, self._reorder, self._jitter = (
            random.Random(f"{seed}/{kind}") for kind in kinds
        )
        self._bad = False
        self._deviate = 0.0
        self.lost = self.corrupted = self.duplicated = self.reordered = 0
        self.cut = 0  # packets lost because the link was cut
        self.settings = settings

    @property
    def settings(self) -> Direction:
        """The direction's settings as they are now."""
        return self._settings

    @settings.setter
    def settings(self, value: Direction) -> None:
        self._settings = value
        self.perfect = not (
            value.jitter_s
            or value.loss
            or value.loss_bursts
            or value.corrupt
            or value.duplicate
            or value.reorder
        )

    def loses(self) -> bool:
        """Whether the next packet is lost."""
        chance = self._settings.loss
        if bursts := self._settings.loss_bursts:
            turn = bursts.leave if self._bad else bursts.enter
            self._bad ^= self._loss.random() < turn
            chance = bursts.loss if self._bad else bursts.loss_between
        lost = chance > 0 and self._loss.random() < chance
        self.lost += lost
        return lost

    def corrupt(self, frame: bytes) -> bytes:
        """The packet, or what a flipped bit behind its Ethernet header makes of it."""
        if not self._settings.corrupt or self._corrupt.random() >= self._settings.corrupt or len(frame) < 15:
            return frame
        self.corrupted += 1
        bit = self._corrupt.randrange(14 * 8, len(frame) * 8)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def duplicates(self) -> bool:
        """Whether the packet arrives twice."""
        twice = self._settings.duplicate > 0 and self._duplicate.random() < self._settings.duplicate
        self.duplicated += twice
        return twice

    def overtakes(self) -> bool:
        """Whether the packet leaves without delay."""
        first = self._settings.reorder > 0 and self._reorder.random() < self._settings.reorder
        self.reordered += first
        return first

    def deviation_ns(self) -> int:
        """What is added to the delay of the packet, possibly negative."""
        size_s = self._settings.jitter_s
        if not size_s:
            return 0
        # Correlated deviates of the normal distribution, through its cumulative distribution to the one asked for: so
        # the distribution stays what it is whatever the correlation.
        correlation = self._settings.jitter_correlation
        self._deviate = correlation * self._deviate + math.sqrt(
            1 - correlation * correlation
        ) * self._jitter.gauss(0, 1)
        if self._settings.jitter_distribution == "normal":
            return round(size_s * 1e9 * self._deviate)
        below = 0.5 * math.erfc(-self._deviate / math.sqrt(2))
        if self._settings.jitter_distribution == "pareto":
            value = math.pow(max(1 - below, 1e-12), -1 / PARETO_SHAPE)
            return round(size_s * 1e9 * (value - _PARETO_MEAN) / _PARETO_DEVIATION)
        return round(size_s * 1e9 * (2 * below - 1))
