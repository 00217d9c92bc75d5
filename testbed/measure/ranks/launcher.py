"""The preloaded parent of all ranks: `python -m testbed.measure.ranks.launcher [RANK,RANK,...]`, or of these.

It imports what the ranks need once, then forks them: see `ranks.process`. The job comes as one line of JSON on
standard input; events go out as lines of JSON on standard output. Further lines of input: {"return": [RANK, ...]} has
ranks that were killed start anew, where the job survives that; {"died": RANK} has it known that one was killed;
{"dump": NAME} dumps the ranks' flight recorders into a folder of that name. The end of standard input, like the death
of the parent, ends everything. At the end, and on SIGUSR1, it dumps the ranks' flight recorders.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder import DUMPED, LAUNCHER_PID, dump_name, read_ring
from testbed.comm.flight_recorder.ring_buffer import ring_bytes
from testbed.comm.replicas.coordinator import Switchboard, fork_coordinator
from testbed.measure.ranks.process import LEFT, ProcessRole, Work, become, end, in_processes, read_work
from testbed.processes import set_parent_death_signal
from testbed.workload.job.endpoints import RankEndpoint

# for the other ranks to tell what they saw, once one has failed; longer than a transport takes to close
GRACE_S = 2.5
LOOK_S = 0.2  # from one look for processes that have ended to the next, where they say nothing


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


class Launcher:
    """Forks the ranks and watches them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, ProcessRole] = {}
        self.finished: set[int] = set()
        self.killed: set[int] = set()  # and not returned
        self.incarnations = {endpoint.rank: 0 for endpoint in work.endpoints}
        self.failed = False
        self.buffers: dict[int, bytes] = {0: b""}
        # shared with the ranks, so that what each did last outlives it
        recorded = work.endpoints if work.dumps is not None else ()
        self.rings = {endpoint.rank: mmap.mmap(-1, ring_bytes()) for endpoint in recorded}
        self.ended: dict[int, str] = {}  # how ranks ended that did not end well
        self.switchboard: Switchboard | None = None  # to the coordinator of replicas that come and go
        self.coordinator = 0
        self.held: dict[int, socket.socket] = {}  # lines of ranks, by their numbers
        self.last_step = -1
        self.ended_steps: dict[
            int, dict[int, float]
        ] = {}  # when it heard that ranks had ended a step, by its number

    def start(self) -> None:
        """Fork every rank, or so many of them together as the document says."""
        gc.freeze()  # what is loaded now stays shared between the ranks
        if self.work.dumps is not None:
            self.work.dumps.mkdir(parents=True, exist_ok=True)
            (self.work.dumps / LAUNCHER_PID).write_text(f"{os.getpid()}\n")
        self._start_coordinator()
        pids: dict[str, int] = {}
        for carried in in_processes(self.work.endpoints, self.work.ranks_per_process, self.rings):
            pid = self._fork(carried)
            pids |= {str(endpoint.rank): pid for endpoint in carried.ranks}
        _say({"event": "started", "pids": pids})

    def _start_coordinator(self) -> None:
        job = self.work.coordinated
        if job is not None and job.replication is not None:
            policy = replace(job.replication.policy, steps=len(job.steps))
            made = fork_coordinator(job.replication.replicas, policy, Path(job.output))
            self.coordinator, self.switchboard = made

    def _fork(self, carried: ProcessRole) -> int:
        """A process that carries this."""
        read_end, write_end = os.pipe()
        if self.switchboard is not None:
            lines = {
                endpoint.rank: self.switchboard.connect(endpoint.rank, carried.incarnation)
                for endpoint in carried.ranks
            }
            carried = replace(carried, lines=lines)
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            if self.switchboard is not None:
                self.switchboard.close()
            for line in self.held.values():
                line.close()
            become(carried, self.work, write_end)
        os.close(write_end)
        for rank, line in carried.lines.items():
            self._part_with(rank, line)
        self.children[pid] = carried
        self.buffers[read_end] = b""
        self.selector.register(read_end, selectors.EVENT_READ)
        return pid

    def _part_with(self, rank: int, line: socket.socket) -> None:
        """The rank's process has its end of a line now; of one that may be lost silently it stays open here, too."""
        job = self.work.coordinated
        assert job is not None
        assert job.replication is not None
        if (earlier := self.held.pop(rank, None)) is not None:
            earlier.close()
        if rank in job.replication.silent:
            self.held[rank] = line
        else:
            line.close()

    @property
    def ranks_left(self) -> bool:
        """Whether a rank is at work."""
        return any(carried.ranks for carried in self.children.values())

    @property
    def over(self) -> bool:
        """Whether all have ended, and nobody can be waited for by those who return."""
        return not self.children and (not self.killed or bool(self.finished))

    def watch(self) -> bool:
        """Pass events on until all ranks have ended; returns whether all went well, but for those that were killed."""
        self.selector.register(0, selectors.EVENT_READ)
        deadline: float | None = None
        told = False
        while not self.over:
            if not self.ranks_left and not told and (not self.killed or self.finished):
                told = True
                end(list(self.children))
            wait_s = LOOK_S if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _events in self.selector.select(wait_s):
                if key.fd == 0:
                    if not self._hear():
                        return False
                else:
                    self._read(key.fd)
            self._reap()
            if self.failed and deadline is None:
                deadline = time.monotonic() + GRACE_S
            if deadline is not None and time.monotonic() >= deadline:
                return False
        self._drain()
        return len(self.finished | self.killed) == len(self.work.endpoints)

    def _hear(self) -> bool:
        """Do what the parent says; whether it still listens."""
        data = os.read(0, 4096)
        *lines, self.buffers[0] = (self.buffers[0] + data).split(b"\n")
        for line in lines:
            asked = json.loads(line)
            if "died" in asked and (held := self.held.pop(asked["died"], None)) is not None:
                held.close()
            self._return(asked.get("return", ()))
            if "dump" in asked:
                self.dump(asked["dump"])
                _say({"event": "dumped", "name": asked["dump"]})
        return bool(data)

    def _return(self, ranks: Sequence[int]) -> None:
        """Fork ranks anew, each in a process of its own; one that has not ended yet is ended first."""
        if not self.work.survives_kills:
            return
        for endpoint in (endpoint for endpoint in self.work.endpoints if endpoint.rank in ranks):
            for pid, carried in list(self.children.items()):
                if endpoint in carried.ranks:
                    os.kill(pid, signal.SIGKILL)
                    self._bury(pid, os.waitpid(pid, 0)[1])
            if not any(endpoint in carried.ranks for carried in self.children.values()):
                self._again(endpoint)

    def _again(self, endpoint: RankEndpoint) -> None:
        """A rank's next incarnation."""
        self.killed.discard(endpoint.rank)
        self.finished.discard(endpoint.rank)
        self.incarnations[endpoint.rank] += 1
        incarnation = self.incarnations[endpoint.rank]
        self.ended.pop(endpoint.rank, None)
        if endpoint.rank in self.rings:
            self.rings[endpoint.rank] = mmap.mmap(-1, ring_bytes())
        pid = self._fork(ProcessRole((endpoint,), self.rings, incarnation=incarnation))
        _say({"event": "returned", "pids": {str(endpoint.rank): pid}, "incarnation": incarnation})

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
            elif event["event"] == "ended":
                self._on_end(event)
            elif event["event"] == "step" and event["index"] <= self.last_step:
                continue  # done once more, after a restart
            else:
                if event["event"] == "step":
                    event["heard_s"] = time.monotonic()
                if event["event"] == "failed":
                    self.failed = True
                    if "rank" in event:
                        self.ended[event["rank"]] = event["message"]
                _say(event)
                if event["event"] == "step":
                    self._on_step(event["index"])

    def _on_end(self, event: dict[str, Any]) -> None:
        """Note when a rank says that it has ended a step; pass it on once all ranks of this launcher's have."""
        index, of = event["index"], event["of"]
        heard_s = self.ended_steps.setdefault(index, {})
        heard_s[event["rank"]] = time.monotonic()
        if len(heard_s) >= min(of, len(self.work.endpoints)):
            del self.ended_steps[index]
            _say({"event": "ended", "index": index, "ranks": len(heard_s), "of": of, "heard_s": heard_s})

    def _on_step(self, index: int) -> None:
        """The first one sets other jobs' traffic going."""
        self.last_step = index
        if index == 0:
            for host in self.work.background:
                self._fork(ProcessRole(background=host))

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._bury(pid, status)

    def _bury(self, pid: int, status: int) -> None:
        carried = self.children.pop(pid)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == LEFT:
            for endpoint in carried.ranks:
                self._again(endpoint)
        if not os.WIFSIGNALED(status):
            return
        ranks = [endpoint.rank for endpoint in carried.ranks]
        if ranks and self.work.survives_kills:
            self.killed |= set(ranks) - self.finished
        else:
            self.failed = True
        how = f"killed by signal {os.WTERMSIG(status)}"
        self.ended |= dict.fromkeys(ranks, how)
        _say({"event": "killed", **carried.who, "ranks": ranks, "message": f"its process {pid} was {how}"})

    def dump(self, name: str = "") -> None:
        """Write down what every rank's flight recorder holds now, and how those ended that have said so.

        name: of a folder beside what is dumped at the end.
        """
        if self.work.dumps is None:
            return
        folder = self.work.dumps / name
        folder.mkdir(exist_ok=True)
        for endpoint in self.work.endpoints:
            rank = endpoint.rank
            ended = self.ended.get(rank, "finished" if rank in self.finished else "")
            found = read_ring(self.rings[rank], endpoint.host, time.monotonic(), ended)
            found.write(folder / dump_name(rank))
        (folder / DUMPED).write_text(f"{time.monotonic()}\n")

    def stop(self) -> None:
        """Kill what is left; a coordinator ends by itself once nobody is."""
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)
        self.children.clear()
        if self.switchboard is not None:
            for line in self.held.values():
                line.close()
            self.switchboard.close()
            os.waitpid(self.coordinator, 0)
            self.switchboard = None


def main() -> int:
    """Run all ranks; 0 when all have finished."""
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run stops us in good order
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    work = read_work(sys.stdin.readline())
    if sys.argv[1:]:
        here = set(map(int, sys.argv[1].split(",")))
        work = replace(
            work, endpoints=tuple(endpoint for endpoint in work.endpoints if endpoint.rank in here)
        )
    launcher = Launcher(work)
    signal.signal(signal.SIGUSR1, lambda number, frame: launcher.dump())
    try:
        launcher.start()
        good = launcher.watch()
        launcher.dump()
        if launcher.work.dumps is not None:
            (launcher.work.dumps / LAUNCHER_PID).unlink()
        if good:
            _say({"event": "done"})
        return 0 if good else 1
    finally:
        launcher.stop()


if __name__ == "__main__":
    sys.exit(main())
