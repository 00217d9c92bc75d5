"""The processes that launch a job's ranks, on this machine and on others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from testbed.measure.fidelity.link_invariants import Tunnel
from testbed.measure.ranks.process import RankSpec, task_document
from testbed.net.errors import FabricError
from testbed.net.fabric.machines import Machine
from testbed.net.fabric.network import Fabric
from testbed.processes import close_pipes, wait_or_kill, wait_readable
from testbed.workload.job.errors import RunError
from testbed.workload.job.launch_spec import JobSpec

MONITOR_FILE = "monitor.jsonl"
THIS_MACHINE = "this machine"

LAUNCHER, WATCHER = "testbed.measure.ranks.launcher", "testbed.measure.fidelity.watcher"


class RemoteLauncher:
    """The launcher of the ranks on another machine."""

    def __init__(
        self, machine: Machine, spec: RankSpec, ranks: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        self.machine = machine
        self.pid = machine.start(
            LAUNCHER, [_listed(ranks)], launcher_environment(environment), task_document(spec)
        )

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when there may be events."""
        return self.machine.fileno()

    def events(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Return the events that arrive within this time; raise FabricError if the machine is unreachable."""
        wait_readable([self], timeout_s)
        lines = self.machine.lines(self.pid)
        if not lines and self.pid in self.machine.ended:
            return None
        return [json.loads(line) for line in lines]

    def ended(self, timeout_s: float) -> str | None:
        """Wait for the launcher to end, and return a description of its failure, or None if it succeeded."""
        deadline = time.monotonic() + timeout_s
        while self.pid not in self.machine.ended and time.monotonic() < deadline:
            wait_readable([self], 0.1)
            self.machine.lines(self.pid)
        status = self.machine.ended.get(self.pid)
        if status == 0:
            return None
        how = "did not end" if status is None else f"ended with status {status}"
        return f"the launcher of the ranks on {self.machine.name} {how}"

    def stop(self) -> None:
        """Stop the launcher and its ranks."""
        with contextlib.suppress(FabricError):  # the machine is gone, and so are its processes
            self.machine.call("end", pid=self.pid)


class Launchers:
    """The launchers of all machines, combined into one; without a fabric, only this machine's launcher."""

    def __init__(self, fabric: Fabric | None, spec: RankSpec, environment: Mapping[str, str]) -> None:
        self._parts: list[LauncherProcess | RemoteLauncher] = []
        self._live: list[LauncherProcess | RemoteLauncher] = []
        try:
            if fabric is None or not fabric.other_machines:
                self._parts = [LauncherProcess(spec, environment)]
            else:
                assert isinstance(spec, JobSpec)
                self._start_everywhere(fabric, spec, environment)
        except BaseException:
            self.stop()
            raise
        self._live = list(self._parts)

    def _start_everywhere(self, fabric: Fabric, spec: JobSpec, environment: Mapping[str, str]) -> None:
        of: dict[Machine | None, list[int]] = {}
        for endpoint in spec.wiring.ranks:
            of.setdefault(fabric.machine_of(endpoint.host), []).append(endpoint.rank)
        for machine, ranks in of.items():
            if machine is None:
                some = [_listed(ranks)] if len(of) > 1 else []
                self._parts.append(LauncherProcess(spec, environment, some))
            else:
                there = replace(spec, output=machine.folder)
                self._parts.append(RemoteLauncher(machine, there, ranks, environment))

    def events(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Return the events of all launchers that arrive within this time; None once all have ended."""
        if self._live:
            wait_readable(self._live, timeout_s)
        found = []
        for part in list(self._live):
            said = part.events(0.0)
            if said is None:
                self._live.remove(part)
            else:
                found += said
        return found if self._live or found else None

    def return_ranks(self, ranks: Sequence[int]) -> None:
        """Restart killed ranks; only on this machine, where events can kill ranks."""
        for part in self._parts:
            if isinstance(part, LauncherProcess):
                part.return_ranks(ranks)

    def tell_of_death(self, rank: int) -> None:
        """Report that a rank's process was killed; only on this machine."""
        for part in self._parts:
            if isinstance(part, LauncherProcess):
                part.tell_of_death(rank)

    def dump(self, name: str) -> None:
        """Dump the flight recorders into a directory of that name, if all ranks are on this machine."""
        (*others, last) = self._parts
        if not others and isinstance(last, LauncherProcess):
            last.dump(name)

    def ended(self, timeout_s: float) -> str | None:
        """Wait for all launchers to end, and return a description of the first failure, or None if all succeeded."""
        return next((failure for part in self._parts if (failure := part.ended(timeout_s))), None)

    def stop(self) -> None:
        """Stop all launchers."""
        for part in self._parts:
            part.stop()
        self._parts = []


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


@contextlib.contextmanager
def monitor_remote_hosts(fabric: Fabric) -> Iterator[None]:
    """Run the host monitor on all other machines within the block."""
    started = []
    for machine in fabric.other_machines:
        file = f"{machine.folder}/{monitor_file(machine.name)}"
        started.append((machine, machine.start(WATCHER, [file], {})))
    yield
    for machine, pid in started:  # after a failure, the monitors end with their agents
        machine.call("end", pid=pid)


def monitor_file(machine: str) -> str:
    """Return the name of the host monitor's file for a machine."""
    return f"monitor-{machine}.jsonl"


def monitor_files(folder: Path, tunnels: Sequence[Tunnel]) -> dict[str, Path]:
    """Return the host monitor's file of each machine, by machine name; "" is this machine if it is the only one."""
    others = {tunnel.machine: folder / monitor_file(tunnel.machine) for tunnel in tunnels}
    return {THIS_MACHINE if others else "": folder / MONITOR_FILE, **others}


def measured_tunnels(fabric: Fabric, before: Mapping[str, tuple[int, int]]) -> list[Tunnel]:
    """Return every tunnel as measured before the run, with its frames since `before` and the current clock offsets."""
    clocks = {}
    for machine in fabric.other_machines:
        offset_s, error_s = machine.clock_offset()
        clocks[machine.name] = max(machine.clock_s, abs(offset_s - machine.offset_s) + error_s)
    after = fabric.tunnel_frames()
    found = []
    for tunnel in fabric.tunnels:
        sent, arrived = (
            late - early for late, early in zip(after[tunnel.building], before[tunnel.building], strict=True)
        )
        delays_s = [
            direction.delay_s
            for link in fabric.topology.wan
            for direction in (link.a_to_b, link.b_to_a)
            if tunnel.building in (link.a, link.b)
        ]
        found.append(
            Tunnel(
                tunnel.machine,
                tunnel.building,
                round_trip_s=tunnel.round_trip_s,
                slow_round_trip_s=tunnel.slow_round_trip_s,
                rate_bps=min(tunnel.there_bps, tunnel.back_bps),
                needed_bps=tunnel.needed_bps,
                least_delay_s=min(delays_s, default=0.0),
                sent=sent,
                arrived=arrived,
                clock_s=clocks[tunnel.machine],
            )
        )
    return found


def fetch_remote_files(fabric: Fabric, folder: Path) -> None:
    """Copy files of ranks and monitors from other machines; raise RunError if two machines wrote the same file."""
    for machine in fabric.other_machines:
        for name, text in machine.call("files").items():
            if (folder / name).exists():
                raise RunError(f"{name}: got two files, on this machine and on {machine.name}, expected one")
            (folder / name).write_text(text)


STOP_TIMEOUT_S = 2.0


def launcher_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of ranks, in addition to those of this process."""
    return {**more, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class LauncherProcess:
    """A launcher process on this machine; a context manager that stops it and its ranks.

    `arguments` are those of `testbed.measure.ranks.launcher`.
    """

    def __init__(self, spec: RankSpec, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **launcher_environment(environment)},
        )
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(task_document(spec).encode() + b"\n")
                self._process.stdin.flush()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> LauncherProcess:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when there are events."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def events(self, timeout_s: float | None) -> list[dict[str, Any]] | None:
        """Return the events that arrive within this time; None once the launcher has ended."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if not wait_readable([output], timeout_s):
            return []
        data = os.read(output, 1 << 16)
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def return_ranks(self, ranks: Sequence[int]) -> None:
        """Restart these ranks; do nothing if the launcher has ended."""
        self._request({"return": list(ranks)})

    def tell_of_death(self, rank: int) -> None:
        """Close a killed rank's connection, which the launcher may hold open to emulate a silent loss."""
        self._request({"died": rank})

    def dump(self, name: str) -> None:
        """Dump the ranks' flight recorders into a directory of that name; the event `dumped` follows."""
        self._request({"dump": name})

    def _request(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def ended(self, timeout_s: float) -> str | None:
        """Wait for the launcher to end, and return a description of its failure, or None if it succeeded."""
        status = self._process.wait(timeout_s)
        if status == 0:
            return None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"the launcher of the ranks {how}" + (f": {lines[-1]}" if lines else "")

    def stop(self) -> None:
        """Stop the launcher; kill it if it does not end in time."""
        close_pipes(self._process)
        wait_or_kill(self._process, STOP_TIMEOUT_S)
        self._stderr.close()
