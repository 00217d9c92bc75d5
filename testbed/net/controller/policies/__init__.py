"""Transport policies. Each is a class that says, from what a `View` knows, where packets go; all are pure.

Each registers under its name in the module where it stands. A user's own is a class in a file of its own: see
docs/reference/policies.md.
"""

from testbed.net.controller.policies.base import POLICIES, LinkPolicy, Mark, Policy, Route

__all__ = ["POLICIES", "LinkPolicy", "Mark", "Policy", "Route"]
