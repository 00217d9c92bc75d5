"""What a run tells while it is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass
class PartProgress:
    """How far a part is. done, total: steps, 0 of 0 before the first begins. clock_s: virtual seconds of its guest."""

    name: str
    done: int = 0
    total: int = 0
    clock_s: float = 0.0
    finished: bool = False


def no_parts(parts: Sequence[PartProgress]) -> None:
    """For whoever does not want to know."""


@dataclass(frozen=True)
class Progress:
    """What a run tells meanwhile: `phase` once per phase, `step(done, all)` before each step, `parts` now and then."""

    phase: Callable[[str], None]
    step: Callable[[int, int], None]
    parts: Callable[[Sequence[PartProgress]], None] = no_parts


def progress_text(parts: Sequence[PartProgress]) -> str:
    """For people: "1 of 3 parts done; ring at 12.3 s, leaders at 9.8 s"; empty where there is one part only."""
    if len(parts) < 2:
        return ""
    at_work = [part for part in parts if part.clock_s > 0 and not part.finished]
    said = f"{sum(part.finished for part in parts)} of {len(parts)} parts done"
    moments = ", ".join(f"{part.name} at {part.clock_s:.1f} s" for part in at_work)
    return said + (f"; {moments}" if moments else "")


def time_left_text(elapsed_s: float, parts: Sequence[PartProgress]) -> str:
    """For people: "about 40 s left", as if steps went on as quickly; empty until a step is done and all are known."""
    here = [part for part in parts if part.clock_s > 0 or not part.finished]  # others were there from before
    done = sum(part.total if part.finished else part.done for part in here)
    total = max((part.total for part in here), default=0) * len(here)
    if not done or done >= total:
        return ""
    left_s = elapsed_s / done * (total - done)
    return f"about {left_s:.0f} s left" if left_s < 100 else f"about {left_s / 60:.0f} min left"
