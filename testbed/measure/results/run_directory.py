"""The run directory, which is written completely or not at all, and the errors of reading and writing it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from testbed.errors import BadInput
from testbed.processes import process_start_ticks
from testbed.version import VERSION

PACKAGES = ("mininet", "numpy", "os-ken", "pydantic", "pyroute2", "scapy", "psutil")
SYSCTLS = (
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.ipv4.tcp_mtu_probing",
    "kernel.sched_rt_runtime_us",
)


RUNS = Path("runs")
PARTIAL_SUFFIX = ".partial"
OWNER = "owner.json"  # in a partial directory: the process that writes it


class RunDirectory:
    """A run directory being written, as `<path>.partial` until `finish` renames it or `discard` removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_path(path)
        refuse_existing(path)
        is_own = (_owner(self.partial) or {}).get("pid") == os.getpid()  # left by an earlier attempt
        if self.partial.exists() and owner_alive(self.partial) and not is_own:
            raise RunExists(f"{path}: another process is writing it; choose another --output")
        shutil.rmtree(self.partial, ignore_errors=True)
        make_folder(self.partial, path)
        write_json(self.partial / OWNER, {"pid": os.getpid(), "started": process_start_ticks(os.getpid())})

    def finish(self) -> None:
        """Rename the completed directory to its final name."""
        (self.partial / OWNER).unlink()
        self.partial.rename(self.path)

    def discard(self) -> None:
        """Remove the partial directory."""
        shutil.rmtree(self.partial, ignore_errors=True)


def partial_path(run: Path) -> Path:
    """Return the path where a run is written until it is complete."""
    return run.with_name(run.name + PARTIAL_SUFFIX)


def refuse_existing(path: Path) -> None:
    """Raise RunExists if there is already something at that path."""
    if path.exists():
        raise RunExists(f"{path}: exists already; choose another --output")


def owner_alive(partial: Path) -> bool:
    """Return whether the process that writes a partial directory is still running."""
    owner = _owner(partial)
    if owner is None:
        return time.time() - partial.stat().st_mtime < 1.0  # just created: the owner file is written next
    return bool(process_start_ticks(owner["pid"]) == owner["started"])


def _owner(partial: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((partial / OWNER).read_text()))
    except (OSError, ValueError):
        return None


def make_folder(folder: Path, meant: Path | None = None, there: bool = False) -> None:
    """Make a directory for results, with its parents.

    Args:
        folder: The directory to make.
        meant: The path to name in the error; `folder` by default.
        there: Whether the directory may exist already.

    Raises:
        NotWritable: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=there)
    except OSError as error:
        place = (meant or folder).absolute()
        raise NotWritable(
            f"{place}: cannot write there ({error.strerror}); choose another place with --output"
        ) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write one JSON document, indented for reading."""
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines: one document per line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def chown_to_sudo_user(path: Path) -> None:
    """Change the owner of a run directory to the calling user if this runs under sudo; else do nothing."""
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and user and group:
        for item in (path, *path.rglob("*")):
            os.chown(item, int(user), int(group))


def default_path(scenario: str) -> Path:
    """Return `runs/<scenario>-<date>-<time>` below the current directory, with a number appended if that exists."""
    base = RUNS / f"{scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 1
    while path.exists() or partial_path(path).exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def describe_environment() -> dict[str, Any]:
    """Return a description of a run's environment: host, kernel, versions, kernel settings."""
    uname = platform.uname()
    return {
        "testbed_version": VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "host": {
            "kernel": uname.release,
            "machine": uname.machine,
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
            "openvswitch": _first_line(["ovs-vsctl", "--version"]),
            "iproute2": _first_line(["ip", "-V"]),
        },
        "sysctls": {key: value for key in SYSCTLS if (value := _sysctl(key)) is not None},
    }


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0] if done.stdout else None


def _sysctl(key: str) -> str | None:
    try:
        return Path("/proc/sys", key.replace(".", "/")).read_text().strip()
    except OSError:
        return None


class BadResult(BadInput, ValueError):
    """The error for a missing, damaged or incompatible result file; it names file, field or line, and value."""


class RunExists(BadInput, FileExistsError):
    """The error for a new run whose path exists already; the existing path is left unchanged."""


class NotWritable(BadInput, PermissionError):
    """The error for a directory that cannot be written; it names the path, the cause and the option to change it."""
