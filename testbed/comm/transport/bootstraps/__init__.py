"""How ranks find each other, by name; each registers in the module where it stands."""

from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job

__all__ = ["BOOTSTRAPS", "Bootstrap", "Job"]
