"""Controller: which packet takes which link. Policies compute rules; a process of its own puts them into the switches.

`compute_rules` is pure, `ControllerProcess` runs `python -m testbed.controller`, on os-ken or Ryu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.controller.errors import ControllerError, NoPathError
from testbed.controller.process import ControllerProcess
from testbed.controller.rules import Action, Ecmp, Match, Output, Rule

if TYPE_CHECKING:
    from testbed.controller.policies import POLICIES, EdgePorts, compute_rules

__all__ = [
    "POLICIES",
    "Action",
    "ControllerError",
    "ControllerProcess",
    "Ecmp",
    "EdgePorts",
    "Match",
    "NoPathError",
    "Output",
    "Rule",
    "compute_rules",
]


def __getattr__(name: str) -> Any:
    """Policies on first use: the controller's own process passes through here and starts faster without them."""
    if name in ("POLICIES", "EdgePorts", "compute_rules"):
        from testbed.controller import policies  # noqa: PLC0415

        return getattr(policies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
