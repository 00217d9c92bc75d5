"""What the controller's process is told about the network that it steers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Situation:
    """A network and what is known about it, as JSON carries it."""

    topology: Mapping[str, Any]
    edges: Sequence[Mapping[str, Any]]
    policy: Mapping[str, Any]
    flows: Sequence[Mapping[str, Any]] = ()
    seed: int = 0
    down: Sequence[str] = ()
