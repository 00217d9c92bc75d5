"""A class of HTB, as `tc` is told of it and as the kernel keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TICKS_PER_US = 1e3 / 64  # of the kernel's clock for bursts


@dataclass(frozen=True)
class HtbClass:
    """As the kernel keeps it: bytes per second, bursts as the ticks that they take, bytes."""

    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int
    prio: int

    @classmethod
    def told(cls, words: Mapping[str, str]) -> HtbClass:
        """What `tc` makes of its words for a class."""
        rate, ceil = (int(words[name].removesuffix("bps")) for name in ("rate", "ceil"))
        burst, cburst = (
            # whole microseconds, then whole ticks, as tc reckons
            int(int(int(words[name]) / over * 1e6) * TICKS_PER_US)
            for name, over in (("burst", rate), ("cburst", ceil))
        )
        return cls(rate, ceil, burst, cburst, int(words["quantum"]), int(words.get("prio", "0")))
