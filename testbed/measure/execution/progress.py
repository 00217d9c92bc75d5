"""Progress reports of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass
class PartProgress:
    """Progress of a part: steps done of `total` (0 of 0 before the first one), and its guest's virtual seconds."""

    name: str
    done: int = 0
    total: int = 0
    clock_s: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class Progress:
    """Callbacks of a run: `phase` once per phase, `step(done, all)` before each step, `parts` from time to time."""

    phase: Callable[[str], None]
    step: Callable[[int, int], None]
    parts: Callable[[Sequence[PartProgress]], None] = lambda parts: None


def progress_text(parts: Sequence[PartProgress]) -> str:
    """Return a text such as "1 of 3 parts done; ring at 12.3 s, leaders at 9.8 s"; empty if there is only one part."""
    if len(parts) < 2:
        return ""
    running = [part for part in parts if part.clock_s > 0 and not part.finished]
    text = f"{sum(part.finished for part in parts)} of {len(parts)} parts done"
    clocks = ", ".join(f"{part.name} at {part.clock_s:.1f} s" for part in running)
    return text + (f"; {clocks}" if clocks else "")


def time_left_text(elapsed_s: float, parts: Sequence[PartProgress]) -> str:
    """Return a text such as "about 40 s left", extrapolated from the steps so far; empty while nothing is known."""
    current = [part for part in parts if part.clock_s > 0 or not part.finished]  # the others were done before
    done = sum(part.total if part.finished else part.done for part in current)
    total = max((part.total for part in current), default=0) * len(current)
    if not done or done >= total:
        return ""
    left_s = elapsed_s / done * (total - done)
    return f"about {left_s:.0f} s left" if left_s < 100 else f"about {left_s / 60:.0f} min left"
