"""The engine that a command names: processes of this machine, or Dask's workers here or of a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from testbed.measure.execution.remote_guests import worker_identity
from testbed.prediction.executors import Engine, Processes
from testbed.prediction.executors.dask_cluster import cluster
from testbed.spec.errors import ConfigError, Problem

PROCESSES, DASK = "processes", "dask"
ENGINES = (PROCESSES, DASK)


@contextlib.contextmanager
def engine_named(name: str, scheduler: str | None, jobs: int | None) -> Iterator[Engine]:
    """For the length of a block. jobs: how many processes; None: one for each core. ConfigError, EngineError."""
    if name not in ENGINES:
        raise ConfigError([Problem("command line", None, "--engine", name, " or ".join(ENGINES))])
    if scheduler is not None and name != DASK:
        raise ConfigError([Problem("command line", None, "--scheduler", f"--engine {name}", "--engine dask")])
    count = jobs or len(os.sched_getaffinity(0))
    if name == PROCESSES:
        yield Processes(count)
        return
    with cluster(scheduler, count, worker_identity) as found:
        yield found
