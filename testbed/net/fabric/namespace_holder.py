"""Namespaces for many nodes at once: `python -m testbed.net.fabric.namespace_holder`.

Mininet starts a shell for each node, some 8 ms each. This process moves into a network and a mount namespace of its own
for each node in turn, and leaves a `cat` there, which waits: 1 ms each, 10 ms in a guest of the virtual clock, where
forking a process of Python's size takes 26. Standard input has a line of JSON: a list with, for each node, the file to
put in place of its /etc/hosts or null. Process ids come back, one line of JSON; the end of standard input, like the end
of whoever started us, ends them all.
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
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE)  # what is mounted here is seen here alone


def move_apart(hosts_file: str | None) -> None:
    """Give the calling process namespaces of its own, as `mnexec -n` does, and a /etc/hosts of its own. OSError."""
    _unshare(CLONE_NEWNS | CLONE_NEWNET)
    _mount(b"sysfs", b"/sys", b"sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)  # shows this namespace's interfaces
    if hosts_file is not None:
        _mount(hosts_file.encode(), b"/etc/hosts", None, MS_BIND)


def keep_files_apart(folder: str) -> None:
    """Give the calling process a mount namespace of its own, with an empty `folder` that goes with it. OSError."""
    _unshare(CLONE_NEWNS)
    _mount(b"none", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)


class _Home:
    """This process's own namespaces, to come back to."""

    def __init__(self) -> None:
        self._namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
        self._folder = os.getcwd()

    def come_back(self) -> None:
        """From wherever `move_apart` has led. OSError."""
        for namespace in self._namespaces:
            _check(_libc.setns(namespace, 0), "setns")
        os.chdir(self._folder)


def _leave_one(hosts_file: str | None, until: int, home: _Home) -> int:
    """A process in namespaces of its own that ends with what can be read from `until`: its process id. OSError."""
    move_apart(hosts_file)
    try:
        files = [(os.POSIX_SPAWN_DUP2, until, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        return os.posix_spawnp("cat", ["cat"], os.environ, file_actions=files, setsid=True)
    finally:
        home.come_back()


def main() -> None:
    """Start them, tell, wait, kill."""
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    wanted = json.loads(sys.stdin.readline())
    until, _held = os.pipe()  # closed when this process ends, however it does
    home = _Home()
    pids: list[int] = []
    try:
        try:
            for hosts_file in wanted:
                pids.append(_leave_one(hosts_file, until, home))
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
