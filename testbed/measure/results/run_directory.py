"""The run directory: written whole or not at all, and the errors of reading it."""

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
OWNER = "owner.json"  # in a partial folder: the process that writes it


class RunDirectory:
    """Collects a run's files under `<path>.partial`; `finish` gives it its name, `discard` removes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_path(path)
        refuse_existing(path)
        if self.partial.exists() and owner_alive(self.partial) and not _ours(self.partial):
            raise RunExists(f"{path}: somebody writes it at the moment; choose another --output")
        shutil.rmtree(self.partial, ignore_errors=True)
        make_folder(self.partial, path)
        write_json(self.partial / OWNER, {"pid": os.getpid(), "started": process_start_ticks(os.getpid())})

    def finish(self) -> None:
        """All is written: give the directory its name."""
        (self.partial / OWNER).unlink()
        self.partial.rename(self.path)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.partial, ignore_errors=True)


def partial_path(run: Path) -> Path:
    """Where a run is written until it is whole."""
    return run.with_name(run.name + PARTIAL_SUFFIX)


def refuse_existing(path: Path) -> None:
    """RunExists where a run cannot be made, since something is there already."""
    if path.exists():
        raise RunExists(f"{path}: exists already; choose another --output")


def owner_alive(partial: Path) -> bool:
    """Whether the process that writes a partial folder still runs."""
    owner = _owner(partial)
    if owner is None:
        return time.time() - partial.stat().st_mtime < 1.0  # it is about to say so
    return bool(process_start_ticks(owner["pid"]) == owner["started"])


def _ours(partial: Path) -> bool:
    """Whether it is this process's, from an attempt before."""
    owner = _owner(partial)
    return owner is not None and bool(owner["pid"] == os.getpid())


def _owner(partial: Path) -> dict[str, Any] | None:
    """As the process that writes the folder has put it there; None where it has not."""
    try:
        return dict(json.loads((partial / OWNER).read_text()))
    except (OSError, ValueError):
        return None


def make_folder(folder: Path, meant: Path | None = None, there: bool = False) -> None:
    """A folder for results, with those above it; `there`: it may be there already. NotWritable, which names `meant`."""
    try:
        folder.mkdir(parents=True, exist_ok=there)
    except OSError as error:
        place = (meant or folder).absolute()
        raise NotWritable(
            f"{place}: nothing can be written there ({error.strerror}); choose another place with --output"
        ) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """A file with one JSON document, indented for reading."""
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """A file with a JSON document on each line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def hand_over(path: Path) -> None:
    """Under sudo, give a run directory to the user who called it; else leave it as it is."""
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and user and group:
        for item in (path, *path.rglob("*")):
            os.chown(item, int(user), int(group))


def default_path(scenario: str) -> Path:
    """`runs/<scenario>-<date>-<time>` below the current folder, with a number where that exists already."""
    base = RUNS / f"{scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 1
    while path.exists() or partial_path(path).exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def surroundings() -> dict[str, Any]:
    """Where and with what a run was made: host, kernel, versions, kernel settings."""
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
    """A folder holds no run, or one of another version; names file, field or line, value and what was expected."""


class RunExists(BadInput, FileExistsError):
    """A run was to be made where something is already; nothing was touched."""


class NotWritable(BadInput, PermissionError):
    """A folder cannot be made or written here; says where, why, and which option names another place."""
