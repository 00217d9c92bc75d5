"""The scale model: two knobs between the figures of the modelled network and those of the one that is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`size_scale` divides rates and message sizes; `time_dilation` divides rates and multiplies every duration.

    Both are at least 1. Real figures are those of the modelled network, emulated ones those of what is built here.
    """

    size_scale: float = 1.0
    time_dilation: float = 1.0

    @property
    def is_one(self) -> bool:
        """Whether nothing is scaled."""
        return self.size_scale == self.time_dilation == 1

    def emulated_bps(self, real_bps: float) -> float:
        """Bit/s to build for bit/s of the modelled network."""
        return real_bps / (self.size_scale * self.time_dilation)

    def emulated_bytes(self, real_bytes: float) -> float:
        """Bytes to send for bytes in the modelled network."""
        return real_bytes / self.size_scale

    def emulated_s(self, real_s: float) -> float:
        """Seconds to wait for seconds of the modelled network."""
        return real_s * self.time_dilation

    def real_bps(self, emulated_bps: float) -> float:
        """Bit/s of the modelled network for bit/s seen here."""
        return emulated_bps * self.size_scale * self.time_dilation

    def real_bytes(self, emulated_bytes: float) -> float:
        """Bytes in the modelled network for bytes seen here."""
        return emulated_bytes * self.size_scale

    def real_s(self, emulated_s: float) -> float:
        """Seconds of the modelled network for seconds that passed here."""
        return emulated_s / self.time_dilation

    def __str__(self) -> str:
        """For people; empty when nothing is scaled."""
        parts = []
        if self.size_scale != 1:
            parts.append(f"rates and sizes divided by {self.size_scale:g}")
        if self.time_dilation != 1:
            parts.append(f"time stretched {self.time_dilation:g} times")
        return ", ".join(parts)


UNSCALED = Scale()
