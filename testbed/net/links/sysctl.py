"""The kernel parameters of network namespaces, and detection of every write to them.

Reading all of them takes too long to do often. But inotify reports each write to a watched file, even below
`/proc/sys/net` of a namespace while the folder is held open. So it reveals even a parameter that was changed for a
moment only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from testbed.net.links.netns import network_namespace
from testbed.processes import raise_open_file_limit

SYSCTL_ROOT = Path("/proc/sys/net")
# The parameters that all namespaces share (in ipv4 only MACHINE_WIDE), and those that affect connections in a namespace
SHARED_FOLDERS, NAMESPACE_FOLDERS = ("core", "ipv4"), ("core", "ipv4", "ipv4/route", "mptcp")
MACHINE_WIDE = ("tcp_mem", "udp_mem", "tcp_max_orphans")
INTERFACE_FOLDERS = ("ipv4/conf", "ipv4/neigh", "ipv6/conf")
# Generated on the first read; a trigger, not a setting; raised for a moment while a fabric is built
IGNORED = ("tcp_fastopen_key", "flush", "rmem_default")
SPARE_FILES = 256
FILES_PER_NAMESPACE = 4  # those opened elsewhere: two netlink sockets, one for nftables, one for a link's end
_IN_MODIFY = 0x2
_EVENT = struct.Struct("=iIII")
_libc = ctypes.CDLL(None, use_errno=True)


def sysctl_folders(interfaces: Iterable[str] | None) -> list[str]:
    """Return the folders of parameters to watch.

    Args:
        interfaces: The interfaces of a namespace; None for the machine's own namespace.
    """
    if interfaces is None:
        return list(SHARED_FOLDERS)
    names = ("all", *interfaces)
    return [
        *NAMESPACE_FOLDERS,
        *(f"{folder}/{name}" for folder in INTERFACE_FOLDERS for name in (*names, "default")),
    ]


def read_folder(folder: str) -> dict[str, str]:
    """Read the parameters in one folder of the current namespace, by their sysctl names."""
    found = {}
    for name in os.listdir(SYSCTL_ROOT / folder):
        if name not in IGNORED and (value := _read(f"{SYSCTL_ROOT}/{folder}/{name}")) is not None:
            found[_sysctl_name(folder, name)] = value
    return found


def _read(path: str) -> str | None:
    """Read a parameter in only three system calls, as there are a thousand; None for folders and write-only files."""
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


def _sysctl_name(folder: str, name: str) -> str:
    return f"net.{folder.replace('/', '.')}.{name}"


class SysctlWatcher:
    """A watcher of the kernel parameters of many namespaces, to be closed.

    Raises:
        OSError: inotify is not available.
    """

    def __init__(self) -> None:
        self._inotify: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._watched: dict[int, tuple[str, str]] = {}
        self._open: list[int] = []
        self._pids: dict[str, int | None] = {}
        self._folders: dict[str, list[str]] = {}

    def add(self, namespace: str, pid: int | None, interfaces: Iterable[str] | None) -> None:
        """Watch a namespace from now on.

        Args:
            namespace: Name of the namespace.
            pid: A process in it; None for the machine's own namespace.
            interfaces: Its interfaces; None for the machine's own namespace.

        Raises:
            OSError: A folder cannot be watched.
        """
        wanted = sysctl_folders(interfaces)
        own = len(self._open) + len(wanted) + FILES_PER_NAMESPACE * (len(self._pids) + 1)
        raise_open_file_limit(own + SPARE_FILES)
        self._pids[namespace], self._folders[namespace] = pid, []
        with network_namespace(pid):
            for folder in wanted:
                try:
                    held = os.open(SYSCTL_ROOT / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # this kernel does not have it
                self._open.append(held)  # the kernel may drop the watch of a folder that is not held open
                self._folders[namespace].append(folder)
                number = _libc.inotify_add_watch(self._inotify, f"/proc/self/fd/{held}".encode(), _IN_MODIFY)
                if number < 0:
                    raise OSError(ctypes.get_errno(), f"inotify: {folder}")
                self._watched[number] = namespace, folder

    def read(self, namespace: str) -> dict[str, str]:
        """Read the parameters of a namespace by name, except those of single interfaces."""
        found: dict[str, str] = {}
        with network_namespace(self._pids[namespace]):
            for folder in self._folders[namespace]:
                if folder in NAMESPACE_FOLDERS:
                    found |= read_folder(folder)
        return {name: value for name, value in found.items() if self._is_relevant(namespace, name)}

    def _is_relevant(self, namespace: str, name: str) -> bool:
        """Return whether a parameter can affect the fabric; those of the machine's own connections cannot."""
        shared = not name.startswith("net.ipv4.") or name.removeprefix("net.ipv4.") in MACHINE_WIDE
        return shared or self._pids[namespace] is not None

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a parameter is written."""
        return self._inotify

    def read_writes(self) -> list[tuple[str, str, str]]:
        """Return the parameters written since the last call, even if their values did not change.

        Returns:
            The namespace, the name and the current value of each.
        """
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
                if number not in self._watched or name in IGNORED:
                    continue
                namespace, folder = self._watched[number]
                if not self._is_relevant(namespace, _sysctl_name(folder, name)):
                    continue
                with network_namespace(self._pids[namespace]):
                    value = _read(f"{SYSCTL_ROOT}/{folder}/{name}")
                found.append((namespace, _sysctl_name(folder, name), value or ""))

    def close(self) -> None:
        """Close all descriptors."""
        for held in (*self._open, self._inotify):
            os.close(held)
        self._open = []
