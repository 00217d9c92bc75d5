"""Where pieces of work are done that know nothing of each other: here, in processes of this machine, by a cluster."""

from testbed.engines.base import Engine, Workers
from testbed.engines.errors import EngineError, WorkStopped
from testbed.engines.processes import Processes

__all__ = ["Engine", "EngineError", "Processes", "WorkStopped", "Workers"]
