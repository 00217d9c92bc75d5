"""The preloaded parent of all (or the listed) ranks: `python -m testbed.measure.ranks.launcher [RANK,RANK,...]`.

It imports the modules that ranks need once, and then forks the ranks: see `ranks.process`. The first line of standard
input is the job in JSON. Events go to standard output as JSON lines. Further input lines are requests:

- {"return": [RANK, ...]} restarts killed ranks, if the job survives that.
- {"died": RANK} reports that a rank was killed.
- {"dump": NAME} dumps the flight recorders into a directory of that name.

It stops all processes at the end of standard input or when its parent dies. It dumps the flight recorders at the end
and on SIGUSR1.
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
from testbed.measure.ranks.process import (
    LEFT,
    ProcessRole,
    Work,
    group_into_processes,
    parse_work,
    run_process,
    stop_background,
)
from testbed.processes import set_parent_death_signal
from testbed.workload.job.endpoints import RankEndpoint

# time for the other ranks to report after one has failed; longer than a transport takes to close
GRACE_S = 2.5
LOOK_S = 0.2  # polling interval for ended processes


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


class Launcher:
    """The parent process of ranks: it forks and monitors them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, ProcessRole] = {}
        self.finished: set[int] = set()
        self.killed: set[int] = set()  # killed ranks that are not restarted
        self.incarnations = {endpoint.rank: 0 for endpoint in work.endpoints}
        self.failed = False
        self.buffers: dict[int, bytes] = {0: b""}
        # shared with the ranks, so that the records outlive them
        recorded = work.endpoints if work.dumps is not None else ()
        self.rings = {endpoint.rank: mmap.mmap(-1, ring_bytes()) for endpoint in recorded}
        self.ended: dict[int, str] = {}  # how failed ranks ended
        self.switchboard: Switchboard | None = None  # to the coordinator of elastic replicas
        self.coordinator = 0
        self.held: dict[int, socket.socket] = {}  # connections to the coordinator kept open, by rank
        self.last_step = -1
        self.ended_steps: dict[int, dict[int, float]] = {}  # by step: when each rank reported its end

    def start(self) -> None:
        """Fork all ranks, in processes of `ranks_per_process`."""
        gc.freeze()  # keeps everything loaded so far shared between the ranks
        if self.work.dumps is not None:
            self.work.dumps.mkdir(parents=True, exist_ok=True)
            (self.work.dumps / LAUNCHER_PID).write_text(f"{os.getpid()}\n")
        self._start_coordinator()
        pids: dict[str, int] = {}
        for role in group_into_processes(self.work.endpoints, self.work.ranks_per_process, self.rings):
            pid = self._fork(role)
            pids |= {str(endpoint.rank): pid for endpoint in role.ranks}
        _emit({"event": "started", "pids": pids})

    def _start_coordinator(self) -> None:
        job = self.work.coordinated
        if job is not None and job.replication is not None:
            policy = replace(job.replication.policy, steps=len(job.steps))
            made = fork_coordinator(job.replication.replicas, policy, Path(job.output))
            self.coordinator, self.switchboard = made

    def _fork(self, role: ProcessRole) -> int:
        """Fork a process for a role and return its id."""
        read_end, write_end = os.pipe()
        if self.switchboard is not None:
            lines = {
                endpoint.rank: self.switchboard.connect(endpoint.rank, role.incarnation)
                for endpoint in role.ranks
            }
            role = replace(role, lines=lines)
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            if self.switchboard is not None:
                self.switchboard.close()
            for line in self.held.values():
                line.close()
            run_process(role, self.work, write_end)
        os.close(write_end)
        for rank, line in role.lines.items():
            self._release(rank, line)
        self.children[pid] = role
        self.buffers[read_end] = b""
        self.selector.register(read_end, selectors.EVENT_READ)
        return pid

    def _release(self, rank: int, line: socket.socket) -> None:
        """Close this process's copy of a rank's connection, or keep it open to emulate a silent loss of the rank."""
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
        """Whether any rank is still running."""
        return any(role.ranks for role in self.children.values())

    @property
    def over(self) -> bool:
        """Whether all processes have ended and no killed rank can be restarted any more."""
        return not self.children and (not self.killed or bool(self.finished))

    def watch(self) -> bool:
        """Forward events until all ranks have ended, and return whether all finished or were killed by events."""
        self.selector.register(0, selectors.EVENT_READ)
        deadline: float | None = None
        background_stopped = False
        while not self.over:
            if not self.ranks_left and not background_stopped and (not self.killed or self.finished):
                background_stopped = True
                stop_background(list(self.children))
            wait_s = LOOK_S if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _events in self.selector.select(wait_s):
                if key.fd == 0:
                    if not self._handle_requests():
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

    def _handle_requests(self) -> bool:
        """Handle the parent's requests, and return whether it is still alive."""
        data = os.read(0, 4096)
        *lines, self.buffers[0] = (self.buffers[0] + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "died" in request and (held := self.held.pop(request["died"], None)) is not None:
                held.close()
            self._return(request.get("return", ()))
            if "dump" in request:
                self.dump(request["dump"])
                _emit({"event": "dumped", "name": request["dump"]})
        return bool(data)

    def _return(self, ranks: Sequence[int]) -> None:
        """Restart ranks, each in its own process; ranks that are still running are killed first."""
        if not self.work.survives_kills:
            return
        for endpoint in (endpoint for endpoint in self.work.endpoints if endpoint.rank in ranks):
            for pid, role in list(self.children.items()):
                if endpoint in role.ranks:
                    os.kill(pid, signal.SIGKILL)
                    self._handle_exit(pid, os.waitpid(pid, 0)[1])
            if not any(endpoint in role.ranks for role in self.children.values()):
                self._restart(endpoint)

    def _restart(self, endpoint: RankEndpoint) -> None:
        """Fork a rank's next incarnation."""
        self.killed.discard(endpoint.rank)
        self.finished.discard(endpoint.rank)
        self.incarnations[endpoint.rank] += 1
        incarnation = self.incarnations[endpoint.rank]
        self.ended.pop(endpoint.rank, None)
        if endpoint.rank in self.rings:
            self.rings[endpoint.rank] = mmap.mmap(-1, ring_bytes())
        pid = self._fork(ProcessRole((endpoint,), self.rings, incarnation=incarnation))
        _emit({"event": "returned", "pids": {str(endpoint.rank): pid}, "incarnation": incarnation})

    def _drain(self) -> None:
        """Read the events that are still in the pipes after all processes have ended."""
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
                continue  # repeated after a restart from a checkpoint
            else:
                if event["event"] == "step":
                    event["heard_s"] = time.monotonic()
                if event["event"] == "failed":
                    self.failed = True
                    if "rank" in event:
                        self.ended[event["rank"]] = event["message"]
                _emit(event)
                if event["event"] == "step":
                    self._on_step(event["index"])

    def _on_end(self, event: dict[str, Any]) -> None:
        """Record when a rank reports a step's end; forward the event once all ranks of this launcher have done so."""
        index, of = event["index"], event["of"]
        heard_s = self.ended_steps.setdefault(index, {})
        heard_s[event["rank"]] = time.monotonic()
        if len(heard_s) >= min(of, len(self.work.endpoints)):
            del self.ended_steps[index]
            _emit({"event": "ended", "index": index, "ranks": len(heard_s), "of": of, "heard_s": heard_s})

    def _on_step(self, index: int) -> None:
        """Start the background traffic with the first step."""
        self.last_step = index
        if index == 0:
            for host in self.work.background:
                self._fork(ProcessRole(background=host))

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._handle_exit(pid, status)

    def _handle_exit(self, pid: int, status: int) -> None:
        role = self.children.pop(pid)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == LEFT:
            for endpoint in role.ranks:
                self._restart(endpoint)
        if not os.WIFSIGNALED(status):
            return
        ranks = [endpoint.rank for endpoint in role.ranks]
        if ranks and self.work.survives_kills:
            self.killed |= set(ranks) - self.finished
        else:
            self.failed = True
        how = f"killed by signal {os.WTERMSIG(status)}"
        self.ended |= dict.fromkeys(ranks, how)
        _emit({"event": "killed", **role.who, "ranks": ranks, "message": f"its process {pid} was {how}"})

    def dump(self, name: str = "") -> None:
        """Dump every rank's flight recorder, with how the rank ended, if known.

        `name` is a subdirectory; the dumps at the end of the run are not in one.
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
        """Kill the remaining processes; the coordinator ends on its own after all ranks have ended."""
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
    """Run all ranks and return the exit status: 0 if all have finished."""
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run itself stops the launcher
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    work = parse_work(sys.stdin.readline())
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
            _emit({"event": "done"})
        return 0 if good else 1
    finally:
        launcher.stop()


if __name__ == "__main__":
    sys.exit(main())
