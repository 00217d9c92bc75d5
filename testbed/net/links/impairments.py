"""Random impairments of a userspace link, drawn from seeded generators."""

from __future__ import annotations

import math
import random

from testbed.spec.link_direction import Direction

PARETO_SHAPE = 3.0  # as in iproute2's table for netem
_PARETO_MEAN = PARETO_SHAPE / (PARETO_SHAPE - 1)
_PARETO_DEVIATION = math.sqrt(PARETO_SHAPE / (PARETO_SHAPE - 2)) / (PARETO_SHAPE - 1)


class Impairments:
    """Loss, corruption, duplication, reordering and jitter of one direction.

    Each kind of impairment has its own generator. The same seed and sequence of packets give the same decisions, and
    switching one kind on or off does not change the others.
    """

    def __init__(self, settings: Direction, seed: str) -> None:
        kinds = ("loss", "corrupt", "duplicate", "reorder", "jitter")
        self._loss, self._corrupt, self._duplicate, self._reorder, self._jitter = (
            random.Random(f"{seed}/{kind}") for kind in kinds
        )
        self._is_bad = False  # state of the Gilbert-Elliott channel
        self._deviate = 0.0
        self.lost = self.corrupted = self.duplicated = self.reordered = 0
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
        self.is_noop = not (
            value.jitter_s
            or value.loss
            or value.loss_bursts
            or value.corrupt
            or value.duplicate
            or value.reorder
        )

    def draw_loss(self) -> bool:
        """Return whether the next packet is lost."""
        probability = self._settings.loss
        if bursts := self._settings.loss_bursts:
            transition = bursts.leave if self._is_bad else bursts.enter
            self._is_bad ^= self._loss.random() < transition
            probability = bursts.loss if self._is_bad else bursts.loss_between
        lost = probability > 0 and self._loss.random() < probability
        self.lost += lost
        return lost

    def corrupt(self, frame: bytes) -> bytes:
        """Return the packet, possibly with one bit flipped after its Ethernet header."""
        if not self._settings.corrupt or self._corrupt.random() >= self._settings.corrupt or len(frame) < 15:
            return frame
        self.corrupted += 1
        bit = self._corrupt.randrange(14 * 8, len(frame) * 8)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def draw_duplicate(self) -> bool:
        """Return whether the packet is duplicated."""
        twice = self._settings.duplicate > 0 and self._duplicate.random() < self._settings.duplicate
        self.duplicated += twice
        return twice

    def draw_reorder(self) -> bool:
        """Return whether the packet skips the delay and so overtakes others."""
        first = self._settings.reorder > 0 and self._reorder.random() < self._settings.reorder
        self.reordered += first
        return first

    def draw_jitter_ns(self) -> int:
        """Return the deviation of the packet's delay, possibly negative."""
        size_s = self._settings.jitter_s
        if not size_s:
            return 0
        # Draw correlated normal deviates and map them through the cumulative distribution to the requested one, so that
        # the correlation does not change the distribution.
        correlation = self._settings.jitter_correlation
        self._deviate = correlation * self._deviate + math.sqrt(
            1 - correlation * correlation
        ) * self._jitter.gauss(0, 1)
        if self._settings.jitter_distribution == "normal":
            return round(size_s * 1e9 * self._deviate)
        quantile = 0.5 * math.erfc(-self._deviate / math.sqrt(2))
        if self._settings.jitter_distribution == "pareto":
            value = math.pow(max(1 - quantile, 1e-12), -1 / PARETO_SHAPE)
            return round(size_s * 1e9 * (value - _PARETO_MEAN) / _PARETO_DEVIATION)
        return round(size_s * 1e9 * (2 * quantile - 1))
