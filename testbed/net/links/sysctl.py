"""The kernel parameters of a network namespace, and whoever writes to one of them.

To read them takes too long to be done often. But the kernel tells by inotify of every write to a file that is watched,
to those of `/proc/sys/net` of a namespace, too, while the folder is held open: so a parameter that was changed for a
moment is seen as well.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from testbed.net.links.netns import network_namespace
from testbed.processes import raise_open_file_limit

ROOT = Path("/proc/sys/net")
# Of the machine what its namespaces share (in ipv4 these alone), of a namespace what connections go by
SHARED, OWN = ("core", "ipv4"), ("core", "ipv4", "ipv4/route", "mptcp")
MACHINE_WIDE = ("tcp_mem", "udp_mem", "tcp_max_orphans")
CONFIGURED = ("ipv4/conf", "ipv4/neigh", "ipv6/conf")
# Made when first asked for; written to so that something is done; raised for a moment by whoever builds a fabric
LEFT_OUT = ("tcp_fastopen_key", "flush", "rmem_default")
SPARE_FILES = 256
FILES_PER_NAMESPACE = 4  # that others have open for each: netlink, twice, of filters too, and of a link's end
_MODIFIED = 0x2
_EVENT = struct.Struct("=iIII")
_libc = ctypes.CDLL(None, use_errno=True)


def folders(interfaces: Iterable[str] | None) -> list[str]:
    """Where parameters are that count; with the interfaces that do. None: in the machine's own namespace."""
    if interfaces is None:
        return list(SHARED)
    names = ("all", *interfaces)
    return [*OWN, *(f"{folder}/{name}" for folder in CONFIGURED for name in (*names, "default"))]


def read_folder(folder: str) -> dict[str, str]:
    """The parameters in one folder of the present namespace, by their names as sysctl has them."""
    found = {}
    for name in os.listdir(ROOT / folder):
        if name not in LEFT_OUT and (value := _read(f"{ROOT}/{folder}/{name}")) is not None:
            found[_name(folder, name)] = value
    return found


def _read(path: str) -> str | None:
    """A parameter in three system calls, for a thousand are read; None for a folder, and what can be written only."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return " ".join(os.read(opened, 1 << 12).decode().split())
    except OSError:
        return None
    finally:
        os.close(opened)


def _name(folder: str, name: str) -> str:
    return f"net.{folder.replace('/', '.')}.{name}"


class Parameters:
    """Those of many namespaces. Close it. OSError."""

    def __init__(self) -> None:
        self._inotify: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._watched: dict[int, tuple[str, str]] = {}
        self._open: list[int] = []
        self._pids: dict[str, int | None] = {}
        self._folders: dict[str, list[str]] = {}

    def add(self, namespace: str, pid: int | None, interfaces: Iterable[str] | None) -> None:
        """Watch the namespace of process `pid` from now on."""
        wanted = folders(interfaces)
        own = len(self._open) + len(wanted) + FILES_PER_NAMESPACE * (len(self._pids) + 1)
        raise_open_file_limit(own + SPARE_FILES)
        self._pids[namespace], self._folders[namespace] = pid, []
        with network_namespace(pid):
            for folder in wanted:
                try:
                    held = os.open(ROOT / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # a kernel without it
                self._open.append(held)  # or the kernel might forget that the folder is watched
                self._folders[namespace].append(folder)
                number = _libc.inotify_add_watch(self._inotify, f"/proc/self/fd/{held}".encode(), _MODIFIED)
                if number < 0:
                    raise OSError(ctypes.get_errno(), f"inotify: {folder}")
                self._watched[number] = namespace, folder

    def read(self, namespace: str) -> dict[str, str]:
        """Those of a namespace by name, but for those of single interfaces."""
        found: dict[str, str] = {}
        with network_namespace(self._pids[namespace]):
            for folder in self._folders[namespace]:
                if folder in OWN:
                    found |= read_folder(folder)
        return {name: value for name, value in found.items() if self._counts(namespace, name)}

    def _counts(self, namespace: str, name: str) -> bool:
        """Whether it does; the machine's own connections are nobody's business here."""
        shared = not name.startswith("net.ipv4.") or name.removeprefix("net.ipv4.") in MACHINE_WIDE
        return shared or self._pids[namespace] is not None

    def fileno(self) -> int:
        """Readable when some were written to."""
        return self._inotify

    def written(self) -> list[tuple[str, str, str]]:
        """(namespace, name, value now) of each that was written to since the last call, if only as it was."""
        found: list[tuple[str, str, str]] = []
        while True:
            try:
                data = os.read(self._inotify, 1 << 16)
            except BlockingIOError:
                return found
            while data:
                number, _, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
                data = data[_EVENT.size + length :]
                if number not in self._watched or name in LEFT_OUT:
                    continue
                namespace, folder = self._watched[number]
                if not self._counts(namespace, _name(folder, name)):
                    continue
                with network_namespace(self._pids[namespace]):
                    value = _read(f"{ROOT}/{folder}/{name}")
                found.append((namespace, _name(folder, name), value or ""))

    def close(self) -> None:
        """Close what is open."""
        for held in (*self._open, self._inotify):
            os.close(held)
        self._open = []
