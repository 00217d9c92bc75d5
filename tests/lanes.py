"""Runs the lanes of `make test`, some of them in parallel, and prints their durations and skipped tests.

The virtual lane's figures do not depend on the machine's load, and the net lanes mostly wait. So guests run in the
background with idle priority (SCHED_IDLE, and an idle control group where sessions share cores evenly). Where idle
priority is unavailable the virtual lane runs after the others.

Each lane is a target of the Makefile. Usage: python -m tests.lanes
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

REPOSITORY = Path(__file__).parents[1]
# Lint and unit tests keep all cores busy, so guests would only wait.
FIRST = ("lint", "unit")
# Real-clock lanes: each has the machine to itself, except for the guests.
MACHINES = "test-machines"
FRONT = ("net-shared", "net-quiet", MACHINES)
BACK = "test-virtual"
EVERY_S = 0.2
HEARTBEAT_S = 60.0
# After a signal: until remaining lanes get another signal, and until they are killed.
PATIENCE_S, KILL_AFTER_S = 20.0, 20.0
# For orphans of ended lanes: until SIGTERM, and until SIGKILL.
ORPHANS_S = 5.0
PR_SET_PDEATHSIG = 1
NO_SSHD = "there is no SSH server here, and installing one would start it; `make test-machines` does"
GROUPS = Path("/sys/fs/cgroup")
# Version 1 has a folder for each controller, version 2 one for all.
GROUP_PREFIX = "testbed-tests-"
CPU_GROUPS = ("cpu,cpuacct", "cpu", "")


@dataclass(frozen=True)
class Outcome:
    """The result of a lane: exit status, duration, number of passed tests, reasons of skipped ones."""

    lane: str
    status: int
    took_s: float
    passed: int = 0
    skipped: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the result as a line of text."""
        tests = f", {self.passed} passed, {len(self.skipped)} skipped" if self.passed or self.skipped else ""
        said = "" if self.status == 0 else f", FAILED with status {self.status}"
        return f"{self.lane:14} {self.took_s:5.0f} s{tests}{said}"


def results(report: Path) -> tuple[int, tuple[str, ...]]:
    """Return the number of passed tests and the reasons of skipped ones from a JUnit report, if it exists."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, ()
    skipped = [case.find("skipped") for case in cases]
    reasons = [found.get("message", "") for found in skipped if found is not None]
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases) - len(reasons) - len(bad), tuple(reasons)


def summary(outcomes: Sequence[Outcome], took_s: float, missing: Mapping[str, str] | None = None) -> str:
    """Return the last lines of `make test`; `missing` has the lanes that did not run, and why."""
    lines = ["lanes:", *(f"  {outcome.line()}" for outcome in outcomes), f"  {'together':14} {took_s:5.0f} s"]
    lines += [f"  {lane:14} did not run: {reason}" for lane, reason in (missing or {}).items()]
    reasons = Counter((outcome.lane, reason) for outcome in outcomes for reason in outcome.skipped)
    lines.append("skipped, and why:" if reasons else "skipped: nothing")
    lines += [f"  {lane}: {count} of them: {reason}" for (lane, reason), count in reasons.items()]
    lines.append("left to `make test-all`: what is marked `thorough` (pyproject.toml says what that is)")
    lines.append("left to `make test-vagrant`: a machine of Vagrant's")
    return "\n".join(lines)


def shares_by_session(groups: str, autogroup: str | None) -> bool:
    """Return whether the kernel shares cores between sessions first, so that idle priority has no effect across them.

    `groups` is the content of /proc/self/cgroup; `autogroup` is the kernel's setting, or None if it has none.
    """
    if autogroup is None or autogroup.strip() != "1":
        return False
    rows = [line.split(":", 2) for line in groups.splitlines()]
    own = [row[2] for row in rows if "cpu" in row[1].split(",")] or [row[2] for row in rows if not row[1]]
    return not own or own[0] == "/"


@contextlib.contextmanager
def idle_group() -> Iterator[Path | None]:
    """Make a control group with idle priority for the length of the block; None if that is impossible."""
    group = None
    for controller in CPU_GROUPS:
        for left in (GROUPS / controller).glob(f"{GROUP_PREFIX}*"):  # left behind by a killed run
            if not Path("/proc", left.name.removeprefix(GROUP_PREFIX)).exists():
                with contextlib.suppress(OSError):
                    left.rmdir()
        made = GROUPS / controller / f"{GROUP_PREFIX}{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / "cpu.idle").write_text("1")
        except OSError:
            made.rmdir()
            continue
        group = made
        break
    try:
        yield group
    finally:
        deadline = time.monotonic() + PATIENCE_S
        while group is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # busy while a process in it is still exiting
                group.rmdir()
                break
            time.sleep(EVERY_S)


class Lane:
    """A running lane."""

    def __init__(
        self, name: str, reports: Path, output: Path | None = None, behind: Path | None = None
    ) -> None:
        """Start the lane; `output` is the file for its output, `behind` the idle control group to run in."""
        self.name = name
        self.output = output
        self._report = reports / f"{name}.xml"
        self._began_s = time.monotonic()
        command = ["make", "--no-print-directory", name, f"REPORTS={reports}"]
        with output.open("wb") if output else contextlib.nullcontext() as said:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said and subprocess.STDOUT,
                preexec_fn=_behind(behind) if output else _with_parent,  # noqa: PLW1509 (no threads here)
            )

    def poll(self) -> Outcome | None:
        """Return the result if the lane has ended."""
        status = self.process.poll()
        if status is None:
            return None
        return Outcome(self.name, status, time.monotonic() - self._began_s, *results(self._report))

    def say(self) -> None:
        """Print the output, if it went to a file."""
        if self.output:
            say(f"{self.name} said:")
            print(self.output.read_text(errors="replace"), flush=True)

    def progress(self) -> str:
        """Return how long the lane has been running, and its last line of output."""
        words = self.output.read_text(errors="replace").split("\n") if self.output else []
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        return f"{self.name} has been running for {time.monotonic() - self._began_s:.0f} s: {last[-60:]}"


def _with_parent() -> None:
    """Have the lane's first process end when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _behind(group: Path | None) -> Callable[[], None]:
    def prepare() -> None:
        _with_parent()
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    return prepare


class Lanes:
    """Starts the lanes in order and collects their results."""

    def __init__(self, reports: Path) -> None:
        self.outcomes: list[Outcome] = []
        self.stopped: int | None = None
        self._reports = reports
        self._running: list[Lane] = []
        self._said_s = time.monotonic()

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: start no further lane, and end the running ones."""
        self.stopped = self.stopped or number

    def run(self, group: Path | None, beside: bool) -> None:
        """Run all lanes in order; `beside` runs the virtual lane in the background."""
        for name in FIRST:
            self._wait_for(self._start(name))
        behind = self._start(BACK, group) if beside else None
        for name in FRONT:
            if name != MACHINES or has_sshd():
                self._wait_for(self._start(name))
        self._wait_for(behind or self._start(BACK, group))

    def _start(self, name: str, group: Path | None = None) -> Lane | None:
        if self.stopped:
            return None
        say(name + (": in the background; its output follows when it ends" if name == BACK else ""))
        output = self._reports / f"{name}.out" if name == BACK else None
        lane = Lane(name, self._reports, output, group)
        self._running.append(lane)
        return lane

    def _wait_for(self, lane: Lane | None) -> None:
        """Wait for a lane to end; then print the background lane's output if it has ended meanwhile."""
        while lane in self._running:
            time.sleep(EVERY_S)
            if self.stopped:
                return self._end_all(self.stopped)
            if lane is not None and lane.output and time.monotonic() - self._said_s > HEARTBEAT_S:
                say(lane.progress())
                self._said_s = time.monotonic()
            self._note(lane)
        self._note(None)
        self._said_s = time.monotonic()
        return None

    def _note(self, waited_for: Lane | None) -> None:
        """Record lanes that have ended, but not while another one is printing."""
        for lane in list(self._running):
            quiet = waited_for is None or lane is waited_for
            if quiet and (outcome := lane.poll()) is not None:
                self._running.remove(lane)
                self.outcomes.append(outcome)
                lane.say()

    def _end_all(self, number: int) -> None:
        """End all lanes. Ctrl-C and `timeout` signal the whole process group; other senders only this process."""
        say(f"stopped by signal {number}; waiting for the running lanes to clean up")
        processes = [lane.process for lane in self._running]
        started = descendants(os.getpid())
        if number == signal.SIGTERM:
            for process in processes:
                process.terminate()
        for patience_s, then in ((PATIENCE_S, signal.SIGTERM), (KILL_AFTER_S, signal.SIGKILL)):
            deadline = time.monotonic() + patience_s
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(EVERY_S)
            for process in processes:
                if process.poll() is None:
                    process.send_signal(then)
        for process in processes:
            process.wait()
        for then in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + ORPHANS_S
            while (left := started & living().keys()) and time.monotonic() < deadline:
                time.sleep(EVERY_S)
            for pid in left:
                with contextlib.suppress(OSError):  # ended meanwhile, or owned by root
                    os.kill(pid, then)
        for lane in self._running:
            lane.say()
        self.outcomes += [outcome for lane in self._running if (outcome := lane.poll()) is not None]
        self._running.clear()


def living() -> dict[int, int]:
    """Return the parent of each running process of this machine."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    return parents


def descendants(pid: int) -> set[int]:
    """Return the descendants of a process."""
    parents, found, new = living(), set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def has_sshd() -> bool:
    """Return whether an SSH server is installed; it may be outside an ordinary user's PATH."""
    return (
        shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin") is not None
    )


def say(words: str) -> None:
    """Print a line of this runner."""
    print(f"==> {words}", flush=True)


def main() -> int:
    """Return 1 if a lane failed, 128 plus the number of a signal that ended the run, else 0."""
    began_s = time.monotonic()
    reports = Path(tempfile.mkdtemp(prefix="testbed-lanes-"))
    reports.chmod(0o777)  # lanes run as root, or as the checkout's owner
    lanes = Lanes(reports)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lanes.stop)
    try:
        with idle_group() as group:
            lanes.run(group, group is not None or not _shares_by_session())
    finally:
        shutil.rmtree(reports, ignore_errors=True)
    ran = {outcome.lane for outcome in lanes.outcomes}
    stopped = f"stopped by signal {lanes.stopped}" if lanes.stopped else NO_SSHD
    missing = {name: stopped for name in (*FIRST, *FRONT, BACK) if name not in ran}
    print(summary(lanes.outcomes, time.monotonic() - began_s, missing))
    if lanes.stopped:
        return 128 + lanes.stopped
    return next((1 for outcome in lanes.outcomes if outcome.status), 0)


def _shares_by_session() -> bool:
    try:
        autogroup: str | None = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text()
    except OSError:
        autogroup = None
    return shares_by_session(Path("/proc/self/cgroup").read_text(), autogroup)


if __name__ == "__main__":
    sys.exit(main())
