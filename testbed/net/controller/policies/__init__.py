"""Transport policies: classes that map a `View` of the network to routes. All of them are pure.

Each registers under its name in its own module. For user-defined policies see docs/reference/policies.md.
"""

from testbed.net.controller.policies.base import POLICIES, LinkPolicy, Mark, Policy, Route

__all__ = ["POLICIES", "LinkPolicy", "Mark", "Policy", "Route"]
