"""The preloaded parent of all ranks: `python -m testbed.ranks.launcher [RANK,RANK,...]`, or of these.

It imports what the ranks need once, then forks them, each into its host's network namespace. The job comes as one line
of JSON on standard input; events go out as lines of JSON on standard output. The end of standard input, like the death
of the parent, ends everything.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from testbed.job.background import BackgroundHost
from testbed.job.spec import JobSpec
from testbed.job.wiring import THIS_NAMESPACE, RankEndpoint
from testbed.links.netns import set_network_namespace
from testbed.links.process import end_with_parent
from testbed.ranks.background import BackgroundTraffic, end
from testbed.ranks.bench import BenchRank, BenchSpec
from testbed.ranks.rank import Rank
from testbed.ranks.receive_credits import credit_sockets

# for the other ranks to tell what they saw, once one has failed; longer than a transport takes to close
GRACE_S = 2.5


class RankTask(Protocol):
    """What one rank does."""

    def run(self) -> None:
        """All of it."""


@dataclass(frozen=True)
class Work:
    """What the ranks do: where they are, and what makes each one's task of (rank, what it tells)."""

    endpoints: tuple[RankEndpoint, ...]
    make: Callable[[int, Callable[[dict[str, Any]], None]], RankTask]
    background: tuple[BackgroundHost, ...] = ()


def read_work(line: str) -> Work:
    """From the parent's document, which says whether it is a job's steps or a benchmark."""
    if json.loads(line)["task"] == "bench":
        bench = BenchSpec.from_json(line)
        bench.wiring.look_up()
        return Work(bench.wiring.ranks, lambda rank, tell: BenchRank(bench, rank, tell))
    job = JobSpec.from_json(line)
    job.wiring.look_up()
    sockets = credit_sockets(len(job.wiring.ranks)) if job.plan.holds_receivers else ()
    return Work(job.wiring.ranks, lambda rank, tell: Rank(job, rank, tell, sockets), job.background_traffic)


def _rank(work: Work, endpoint: RankEndpoint, pipe: int) -> None:
    """Be one rank."""
    work.make(endpoint.rank, lambda event: _tell(pipe, event)).run()
    _tell(pipe, {"event": "finished", "rank": endpoint.rank})


def _background(endpoint: BackgroundHost, pipe: int) -> None:
    """Send one host's background traffic."""
    _tell(pipe, {"event": "background_traffic", **BackgroundTraffic(endpoint).run()})


def _child(endpoint: RankEndpoint | BackgroundHost, pipe: int, act: Callable[[], None]) -> None:
    """Become a process in its namespace, which does this; never returns."""
    status = 1
    try:
        end_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if endpoint.namespace_pid != THIS_NAMESPACE:
            descriptor = os.open(f"/proc/{endpoint.namespace_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            set_network_namespace(descriptor)
            os.close(descriptor)
        act()
        status = 0
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        event = {"event": "failed", **_who(endpoint), "message": f"{error}", "trace": trace}
        with contextlib.suppress(OSError):
            _tell(pipe, event)
    finally:
        os._exit(status)


def _tell(pipe: int, event: dict[str, Any]) -> None:
    os.write(pipe, (json.dumps(event) + "\n").encode())


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _who(endpoint: RankEndpoint | BackgroundHost) -> dict[str, Any]:
    who = (
        f"rank {endpoint.rank}"
        if isinstance(endpoint, RankEndpoint)
        else f"background traffic {endpoint.job}"
    )
    return {"who": who, "host": endpoint.host}


class Launcher:
    """Forks the ranks and watches them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, RankEndpoint | BackgroundHost] = {}
        self.finished: set[int] = set()
        self.failed = False
        self.buffers: dict[int, bytes] = {}

    def start(self) -> None:
        """Fork every rank."""
        gc.freeze()  # what is loaded now stays shared between the ranks
        pids = {}
        for endpoint in self.work.endpoints:
            pids[str(endpoint.rank)] = self._fork(endpoint, partial(_rank, self.work, endpoint))
        _say({"event": "started", "pids": pids})

    def _fork(self, endpoint: RankEndpoint | BackgroundHost, act: Callable[[int], None]) -> int:
        """A process in its namespace; `act` gets the pipe to tell things through."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _child(endpoint, write_end, partial(act, write_end))
        os.close(write_end)
        self.children[pid] = endpoint
        self.buffers[read_end] = b""
        self.selector.register(read_end, selectors.EVENT_READ)
        return pid

    @property
    def ranks_left(self) -> bool:
        """Whether a rank is at work."""
        return any(isinstance(endpoint, RankEndpoint) for endpoint in self.children.values())

    def watch(self) -> bool:
        """Pass events on until all ranks have ended; returns whether all went well."""
        self.selector.register(0, selectors.EVENT_READ)
        deadline: float | None = None
        told = False
        while self.children:
            if not self.ranks_left and not told:
                told = True
                end([pid for pid, endpoint in self.children.items() if isinstance(endpoint, BackgroundHost)])
            wait_s = 0.2 if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _events in self.selector.select(wait_s):
                if key.fd == 0:
                    if not os.read(0, 4096):
                        return False
                else:
                    self._read(key.fd)
            self._reap()
            if self.failed and deadline is None:
                deadline = time.monotonic() + GRACE_S
            if deadline is not None and time.monotonic() >= deadline:
                return False
        self._drain()
        return len(self.finished) == len(self.work.endpoints)

    def _drain(self) -> None:
        """What was told right before the end is still in the pipes."""
        while pipes := [key.fd for key in self.selector.get_map().values() if key.fd != 0]:
            for descriptor in pipes:
                self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self.selector.unregister(descriptor)
            os.close(descriptor)
            return
        *lines, self.buffers[descriptor] = (self.buffers[descriptor] + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "finished":
                self.finished.add(event["rank"])
            else:
                if event["event"] == "failed":
                    self.failed = True
                _say(event)
                if event["event"] == "step" and event["index"] == 0:
                    for endpoint in self.work.background:
                        self._fork(endpoint, partial(_background, endpoint))

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            endpoint = self.children.pop(pid)
            if os.WIFSIGNALED(status):
                self.failed = True
                message = f"its process {pid} was killed by signal {os.WTERMSIG(status)}"
                _say({"event": "killed", **_who(endpoint), "message": message})

    def stop(self) -> None:
        """Kill what is left."""
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)
        self.children.clear()


def main() -> int:
    """Run all ranks; 0 when all have finished."""
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run stops us in good order
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    work = read_work(sys.stdin.readline())
    if sys.argv[1:]:
        here = set(map(int, sys.argv[1].split(",")))
        work = replace(
            work, endpoints=tuple(endpoint for endpoint in work.endpoints if endpoint.rank in here)
        )
    launcher = Launcher(work)
    try:
        launcher.start()
        good = launcher.watch()
        if good:
            _say({"event": "done"})
        return 0 if good else 1
    finally:
        launcher.stop()


if __name__ == "__main__":
    sys.exit(main())
