"""How a job meets the loss of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["ftar", "restart"]
CatchUpMode = Literal["blocking", "non_blocking"]


@dataclass(frozen=True)
class Policy:
    """How failures are met. Times are the emulation's.

    mode: ftar: the others go on without whom they lost; restart: everybody leaves, and all begin again from the last
    checkpoint, `restart_s` after the failure at the soonest. detect_s: silence after which a rank counts as lost.
    catch_up: blocking: members wait at a step's boundary until a returned replica has the state; non_blocking: they do
    steps meanwhile. checkpoint_every: steps from one checkpoint to the next. lead_s: from when all are ready until a
    step begins.
    """

    mode: Mode = "ftar"
    catch_up: CatchUpMode = "non_blocking"
    detect_s: float = 1.0
    restart_s: float = 0.0
    checkpoint_every: int = 1
    steps: int = 1
    lead_s: float = 0.01
    beat_s: float = 0.0
