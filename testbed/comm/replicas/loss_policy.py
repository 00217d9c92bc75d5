"""Policy for the loss of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["ftar", "restart"]
CatchUpMode = Literal["blocking", "non_blocking"]


@dataclass(frozen=True)
class Policy:
    """A job's handling of failures. Times are in emulated seconds.

    mode: ftar: the surviving replicas continue; restart: all ranks exit and restart from the last checkpoint, at least
    `restart_s` after the failure.
    detect_s: silence after which a rank counts as lost.
    catch_up: blocking: members wait at a step boundary until a returned replica has the state; non_blocking: they
    continue with steps meanwhile.
    checkpoint_every: steps between checkpoints.
    lead_s: delay from when all ranks are ready until a step starts.
    beat_s: step starts are aligned to multiples of this period; 0: not aligned.
    """

    mode: Mode = "ftar"
    catch_up: CatchUpMode = "non_blocking"
    detect_s: float = 1.0
    restart_s: float = 0.0
    checkpoint_every: int = 1
    steps: int = 1
    lead_s: float = 0.01
    beat_s: float = 0.0
