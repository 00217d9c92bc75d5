"""One guest: boots the kernel over this machine's root file system, runs one command in it, brings out what it said.

The guest's files live in a control folder that goes away with it; its processes are one session, killed as one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.clock import CLOCK_VARIABLE, CpuTime
from testbed.errors import BadInput
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest_memory import MemoryFile, describe_map_limit, reached_map_limit
from testbed.net.virtual.kernel_image import SECCOMP_SINCE, KernelImage, parse_version

BOOT, INIT = (Path(__file__).with_name(name) for name in ("boot.py", "guest_init.py"))
# The guest's calendar: the same in every run, for what depends on the date would differ otherwise.
EPOCH_NS = 1_767_225_600 * 10**9  # 2026-01-01
# Nothing on the guest kernel's command line differs between two people: programs could read it. What does differ is in
# the folder in which the kernel's process runs, which the guest finds by this constant path. (`mem=`, `uml_dir=` and
# `seccomp=` are taken off the line before the guest sees it.)
CONTROL_LINK = "/proc/self/cwd"
PYTHON = "python"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a guest runs of this machine's, besides Python.
GUEST_PROGRAMS = (
    "ovsdb-tool",
    "ovsdb-server",
    "ovs-vsctl",
    "ovs-vswitchd",
    "mnexec",
    "ip",
    "tc",
    "bridge",
    "mount",
)
POLL_S = 0.05
TAIL_LINES = 12
TAIL_BYTES = 8192
MIN_MEMORY_BYTES = 256 << 20
DEFAULT_MEMORY_BYTES = 2 << 30
STALL_TIMEOUT_S = 180.0
CONTROL_PREFIX = "testbed-guest-"
# A clock that stands still for so long is looked into.
MAP_CHECK_AFTER_S = 5.0


@dataclass(frozen=True)
class GuestSettings:
    """How a guest is run.

    `cpu_time`: "free": computing takes no virtual time, and a program that spins stalls the clock; "counted": it takes
    what it takes on the host. `seed`: of all the kernel's randomness. `core`: the one to stay on; None: the idlest.
    `stall_timeout_s`: wall time without any virtual time before the guest is given up; `timeout_s`: wall time at most.
    `writable`: folders of this machine that the guest may change. `open_vswitch`: start its daemons first.
    `memory_bytes`: at most; `expected_bytes`: for which this machine must have room, None: for as much.
    """

    memory_bytes: int = DEFAULT_MEMORY_BYTES
    expected_bytes: int | None = None
    cpu_time: CpuTime = "free"
    seed: int = 1
    core: int | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    timeout_s: float | None = None
    writable: tuple[Path, ...] = ()
    open_vswitch: bool = True


@dataclass(frozen=True)
class GuestExit:
    """How a guest ended: the command's exit status, virtual seconds since boot, wall seconds it took, memory used."""

    status: int
    uptime_s: float
    wall_s: float
    memory_bytes: int | None = None


class Guest:
    """Runs one command under the virtual clock. `clock_s` is the virtual time since boot while it runs."""

    def __init__(self, image: KernelImage, settings: GuestSettings) -> None:
        if settings.memory_bytes < MIN_MEMORY_BYTES:
            raise VirtualClockError(
                f"memory: got {settings.memory_bytes >> 20} MiB, expected at least {MIN_MEMORY_BYTES >> 20} MiB"
            )
        self.image = image
        self.settings = settings
        self.clock_s = 0.0

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        stdout: Callable[[str], None],
        stderr: Callable[[str], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> GuestExit:
        """Run it to its end, handing on what it says; `meanwhile` is called twenty times a second.

        VirtualClockError when the guest crashes, stalls, or is out of memory, with its last lines.
        """
        _remove_abandoned()
        memory = MemoryFile(self.settings.expected_bytes or self.settings.memory_bytes)
        control = Path(tempfile.mkdtemp(prefix=f"{CONTROL_PREFIX}{os.getpid()}-"))
        began_s = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            for name in ("stdout", "stderr", "console"):
                (control / name).touch()
            self._write_task(control, command, directory, environment)
            process = self._boot(control, memory.folder)
            outputs = [_Tail(control / "stdout", stdout), _Tail(control / "stderr", stderr)]
            self._watch(process, control, memory, outputs, meanwhile)
            return self._ended(process, control, time.monotonic() - began_s, memory.used_bytes)
        finally:
            if process is not None:
                _kill(process)
            memory.close()
            shutil.rmtree(control, ignore_errors=True)

    def _write_task(
        self, control: Path, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        settings = self.settings
        task = {
            "command": list(command),
            "directory": str(directory.resolve()),
            "environment": {
                "PATH": SYSTEM_PATH,
                "HOME": "/root",
                "LANG": "C.UTF-8",
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                # the first touch of a page is dear: what was given back is kept for the next who asks
                "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
                "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
                # OpenBLAS would start threads for a machine that it takes to be the host
                "OPENBLAS_NUM_THREADS": "1",
                CLOCK_VARIABLE: settings.cpu_time,
                **environment,
            },
            "writable": [str(folder.resolve()) for folder in (control, *settings.writable)],
            "open_vswitch": settings.open_vswitch,
        }
        (control / "task.json").write_text(json.dumps(task))
        (control / PYTHON).symlink_to(sys.executable)
        (control / INIT.name).symlink_to(INIT.resolve())

    def _boot(self, control: Path, memory: Path) -> subprocess.Popen[bytes]:
        settings = self.settings
        mode = "time-travel=inf-cpu" if settings.cpu_time == "free" else "time-travel"
        arguments = [
            f"mem={settings.memory_bytes >> 20}M",
            mode,
            f"time-travel-start={EPOCH_NS}",
            "root=/dev/root rootfstype=hostfs ro",
            "con=null ssl=null con0=null,fd:2 console=tty0",
            "norandmaps random.trust_cpu=on random.trust_bootloader=on",
            "printk.devkmsg=on loglevel=4 panic=-1 oops=panic",
            "uml_dir=uml",
            *seccomp_argument(self.image.version),
            f"init={CONTROL_LINK}/{PYTHON} -- -S -E {CONTROL_LINK}/{INIT.name}",
        ]
        core = settings.core if settings.core is not None else list_idlest_cores()[0]
        launcher = [sys.executable, "-S", "-E", str(BOOT), str(core), str(os.getpid())]
        with (control / "console").open("ab") as console:
            return subprocess.Popen(
                [*launcher, str(self.image.kernel), *" ".join(arguments).split()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd=control,
                start_new_session=True,
                env={
                    "PATH": SYSTEM_PATH,
                    "HOME": str(control),
                    "TMPDIR": str(memory),
                    "GUEST_PRELOAD": str(self.image.randomness),
                    "TESTBED_SEED": str(settings.seed),
                },
            )

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        control: Path,
        memory: MemoryFile,
        outputs: Sequence[_Tail],
        meanwhile: Callable[[], None],
    ) -> None:
        settings = self.settings
        began_s = moved_s = looked_s = time.monotonic()
        while process.poll() is None:
            time.sleep(POLL_S)
            for output in outputs:
                output.follow()
            now_s = time.monotonic()
            clock_s = self._read_clock(process.pid)
            if clock_s != self.clock_s:
                self.clock_s, moved_s = clock_s, now_s
            memory.look(process.pid)
            meanwhile()
            if now_s - max(moved_s, looked_s) > MAP_CHECK_AFTER_S:
                looked_s = now_s
                if reached_map_limit(process.pid):
                    raise VirtualClockError(
                        f"{describe_map_limit()}, at {self.clock_s:.3f} s of virtual time{_last_lines(control)}"
                    )
            if now_s - moved_s > settings.stall_timeout_s:
                raise VirtualClockError(
                    f"the virtual clock has stood still at {self.clock_s:.9f} s for {now_s - moved_s:.0f} s of wall "
                    "time: a program in the guest spins instead of waiting, or computes very much at once\n"
                    "where computing should take time, use --cpu-time counted; for more patience --stall-timeout"
                    + _last_lines(control)
                )
            if settings.timeout_s is not None and now_s - began_s > settings.timeout_s:
                raise VirtualClockError(
                    f"not done after {settings.timeout_s:g} s of wall time, at {self.clock_s:.3f} s of virtual time"
                    + _last_lines(control)
                )
        for output in outputs:
            output.follow()

    def _read_clock(self, pid: int) -> float:
        """Virtual seconds since boot, out of the kernel's own memory; what was read last when it cannot be read."""
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
            try:
                data = os.pread(memory, 8, self.image.clock_address)
            finally:
                os.close(memory)
        except OSError:
            return self.clock_s
        return struct.unpack("=q", data)[0] / 1e9 if len(data) == 8 else self.clock_s

    def _ended(
        self, process: subprocess.Popen[bytes], control: Path, wall_s: float, used_bytes: int | None
    ) -> GuestExit:
        try:
            outcome = json.loads((control / "outcome.json").read_text())
        except (OSError, ValueError):
            raise VirtualClockError(self._post_mortem(process, control)) from None
        if "failed" in outcome:
            raise VirtualClockError(
                f"the guest could not be set up:\n{outcome['failed']}{_last_lines(control)}"
            )
        if outcome["status"] == -signal.SIGKILL:  # nobody asks for that: the guest's kernel did
            raise VirtualClockError(self._post_mortem(process, control))
        return GuestExit(outcome["status"], outcome["uptime_s"], wall_s, used_bytes)

    def _post_mortem(self, process: subprocess.Popen[bytes], control: Path) -> str:
        console = (control / "console").read_text(errors="replace")
        if "max_map_count" in console:
            reason = describe_map_limit()
        elif "ut of memory" in console or "Unable to allocate" in console:
            size = self.settings.memory_bytes >> 20
            reason = f"the guest ran out of memory ({size} MiB): give it more with --memory"
        elif process.returncode == -signal.SIGBUS or "Bus error" in console:
            reason = "this machine ran out of room for the guest's memory (/dev/shm, or TMPDIR)"
        elif "Kernel panic" in console:
            reason = "the guest's kernel panicked"
        elif process.returncode < 0:
            reason = f"the guest's kernel was killed by signal {-process.returncode}"
        else:
            reason = f"the guest ended before its time (status {process.returncode})"
        return f"{reason}, at {self.clock_s:.3f} s of virtual time{_last_lines(control)}"


class _Tail:
    """Hands on what is added to a file."""

    def __init__(self, path: Path, hand_on: Callable[[str], None]) -> None:
        self._file = path.open("rb")
        self._hand_on = hand_on

    def follow(self) -> None:
        """Whatever has come since."""
        if data := self._file.read():
            self._hand_on(data.decode(errors="replace"))


def list_idlest_cores() -> list[int]:
    """The cores that this process may use, the idlest in the last moment first."""
    before = _busy_ticks()
    time.sleep(POLL_S)
    after = _busy_ticks()
    allowed = os.sched_getaffinity(0)
    return sorted(allowed, key=lambda core: (after.get(core, 0) - before.get(core, 0), core))


def _busy_ticks() -> dict[int, int]:
    busy = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            busy[int(name[3:])] = sum(map(int, ticks[:3])) + sum(map(int, ticks[5:8]))
    return busy


def _last_lines(control: Path) -> str:
    """The last lines of the guest's kernel and of the command, for an error's message."""
    told = ""
    for name, title in (("console", "kernel"), ("stderr", "command")):
        with contextlib.suppress(OSError):
            text = (control / name).read_bytes()[-TAIL_BYTES:].decode(errors="replace")
            if lines := [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]:
                told += f"\nthe {title}'s last lines:\n  " + "\n  ".join(lines)
    return told


def _remove_abandoned() -> None:
    """Control folders of this user whose makers were killed; their guests ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{CONTROL_PREFIX}*"):
        owner = folder.name.removeprefix(CONTROL_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and not Path("/proc", owner).exists() and folder.stat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole session: the kernel, and the processes that run its programs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SECCOMP_VARIABLE = "TESTBED_GUEST_SECCOMP"
SECCOMP_MODES = ("auto", "on", "off")


def seccomp_argument(version: str) -> list[str]:
    """The guest kernel's argument for it: as the environment variable says, else where the machine allows it. BadInput.

    A kernel that knows no such thing gets none, and traces.
    """
    word = os.environ.get(SECCOMP_VARIABLE) or SECCOMP_MODES[0]
    if word not in SECCOMP_MODES:
        raise BadInput(where=SECCOMP_VARIABLE, got=word, expected=", ".join(SECCOMP_MODES))
    return [f"seccomp={word}"] if parse_version(version) >= SECCOMP_SINCE else []
