"""The holder of the namespaces of all nodes: `python -m testbed.net.fabric.namespace_holder`.

Mininet starts a shell per node, which takes about 8 ms. For each node in turn, this process moves into new network and
mount namespaces and leaves a blocked `cat` there. That takes 1 ms, or 10 ms in a guest of the virtual clock, where
forking a process of Python's size takes 26 ms.

Standard input has a line of JSON: a list with the /etc/hosts file of each node, or null. The answer is a line of JSON
with process ids. All these processes end at the end of standard input, or with the parent process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

from testbed.processes import set_parent_death_signal

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), None), f"mounting {target.decode()}")


def _unshare(namespaces: int) -> None:
    _check(_libc.unshare(namespaces), "unshare")
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE)  # mounts stay within this namespace


def unshare_namespaces(hosts_file: str | None) -> None:
    """Move the process into new network and mount namespaces, as `mnexec -n` does, with its own /etc/hosts."""
    _unshare(CLONE_NEWNS | CLONE_NEWNET)
    _mount(b"sysfs", b"/sys", b"sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)  # shows this namespace's interfaces
    if hosts_file is not None:
        _mount(hosts_file.encode(), b"/etc/hosts", None, MS_BIND)


def mount_private_tmpfs(folder: str) -> None:
    """Move the process into a new mount namespace in which `folder` is an empty tmpfs; raises OSError on failure."""
    _unshare(CLONE_NEWNS)
    _mount(b"none", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)


class _OriginalNamespaces:
    """The original namespaces and working directory of this process."""

    def __init__(self) -> None:
        self._namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
        self._folder = os.getcwd()

    def restore(self) -> None:
        for namespace in self._namespaces:
            _check(_libc.setns(namespace, 0), "setns")
        os.chdir(self._folder)


def _spawn_holder(hosts_file: str | None, until: int, original: _OriginalNamespaces) -> int:
    """Start a process in new namespaces that ends when the pipe `until` is closed; return its process id."""
    unshare_namespaces(hosts_file)
    try:
        files = [(os.POSIX_SPAWN_DUP2, until, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        return os.posix_spawnp("cat", ["cat"], os.environ, file_actions=files, setsid=True)
    finally:
        original.restore()


def main() -> None:
    """Start the processes, report their ids, and kill them at the end of standard input."""
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    wanted = json.loads(sys.stdin.readline())
    until, _write_end = os.pipe()  # closed when this process ends, even by SIGKILL
    original = _OriginalNamespaces()
    pids: list[int] = []
    try:
        try:
            for hosts_file in wanted:
                pids.append(_spawn_holder(hosts_file, until, original))
        except OSError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        else:
            print(json.dumps({"pids": pids}), flush=True)
        while os.read(0, 4096):
            pass
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
