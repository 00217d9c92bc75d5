"""What the controller's application keeps in mind: of each switch that is connected, and of rules on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.net.controller.reconcile import DesiredState
from testbed.net.controller.rules import FastFailover, Rule

Rules = Mapping[int, Sequence[Rule]]
"""Every switch's rules, by datapath id."""


@dataclass
class Session:
    """One connection of one switch."""

    datapath: Any
    bridge: str = ""
    sent: dict[int, Rule | None] = field(default_factory=dict)  # by transaction id; None: not a rule
    ports: dict[int, bool] = field(default_factory=dict)  # whether each is up
    flows: list[Any] = field(default_factory=list)
    groups: dict[int, FastFailover | None] = field(default_factory=dict)
    wanted: DesiredState | None = None
    written: int = 0
    busy: bool = False  # between asking for what is there and knowing that all is well
    refused: bool = False
    bundles: int = 0

    def __str__(self) -> str:
        return f"bridge {self.bridge} (datapath id {self.datapath.id:016x})"


@dataclass
class Change:
    """Rules on their way into the switches, and who wants to know."""

    former: Rules
    waiting: set[int]
    done: Callable[[str | None], None]
    changed: int = 0
    begun_s: float = field(default_factory=time.monotonic)
