"""What a run tells while it is carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What a run tells meanwhile: `phase` once per phase, `step(done, all)` before each step."""

    phase: Callable[[str], None]
    step: Callable[[int, int], None]
