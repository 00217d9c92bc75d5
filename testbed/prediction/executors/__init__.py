"""Executors for independent tasks: this process, a pool of processes, or a Dask cluster."""

from testbed.prediction.executors.base import Executor, ExecutorError, Workers, WorkStopped
from testbed.prediction.executors.process_pool import Processes

__all__ = ["Executor", "ExecutorError", "Processes", "WorkStopped", "Workers"]
