"""Processes forked by the launcher: one rank, several ranks in threads, or background traffic.

A socket stays in the network namespace where it was created, and each thread has its own current namespace. So one
process can run ranks of many hosts, each in a thread that has entered its host's namespace. Threads share all imported
modules without copy-on-write. A guest's kernel wakes threads in the same order as processes, so results under the
virtual clock are the same to the nanosecond. On the real clock, threads of one process would wait for each other
because of the GIL.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from testbed.comm.flight_recorder import FLIGHT
from testbed.comm.replicas import RankDismissed
from testbed.comm.transport import SocketSettings, TrafficClass, TransportError
from testbed.documents import rebuild, to_json
from testbed.measure.ranks.benchmarks import BenchRank, BenchSpec, BootstrapRank, BootstrapSpec
from testbed.measure.ranks.executor import credit_sockets
from testbed.measure.ranks.rank import Rank
from testbed.measure.ranks.replica_rank import ReplicaRank
from testbed.measure.ranks.serving_rank import ServingRank
from testbed.net.links.netns import set_network_namespace
from testbed.processes import raise_open_file_limit, set_parent_death_signal
from testbed.workload.job.endpoints import THIS_NAMESPACE, BackgroundHost, RankEndpoint
from testbed.workload.job.launch_spec import JobSpec

LEFT = 75  # exit status of a rank that had to leave and must be restarted
Event = dict[str, Any]
EventCallback = Callable[[Event], None]


Ring = mmap.mmap
"""Memory of a rank's flight recorder, shared with the launcher so that it outlives the rank."""


RankTask = Rank | BenchRank | BootstrapRank


@dataclass(frozen=True)
class Work:
    """The work of all ranks.

    Attributes:
        endpoints: The endpoint of each rank.
        make: Function that makes a rank's task from the rank, its event callback and its process's role.
        dumps: Directory for flight recorder dumps; None for no flight recorders.
        ranks_per_process: Rank threads per process.
        background: Hosts with background traffic.
        survives_kills: See JobSpec.
        coordinated: The job, if it has elastic replicas.
    """

    endpoints: tuple[RankEndpoint, ...]
    make: Callable[[int, EventCallback, ProcessRole], RankTask]
    dumps: Path | None = None
    ranks_per_process: int = 1
    background: tuple[BackgroundHost, ...] = ()
    survives_kills: bool = False
    coordinated: JobSpec | None = None


RankSpec = JobSpec | BenchSpec | BootstrapSpec
"""The specification of ranks, as a launcher gets it."""
TASKS: Mapping[str, type[RankSpec]] = {"steps": JobSpec, "bench": BenchSpec, "start": BootstrapSpec}


def task_document(spec: RankSpec) -> str:
    """Return a specification as one line of JSON, for `parse_work`."""
    return to_json(spec, task=next(task for task, kind in TASKS.items() if kind is type(spec)))


def parse_work(line: str) -> Work:
    """Parse the parent's document: a job, a collective benchmark or a bootstrap benchmark."""
    document = json.loads(line)
    spec = rebuild(TASKS[document["task"]], document)
    if isinstance(spec, BootstrapSpec):
        start = spec
        return Work(
            start.ranks,
            lambda rank, emit, role: BootstrapRank(start, rank, emit),
            ranks_per_process=start.ranks_per_process,
        )
    spec.wiring.look_up()
    if isinstance(spec, BenchSpec):
        bench = spec
        return Work(
            bench.wiring.ranks,
            lambda rank, emit, role: BenchRank(bench, rank, emit),
            ranks_per_process=bench.ranks_per_process,
        )
    job = spec
    sockets = credit_sockets(len(job.wiring.ranks)) if job.plan.holds_receivers else ()

    def make(rank: int, emit: EventCallback, role: ProcessRole) -> RankTask:
        ring, line = role.rings.get(rank), role.lines.get(rank)
        if line is not None:
            return ReplicaRank(job, rank, emit, line, role.incarnation, ring)
        if job.dispatching is not None:
            return ServingRank(job, rank, emit, sockets, ring, role.incarnation)
        return Rank(job, rank, emit, sockets, ring, role.incarnation)

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
class ProcessRole:
    """The role of one process: ranks, or the background traffic of one host.

    `rings` and `lines` are the flight recorders' memory and the sockets to the coordinator, by rank. `incarnation`
    counts the restarts of its ranks.
    """

    ranks: tuple[RankEndpoint, ...] = ()
    rings: Mapping[int, Ring] = field(default_factory=dict)
    background: BackgroundHost | None = None
    incarnation: int = 0
    lines: Mapping[int, socket.socket] = field(default_factory=dict)

    @property
    def who(self) -> Event:
        """The process's name and host, for messages."""
        if self.background is not None:
            return {"who": f"background traffic {self.background.job}", "host": self.background.host}
        first, last = self.ranks[0], self.ranks[-1]
        if first is last:
            return _who(first)
        return {"who": f"ranks {first.rank} to {last.rank}", "host": f"{first.host} to {last.host}"}


def group_into_processes(
    endpoints: Sequence[RankEndpoint], each: int, rings: Mapping[int, Ring] | None = None
) -> list[ProcessRole]:
    """Group consecutive ranks into processes of `each` ranks; the last one may have fewer."""
    return [
        ProcessRole(tuple(endpoints[start : start + each]), rings or {})
        for start in range(0, len(endpoints), each)
    ]


def run_process(role: ProcessRole, work: Work, pipe: int) -> None:
    """Run a role in this process, and then exit; events go to a pipe as JSON lines."""
    status = 1
    lock = threading.Lock()

    def emit(event: Event) -> None:
        with lock:
            os.write(pipe, (json.dumps(event) + "\n").encode())

    try:
        set_parent_death_signal(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # only for the launcher
        if role.background is not None:
            good = _guarded(role.who, emit, partial(_background, role.background, emit))
        elif len(role.ranks) == 1:
            good = _run_rank(role.ranks[0], role, work, emit)
        else:
            good = _run_threads(role, work, emit)
        status = 0 if good else 1
    except RankDismissed:
        status = LEFT
    finally:
        os._exit(status)


def _run_threads(role: ProcessRole, work: Work, emit: EventCallback) -> bool:
    """Run every rank in a thread, and return whether all succeeded."""
    endpoints = role.ranks
    raise_open_file_limit()
    good: list[int] = []

    def run(endpoint: RankEndpoint) -> None:
        if _run_rank(endpoint, role, work, emit):
            good.append(endpoint.rank)

    threads = [
        threading.Thread(target=run, args=(endpoint,), name=f"rank {endpoint.rank}") for endpoint in endpoints
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(good) == len(endpoints)


def _run_rank(endpoint: RankEndpoint, role: ProcessRole, work: Work, emit: EventCallback) -> bool:
    """Run one rank in this thread, and return whether it succeeded; a failure is reported as an event."""

    def act() -> None:
        _enter(endpoint)
        try:
            work.make(endpoint.rank, emit, role).run()
        except RankDismissed as left:
            if not left.over:
                raise
        emit({"event": "finished", "rank": endpoint.rank})

    return _guarded({**_who(endpoint), "rank": endpoint.rank}, emit, act)


def _background(host: BackgroundHost, emit: EventCallback) -> None:
    _enter(host)
    emit({"event": "background_traffic", **BackgroundTraffic(host).run()})


def _guarded(who: Event, emit: EventCallback, act: Callable[[], None]) -> bool:
    """Call `act`, report a failure as an event, and return whether it succeeded; RankDismissed passes through."""
    try:
        act()
    except RankDismissed:
        raise
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        with contextlib.suppress(OSError):
            emit({"event": "failed", **who, "message": f"{error}", "trace": trace})
        return False
    return True


def _enter(endpoint: RankEndpoint | BackgroundHost) -> None:
    """Move this thread permanently into a host's network namespace."""
    if endpoint.namespace_pid == THIS_NAMESPACE:
        return
    descriptor = os.open(f"/proc/{endpoint.namespace_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_network_namespace(descriptor)
    finally:
        os.close(descriptor)


def _who(endpoint: RankEndpoint) -> Event:
    return {"who": f"rank {endpoint.rank}", "host": endpoint.host}


BACKGROUND_PORT = 29_600
DIAL_TIMEOUT_S, DIAL_AGAIN_S = 5.0, 0.01
PIECE_BYTES = 256 * 1024


class _Ended(Exception):
    """The exception for a received SIGTERM."""


class BackgroundTraffic:
    """The background traffic of one host."""

    def __init__(self, endpoint: BackgroundHost) -> None:
        self.endpoint = endpoint
        self.settings = SocketSettings(endpoint.congestion_control)
        self.received = 0
        self._selector = selectors.DefaultSelector()
        self._piece = memoryview(bytes(PIECE_BYTES))
        self._sink = memoryview(bytearray(PIECE_BYTES))

    def run(self) -> dict[str, Any]:
        """Send and receive until SIGTERM; return job, host, `received_bytes` and `time_s`, as data for JSON.

        Raises:
            OSError: If a connection breaks.
            TransportError: If a target cannot be reached.
        """
        signal.signal(signal.SIGTERM, _end)
        began_s = time.monotonic()
        with contextlib.suppress(_Ended):
            self._listen()
            for number, target in enumerate(self.endpoint.targets * self.endpoint.connections):
                self._selector.register(self._dial(target, number), selectors.EVENT_WRITE, self._send)
            while True:
                for key, _ in self._selector.select():
                    key.data(key.fileobj)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {
            "job": self.endpoint.job,
            "host": self.endpoint.host,
            "received_bytes": self.received,
            "time_s": time.monotonic() - began_s,
        }

    def _listen(self) -> None:
        listener = self.settings.make()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.endpoint.ip, BACKGROUND_PORT))
        listener.listen(512)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        self.settings.apply(sock, TrafficClass(self.endpoint.dscp))
        self._selector.register(sock, selectors.EVENT_READ, self._receive)

    def _dial(self, target: str, number: int) -> socket.socket:
        """Connect to a target, retrying until it listens."""
        deadline_s = time.monotonic() + DIAL_TIMEOUT_S
        while True:
            sock = self.settings.make()
            self.settings.apply(sock, TrafficClass(self.endpoint.dscp))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.endpoint.ip, self.endpoint.source_port + number))
            sock.settimeout(DIAL_TIMEOUT_S)
            try:
                sock.connect((target, BACKGROUND_PORT))
            except OSError as error:
                sock.close()
                if time.monotonic() > deadline_s:
                    raise TransportError(f"no connection to {target}: {error}") from None
                time.sleep(DIAL_AGAIN_S)
                continue
            sock.setblocking(False)
            return sock

    def _send(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            sock.send(self._piece)

    def _receive(self, sock: socket.socket) -> None:
        count = sock.recv_into(self._sink)
        self.received += count
        if not count:
            self._selector.unregister(sock)
            sock.close()


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended


def stop_background(pids: Sequence[int]) -> None:
    """Stop the background traffic of these processes with SIGTERM; ignore processes that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
