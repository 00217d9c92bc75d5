"""Transport policies. Each is a class that says, from what a `View` knows, where packets go; all are pure.

A user's own is a class in a file of its own: see docs/policies.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.controller.policies.base import LinkPolicy, Mark, Policy, Route
from testbed.controller.policies.explicit import Pinned
from testbed.controller.policies.guarding import PATHS, Failover, Isolate, Limit, Priority

POLICIES: Mapping[str, type[Policy]] = {
    **PATHS,
    "pinned": Pinned,
    "priority": Priority,
    "isolate": Isolate,
    "failover": Failover,
    "limit": Limit,
}

__all__ = ["POLICIES", "LinkPolicy", "Mark", "Policy", "Route"]
