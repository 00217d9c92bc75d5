"""One process of the launcher's: a rank in it, several in threads of their own, or a host's background traffic.

A socket stays in the namespace where it was made, and a namespace is a thread's: so one process carries ranks of many
hosts, each in a thread that has entered its own. They share what was imported, and nothing of it is copied page by page
as in a process of each rank's own; a guest's kernel wakes them in the order in which it would wake processes, so under
the virtual clock they do the same to the nanosecond. Threads of Python's share one core: by this machine's clock they
would get in each other's way.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from testbed.comm.flight_recorder import FLIGHT
from testbed.comm.replicas import RankDismissed
from testbed.measure.ranks.background import BackgroundTraffic
from testbed.measure.ranks.bench import BenchRank, BenchSpec
from testbed.measure.ranks.rank import Rank
from testbed.measure.ranks.receive_credits import credit_sockets
from testbed.measure.ranks.replica_rank import ReplicaRank
from testbed.measure.ranks.serving_rank import ServingRank
from testbed.measure.ranks.startup import StartRank, StartSpec
from testbed.net.links.netns import set_network_namespace
from testbed.processes import raise_open_file_limit, set_parent_death_signal
from testbed.workload.job.endpoints import THIS_NAMESPACE, BackgroundHost, RankEndpoint
from testbed.workload.job.launch_spec import JobSpec

LEFT = 75  # a process ends with this where its rank had to leave, and is to come back
Event = dict[str, Any]
Tell = Callable[[Event], None]


Ring = mmap.mmap
"""What a rank's flight recorder writes into: shared with the launcher, so that it outlives the rank."""


class RankTask(Protocol):
    """What one rank does."""

    def run(self) -> None:
        """All of it."""


@dataclass(frozen=True)
class Work:
    """What the ranks do: where they are, and what makes each one's task of what the rank's process carries.

    make: of (rank, what it tells, what its process carries). dumps: folder for dumps of their flight recorders; None
    where there are none. survives_kills: see JobSpec. coordinated: the job, where replicas come and go.
    """

    endpoints: tuple[RankEndpoint, ...]
    make: Callable[[int, Tell, Carried], RankTask]
    dumps: Path | None = None
    ranks_per_process: int = 1
    background: tuple[BackgroundHost, ...] = ()
    survives_kills: bool = False
    coordinated: JobSpec | None = None


def read_work(line: str) -> Work:
    """From the parent's document, which says whether it is a job's steps, a benchmark or a start alone."""
    task = json.loads(line)["task"]
    if task == "start":
        start = StartSpec.from_json(line)
        return Work(
            start.ranks,
            lambda rank, tell, carried: StartRank(start, rank, tell),
            ranks_per_process=start.ranks_per_process,
        )
    if task == "bench":
        bench = BenchSpec.from_json(line)
        bench.wiring.look_up()
        return Work(
            bench.wiring.ranks,
            lambda rank, tell, carried: BenchRank(bench, rank, tell),
            ranks_per_process=bench.ranks_per_process,
        )
    job = JobSpec.from_json(line)
    job.wiring.look_up()
    sockets = credit_sockets(len(job.wiring.ranks)) if job.plan.holds_receivers else ()

    def make(rank: int, tell: Tell, carried: Carried) -> RankTask:
        ring, line = carried.rings.get(rank), carried.lines.get(rank)
        if line is not None:
            return ReplicaRank(job, rank, tell, line, carried.incarnation, ring)
        if job.dispatching is not None:
            return ServingRank(job, rank, tell, sockets, ring, carried.incarnation)
        return Rank(job, rank, tell, sockets, ring, carried.incarnation)

    return Work(
        job.wiring.ranks,
        make,
        Path(job.output) / FLIGHT,
        job.ranks_per_process,
        job.background_traffic,
        job.survives_kills,
        job if job.replication is not None else None,
    )


@dataclass(frozen=True)
class Carried:
    """What one process is there for: ranks, or the background traffic of one host.

    rings, lines: flight recorders' memory and sockets to a coordinator, by rank. incarnation: how many times its ranks
    were lost before, and returned.
    """

    ranks: tuple[RankEndpoint, ...] = ()
    rings: Mapping[int, Ring] = field(default_factory=dict)
    background: BackgroundHost | None = None
    incarnation: int = 0
    lines: Mapping[int, socket.socket] = field(default_factory=dict)

    @property
    def who(self) -> Event:
        """For people: whose process it is, and where."""
        if self.background is not None:
            return {"who": f"background traffic {self.background.job}", "host": self.background.host}
        first, last = self.ranks[0], self.ranks[-1]
        if first is last:
            return _who(first)
        return {"who": f"ranks {first.rank} to {last.rank}", "host": f"{first.host} to {last.host}"}


def in_processes(
    endpoints: Sequence[RankEndpoint], each: int, rings: Mapping[int, Ring] | None = None
) -> list[Carried]:
    """So many ranks that follow each other to a process; to the last one, what is left."""
    return [
        Carried(tuple(endpoints[start : start + each]), rings or {})
        for start in range(0, len(endpoints), each)
    ]


def become(carried: Carried, work: Work, pipe: int) -> None:
    """Be this process from now on, telling all through a pipe, as lines of JSON; never returns."""
    status = 1
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            os.write(pipe, (json.dumps(event) + "\n").encode())

    try:
        set_parent_death_signal(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the launcher's business
        if carried.background is not None:
            good = _guarded(carried.who, tell, partial(_background, carried.background, tell))
        elif len(carried.ranks) == 1:
            good = _carry(carried.ranks[0], carried, work, tell)
        else:
            good = _in_threads(carried, work, tell)
        status = 0 if good else 1
    except RankDismissed:
        status = LEFT
    finally:
        os._exit(status)


def _in_threads(carried: Carried, work: Work, tell: Tell) -> bool:
    """Every rank in a thread; whether all went well."""
    endpoints = carried.ranks
    raise_open_file_limit()
    good: list[int] = []

    def carry(endpoint: RankEndpoint) -> None:
        if _carry(endpoint, carried, work, tell):
            good.append(endpoint.rank)

    threads = [
        threading.Thread(target=carry, args=(endpoint,), name=f"rank {endpoint.rank}")
        for endpoint in endpoints
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(good) == len(endpoints)


def _carry(endpoint: RankEndpoint, carried: Carried, work: Work, tell: Tell) -> bool:
    """Be one rank, in this thread; whether all went well, which else is told."""

    def act() -> None:
        _enter(endpoint)
        try:
            work.make(endpoint.rank, tell, carried).run()
        except RankDismissed as left:
            if not left.over:
                raise
        tell({"event": "finished", "rank": endpoint.rank})

    return _guarded({**_who(endpoint), "rank": endpoint.rank}, tell, act)


def _background(host: BackgroundHost, tell: Tell) -> None:
    _enter(host)
    tell({"event": "background_traffic", **BackgroundTraffic(host).run()})


def _guarded(who: Event, tell: Tell, act: Callable[[], None]) -> bool:
    """Whether it went well; what did not is told. Left, which is the launcher's business."""
    try:
        act()
    except RankDismissed:
        raise
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        with contextlib.suppress(OSError):
            tell({"event": "failed", **who, "message": f"{error}", "trace": trace})
        return False
    return True


def _enter(endpoint: RankEndpoint | BackgroundHost) -> None:
    """Take this thread into a host's network namespace, for good."""
    if endpoint.namespace_pid == THIS_NAMESPACE:
        return
    descriptor = os.open(f"/proc/{endpoint.namespace_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_network_namespace(descriptor)
    finally:
        os.close(descriptor)


def _who(endpoint: RankEndpoint) -> Event:
    return {"who": f"rank {endpoint.rank}", "host": endpoint.host}
