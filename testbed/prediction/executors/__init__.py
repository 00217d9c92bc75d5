"""Where pieces of work are done that know nothing of each other: here, in processes of this machine, by a cluster."""

from testbed.prediction.executors.base import Executor, ExecutorError, Workers, WorkStopped
from testbed.prediction.executors.process_pool import Processes

__all__ = ["Executor", "ExecutorError", "Processes", "WorkStopped", "Workers"]
