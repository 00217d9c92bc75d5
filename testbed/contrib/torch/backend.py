"""The backend `testbed` of torch.distributed: its registration and the creation of process groups."""

from __future__ import annotations

import atexit
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from testbed.comm.collectives import Communicator
from testbed.comm.flight_recorder import Recorder
from testbed.contrib.torch.group import Group
from testbed.contrib.torch.group_base import NAME
from testbed.contrib.torch.launch_env import DEFAULT_VARIABLE, BackendError, ProgramJob, ring_name
from testbed.contrib.torch.worker import Worker
from testbed.workload.job.endpoints import join_job

# Communicators are identified by numbers; each default group, with the groups made from it, has a range of this size.
NUMBERS = 1024


class _Process:
    """The state of this process: its job, the worker (made with its first group), and its count of default groups."""

    def __init__(self) -> None:
        self.job = ProgramJob.here()
        self.rank = int(os.environ["RANK"])
        self.worker = Worker(self._join)
        self.defaults = 0
        atexit.register(self.worker.close)

    def _join(self) -> Communicator:
        wiring = self.job.wiring
        joined = join_job(wiring, self.rank)
        made = Communicator(
            joined.transport,
            wiring.buildings,
            wiring.timeout_s,
            tuning=self.job.tuning,
            recorder=self._recorder(),
        )
        made.engine.costs = joined.costs
        return made

    def _recorder(self) -> Recorder | None:
        if not self.job.rings:
            return None
        with (Path(self.job.rings) / ring_name(self.rank)).open("r+b") as file:
            return Recorder(mmap.mmap(file.fileno(), 0), self.rank)


this_process = functools.cache(_Process)


def register() -> None:
    """Register the backend; it is the default if `testbed launch` requests that."""
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, make_group, extended_api=True, devices=["cpu"])
    if os.environ.get(DEFAULT_VARIABLE):
        dist.Backend.default_device_backend_map["cpu"] = NAME


def make_group(options: Any, backend_options: Any) -> Group:
    """Make a process group for torch.distributed. Raises BackendError or TransportError."""
    process = this_process()
    ranks = list(options.global_ranks_in_group)
    default = not ranks
    ranks = ranks or list(range(options.group_size))
    size = len(process.job.wiring.ranks)
    if max(ranks) >= size or ranks[options.group_rank] != process.rank:
        got = f"rank {options.group_rank} of {ranks}"
        expected = f"ranks of the job's 0 to {size - 1}, of which this one is {process.rank}"
        raise BackendError(where="init_process_group", got=got, expected=expected)
    if default:
        process.defaults += 1
    number = _number(process, options, default)
    timeout_s = options.timeout.total_seconds()
    name = "world" if default else options.group_id
    communicator = process.worker.call(lambda world: world.split_as(number, ranks, name, timeout_s=timeout_s))
    return Group(process.worker, communicator, process.job, timeout_s, options.store)


def _number(process: _Process, options: Any, default: bool) -> int:
    """Return a group's number: the same on all its ranks, and unique. Its first rank draws it from the job's store."""
    first = max(0, process.defaults - 1) * NUMBERS + 1
    if default:
        return first
    key = f"testbed/groups/{process.defaults}"  # a store may outlive its default group
    if options.group_rank == 0:
        number = first + dist.distributed_c10d._get_default_store().add(key, 1)
        options.store.set(key, str(number))
    number = int(options.store.get(key))
    if number >= first + NUMBERS:
        raise BackendError(
            where="new_group", got=f"group {number - first}", expected=f"at most {NUMBERS - 1}"
        )
    return number
