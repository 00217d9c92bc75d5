"""Namespaces for many nodes at once: `python -m testbed.fabric.namespaces_child`.

Mininet starts a shell for each node, some 8 ms each. This process forks a child per node, which moves into a network
and a mount namespace of its own and waits: 1 ms each. Standard input has a line of JSON: a list with, for each child,
the file to put in place of its /etc/hosts or null. The children's process ids come back, one line of JSON; the end of
standard input, like the end of whoever started us, ends them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

from testbed.links.process import end_with_parent

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


def _fork(hosts_file: str | None) -> tuple[int, int]:
    """A child that moves into namespaces of its own: its process id, and a pipe that says `ready` or what is wrong."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            end_with_parent(signal.SIGKILL)
            os.setsid()
            move_apart(hosts_file)
            os.write(write_end, b"ready")
            os.close(write_end)
            os.close(0)
            os.close(1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
        except OSError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(1)
    os.close(write_end)
    return pid, read_end


def _complaint(pipe: int) -> str:
    """Wait for a child's word; empty when it is where it should be."""
    with os.fdopen(pipe, "rb") as file:
        said = file.read()
    return "" if said == b"ready" else said.decode() or "its process ended"


def main() -> None:
    """Fork, tell, wait, kill."""
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    wanted = json.loads(sys.stdin.readline())
    pids: list[int] = []
    pipes: list[int] = []
    try:
        for hosts_file in wanted:
            pid, pipe = _fork(hosts_file)
            pids.append(pid)
            pipes.append(pipe)
        complaints = [words for pipe in pipes if (words := _complaint(pipe))]
        print(json.dumps({"error": complaints[0]} if complaints else {"pids": pids}), flush=True)
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
