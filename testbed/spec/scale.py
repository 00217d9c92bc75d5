"""The scale model: two factors between figures of the real network and those of the emulated one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A scale: `size_scale` divides rates and message sizes; `time_dilation` divides rates and multiplies durations.

    Both are at least 1. Real figures are those of the modelled network, emulated ones those of the network built here.
    """

    size_scale: float = 1.0
    time_dilation: float = 1.0

    @property
    def is_one(self) -> bool:
        """Whether nothing is scaled."""
        return self.size_scale == self.time_dilation == 1

    def emulated_bps(self, real_bps: float) -> float:
        """Return the emulated rate for a real one, in bit/s."""
        return real_bps / (self.size_scale * self.time_dilation)

    def emulated_bytes(self, real_bytes: float) -> float:
        """Return the emulated size for a real one, in bytes."""
        return real_bytes / self.size_scale

    def emulated_s(self, real_s: float) -> float:
        """Return the emulated duration for a real one, in seconds."""
        return real_s * self.time_dilation

    def real_bps(self, emulated_bps: float) -> float:
        """Return the real rate for an emulated one, in bit/s."""
        return emulated_bps * self.size_scale * self.time_dilation

    def real_bytes(self, emulated_bytes: float) -> float:
        """Return the real size for an emulated one, in bytes."""
        return emulated_bytes * self.size_scale

    def real_s(self, emulated_s: float) -> float:
        """Return the real duration for an emulated one, in seconds."""
        return emulated_s / self.time_dilation

    def __str__(self) -> str:
        """Describe the scale; empty if nothing is scaled."""
        parts = []
        if self.size_scale != 1:
            parts.append(f"rates and sizes divided by {self.size_scale:g}")
        if self.time_dilation != 1:
            parts.append(f"time stretched {self.time_dilation:g} times")
        return ", ".join(parts)


UNSCALED = Scale()
