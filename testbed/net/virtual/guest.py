"""A guest: boots the kernel with this machine's root file system and runs one command in it.

Its files are in a temporary control folder. Its processes are one session, so that they can be killed together.
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
from typing import BinaryIO

from testbed.clock import CLOCK_VARIABLE, CpuTime
from testbed.errors import BadInput
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest_memory import MemoryFile, describe_map_limit, reached_map_limit
from testbed.net.virtual.kernel_image import SECCOMP_SINCE, KernelImage, parse_version

BOOT, INIT = (Path(__file__).with_name(name) for name in ("boot.py", "guest_init.py"))
# The guest's date at boot, the same in every run so that results do not depend on it.
EPOCH_NS = 1_767_225_600 * 10**9  # 2026-01-01
# The guest kernel's command line is the same for all users, because programs can read it. Whatever differs is in the
# working directory of the kernel's process, which the guest finds at this constant path. (The kernel removes `mem=`,
# `uml_dir=` and `seccomp=` from the line that programs see.)
CONTROL_LINK = "/proc/self/cwd"
PYTHON = "python"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Programs of this machine that a guest runs, besides Python.
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
# How long the virtual clock may stall before the guest's memory maps are checked.
MAP_CHECK_AFTER_S = 5.0


@dataclass(frozen=True)
class GuestSettings:
    """The settings of a guest.

    - `memory_bytes`: maximum memory. `expected_bytes`: memory for which the host must have room; None: the maximum.
    - `cpu_time`: "free": computing takes no virtual time, and a program that spins stalls the clock. "counted":
      computing takes as long as on the host.
    - `seed`: seed of the kernel's random numbers.
    - `core`: CPU core to run on; None: the idlest.
    - `stall_timeout_s`: wall time after which a guest whose virtual clock stands still is killed.
    - `timeout_s`: maximum wall time.
    - `writable`: folders of this machine that the guest may change.
    - `open_vswitch`: whether to start its daemons first.
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
    """The result of a guest: exit status of the command, virtual time since boot, wall time, and memory used."""

    status: int
    uptime_s: float
    wall_s: float
    memory_bytes: int | None = None


class Guest:
    """A guest that runs one command under the virtual clock; `clock_s` is the virtual time since boot."""

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
        on_poll: Callable[[], None] = lambda: None,
    ) -> GuestExit:
        """Run a command to its end.

        Args:
            command: The program and its arguments.
            directory: Its working directory.
            environment: Environment variables in addition to the guest's own.
            stdout: Called with the command's standard output, as it arrives.
            stderr: Called with the command's standard error, as it arrives.
            on_poll: Called twenty times a second.

        Raises:
            VirtualClockError: The guest crashed, stalled, or ran out of memory; the message has its last lines.
        """
        _remove_abandoned()
        prefix = f"{CONTROL_PREFIX}{os.getpid()}-"
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            memory = MemoryFile(self.settings.expected_bytes or self.settings.memory_bytes)
            stack.callback(memory.close)
            scratch = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            control = Path(stack.enter_context(scratch))
            for name in ("stdout", "stderr", "console"):
                (control / name).touch()
            self._write_task(control, command, directory, environment)
            outputs = [
                (stack.enter_context((control / name).open("rb")), consume)
                for name, consume in (("stdout", stdout), ("stderr", stderr))
            ]
            process = self._boot(control, memory.folder)
            stack.callback(_kill, process)
            self._watch(process, control, memory, outputs, on_poll)
            return self._read_outcome(process, control, time.monotonic() - began_s, memory.used_bytes)

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
                # the first access to a page is slow, so malloc keeps freed memory
                "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
                "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
                # OpenBLAS would start as many threads as the host has cores
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
        outputs: Sequence[Output],
        on_poll: Callable[[], None],
    ) -> None:
        settings = self.settings
        began_s = advanced_s = checked_s = time.monotonic()
        while process.poll() is None:
            time.sleep(POLL_S)
            _pass_on(outputs)
            now_s = time.monotonic()
            clock_s = self._read_clock(process.pid)
            if clock_s != self.clock_s:
                self.clock_s, advanced_s = clock_s, now_s
            memory.attach(process.pid)
            on_poll()
            if now_s - max(advanced_s, checked_s) > MAP_CHECK_AFTER_S:
                checked_s = now_s
                if reached_map_limit(process.pid):
                    raise VirtualClockError(
                        f"{describe_map_limit()}, at {self.clock_s:.3f} s of virtual time{_last_lines(control)}"
                    )
            if now_s - advanced_s > settings.stall_timeout_s:
                raise VirtualClockError(
                    f"the virtual clock has stood still at {self.clock_s:.9f} s for {now_s - advanced_s:.0f} s of wall "
                    "time: a program in the guest spins instead of waiting, or computes for very long\n"
                    "use --cpu-time counted if computing should take time, or a longer --stall-timeout"
                    + _last_lines(control)
                )
            if settings.timeout_s is not None and now_s - began_s > settings.timeout_s:
                raise VirtualClockError(
                    f"not finished after {settings.timeout_s:g} s of wall time, at {self.clock_s:.3f} s of virtual time"
                    + _last_lines(control)
                )
        _pass_on(outputs)

    def _read_clock(self, pid: int) -> float:
        """Read the virtual time in seconds from the kernel's memory; return the last value if that fails."""
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
            try:
                data = os.pread(memory, 8, self.image.clock_address)
            finally:
                os.close(memory)
        except OSError:
            return self.clock_s
        return struct.unpack("=q", data)[0] / 1e9 if len(data) == 8 else self.clock_s

    def _read_outcome(
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
        if outcome["status"] == -signal.SIGKILL:  # only the guest's kernel sends that
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
            reason = "this machine ran out of space for the guest's memory (/dev/shm, or TMPDIR)"
        elif "Kernel panic" in console:
            reason = "the guest's kernel panicked"
        elif process.returncode < 0:
            reason = f"the guest's kernel was killed by signal {-process.returncode}"
        else:
            reason = f"the guest ended early (status {process.returncode})"
        return f"{reason}, at {self.clock_s:.3f} s of virtual time{_last_lines(control)}"


Output = tuple[BinaryIO, Callable[[str], None]]
"""A file that a guest writes, and the function that gets its content."""


def _pass_on(outputs: Sequence[Output]) -> None:
    """Pass on what was appended to files since the last call."""
    for file, consume in outputs:
        if data := file.read():
            consume(data.decode(errors="replace"))


def list_idlest_cores() -> list[int]:
    """Return the CPU cores that this process may use, the least busy ones of the last moment first."""
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
    """Return the last lines of the guest's kernel and of the command for an error message."""
    shown = ""
    for name, title in (("console", "kernel"), ("stderr", "command")):
        with contextlib.suppress(OSError):
            text = (control / name).read_bytes()[-TAIL_BYTES:].decode(errors="replace")
            if lines := [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]:
                shown += f"\nthe {title}'s last lines:\n  " + "\n  ".join(lines)
    return shown


def _remove_abandoned() -> None:
    """Remove this user's control folders whose processes were killed, and their guests with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{CONTROL_PREFIX}*"):
        owner = folder.name.removeprefix(CONTROL_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and not Path("/proc", owner).exists() and folder.stat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session: the kernel, and the processes that run its programs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SECCOMP_VARIABLE = "TESTBED_GUEST_SECCOMP"
SECCOMP_MODES = ("auto", "on", "off")


def seccomp_argument(version: str) -> list[str]:
    """Return the kernel argument for seccomp mode: that of SECCOMP_VARIABLE, or "auto".

    Kernels before SECCOMP_SINCE have no such argument and use ptrace.

    Raises:
        BadInput: The variable has another value.
    """
    mode = os.environ.get(SECCOMP_VARIABLE) or SECCOMP_MODES[0]
    if mode not in SECCOMP_MODES:
        raise BadInput(where=SECCOMP_VARIABLE, got=mode, expected=", ".join(SECCOMP_MODES))
    return [f"seccomp={mode}"] if parse_version(version) >= SECCOMP_SINCE else []
