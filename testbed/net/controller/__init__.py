"""The SDN controller: policies compute OpenFlow rules, and a separate process installs them in the edge switches.

`compute` is pure. `ControllerProcess` runs `python -m testbed.net.controller`, on os-ken or Ryu. User-defined policies
derive from `Policy` or `LinkPolicy`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from testbed.net.controller.process import ControllerProcess
from testbed.net.controller.rules import Match, Ports
from testbed.net.errors import ControllerError, NoPathError, PolicyError

if TYPE_CHECKING:
    from testbed.net.controller.edges import EdgePorts
    from testbed.net.controller.policies import POLICIES, LinkPolicy, Mark, Policy, Route
    from testbed.net.controller.policy_view import Flow, LinkEnd, View
    from testbed.net.controller.rule_compiler import PolicyChoice, compute, compute_rules

# Imported on first use: the controller process imports this package too and starts faster without them.
_LATER = {
    **dict.fromkeys(("PolicyChoice", "compute", "compute_rules"), "rule_compiler"),
    "EdgePorts": "edges",
    **dict.fromkeys(("POLICIES", "LinkPolicy", "Mark", "Policy", "Route"), "policies"),
    **dict.fromkeys(("Flow", "LinkEnd", "View"), "policy_view"),
}

__all__ = [
    "POLICIES",
    "ControllerError",
    "ControllerProcess",
    "EdgePorts",
    "Flow",
    "LinkEnd",
    "LinkPolicy",
    "Mark",
    "Match",
    "NoPathError",
    "Policy",
    "PolicyChoice",
    "PolicyError",
    "Ports",
    "Route",
    "View",
    "compute",
    "compute_rules",
]


def __getattr__(name: str) -> Any:
    """Import the names in `_LATER` on first use."""
    if name in _LATER:
        return getattr(import_module(f"testbed.net.controller.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
