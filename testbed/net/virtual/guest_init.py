"""The first process of a guest: makes the host's read-only root writable in memory, runs one command, switches off.

Standard library only, and without `site`. The task is in the folder in which the host runs this guest's kernel.
Nothing that it or the command does reaches the host, save what is written into the task's writable folders.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import time
import traceback
from typing import Any

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_TIMERSLACK = 29
POWER_OFF = 0x4321FEDC
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MAX_OPEN_FILES = 65_536  # that a process may have open: a network of 512 hosts is watched by 8,000
STAGING_FOLDER = "/mnt"  # a folder that every root file system has, hidden under memory for the moment
OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
SYSCTLS = {
    "vm/panic_on_oom": "1",
    # The first frames of a flow wait in a socket of Open vSwitch's until their rule is known. At hundreds of Gbit/s
    # many come at the same instant, and a socket of the usual size would drop some.
    "net/core/rmem_default": str(64 << 20),
    "net/core/rmem_max": str(1 << 30),
    "net/core/netdev_max_backlog": str(1 << 20),  # all that is sent at one instant passes through it
    "net/core/wmem_max": str(1 << 30),
    # pages: TCP holds itself back only where the guest's memory ends
    "net/ipv4/tcp_mem": f"{1 << 24} {1 << 24} {1 << 24}",
}
# A bridge of Open vSwitch made in the first ten seconds of a kernel's life can drop every packet.
OVS_AGE_S = 10.0

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise for a failed system call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(kind: str, target: str, options: str = "", flags: int = 0, source: str | None = None) -> None:
    """mount(2)."""
    arguments = (value.encode() if value is not None else None for value in (source or kind, target, kind))
    check(
        libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {kind} on {target}"
    )


def enter_writable_root(folders: list[str]) -> None:
    """Go to a root whose changes stay in memory; `folders` are the host's own, and changes there reach the host."""
    mount("tmpfs", STAGING_FOLDER)
    upper, work, root = (f"{STAGING_FOLDER}/{name}" for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        os.mkdir(folder)
    mount("overlay", root, f"lowerdir=/,upperdir={upper},workdir={work},index=off,metacopy=off")
    os.chdir(root)
    mount("proc", "proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", "sys", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("devtmpfs", "dev")
    for folder in ("dev/pts", "dev/shm"):
        os.makedirs(folder, exist_ok=True)
    mount("devpts", "dev/pts", "ptmxmode=0666,mode=0620")
    mount("tmpfs", "dev/shm", "mode=1777")
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
    ):
        os.symlink(target, f"dev/{name}")
    os.symlink("/proc/self/fd/2", "dev/stderr")
    mount("tmpfs", "run", "mode=0755")
    for folder in folders:
        mount("hostfs", folder.lstrip("/"), folder)
    os.mkdir("run/host")
    check(libc.syscall(155, b".", b"run/host"), "pivot_root")  # x86-64; there is no other guest
    os.chdir("/")
    check(libc.umount2(b"/run/host", MNT_DETACH), "umount the host's root")
    os.rmdir("/run/host")


def bring_up_loopback() -> None:
    """As on any host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(asker, SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | IFF_UP)
        fcntl.ioctl(asker, SIOCSIFFLAGS, request)


def start_open_vswitch() -> None:
    """A database of its own, in memory, and both daemons."""
    folder = "/run/openvswitch"
    os.mkdir(folder)
    database, remote = f"{folder}/conf.db", f"--remote=punix:{folder}/db.sock"
    quiet = ["--pidfile", "--detach", "-vconsole:off", "-vsyslog:off", "-vfile:off"]
    for command in (
        ["ovsdb-tool", "create", database, OVS_SCHEMA],
        ["ovsdb-server", database, remote, *quiet],
        ["ovs-vsctl", "--no-wait", "init"],
        ["ovs-vswitchd", *quiet],
    ):
        subprocess.run(command, check=True)
    time.sleep(max(0.0, OVS_AGE_S - time.monotonic()))


def prepare(task: dict[str, Any]) -> None:
    """All that must be there before the command starts."""
    check(libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0), "timer slack")  # sleeps end when they should
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[0], MAX_OPEN_FILES)
    )
    bring_up_loopback()
    socket.sethostname("guest")
    for setting, value in SYSCTLS.items():
        with open(f"/proc/sys/{setting}", "w") as file:
            file.write(value)
    if task["open_vswitch"]:
        start_open_vswitch()


def run(task: dict[str, Any], folder: str) -> int:
    """The command's exit status, as a shell would give it."""
    # O_DSYNC: what is written is seen by the host at once, not when the guest's kernel finds time.
    streams = [
        os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_DSYNC) for name in ("stdout", "stderr")
    ]
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            os.closerange(3, 64)
            os.chdir(task["directory"])
            os.execvpe(task["command"][0], task["command"], task["environment"])
        except OSError as error:
            os.write(2, f"{task['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)
    while True:
        ended, status = os.wait()  # orphans too: this is process 1
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Do the task; the switch goes off whatever happens."""
    folder = os.readlink("/proc/self/cwd")  # /proc is the host's own as yet, and its "self" is the kernel
    outcome: dict[str, Any] = {}
    try:
        with open(f"{folder}/task.json") as file:
            task = json.load(file)
        os.environ.clear()
        os.environ.update(task["environment"])
        enter_writable_root(task["writable"])
        prepare(task)
        outcome["status"] = run(task, folder)
    except BaseException:
        outcome["failed"] = traceback.format_exc()
    outcome["uptime_s"] = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    try:
        report = os.open(f"{folder}/outcome.json", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
        os.write(report, json.dumps(outcome).encode())
    finally:
        os.sync()
        libc.reboot(POWER_OFF)


main()
