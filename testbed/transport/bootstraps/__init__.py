"""How ranks find each other, by name; each registers in the module where it stands."""

from testbed.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job

__all__ = ["BOOTSTRAPS", "Bootstrap", "Job"]
