"""Bootstrap methods by name. Each registers in its own module."""

from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job

__all__ = ["BOOTSTRAPS", "Bootstrap", "Job"]
