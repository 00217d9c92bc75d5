"""The init process of a guest: it overlays the host's root with a writable one, runs one command and powers off.

It uses only the standard library, without `site`. Its task is a file in the working directory of the guest's kernel on
the host. Changes reach the host only in the task's writable folders.
"""

from __future__ import annotations

import ctypes
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
MAX_OPEN_FILES = 65_536  # per process: watching a network of 512 hosts takes 8,000
STAGING_FOLDER = "/mnt"  # exists in every root file system; covered by a tmpfs for the moment
OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
SYSCTLS = {
    "vm/panic_on_oom": "1",
    # The first frames of a flow wait in a socket of Open vSwitch until their rule is known. At hundreds of Gbit/s many
    # arrive at the same instant, and a socket buffer of the default size would drop some.
    "net/core/rmem_default": str(64 << 20),
    "net/core/rmem_max": str(1 << 30),
    "net/core/netdev_max_backlog": str(1 << 20),  # holds all frames that are sent at one instant
    "net/core/wmem_max": str(1 << 30),
    # in pages: TCP is limited only by the guest's memory
    "net/ipv4/tcp_mem": f"{1 << 24} {1 << 24} {1 << 24}",
}
# An Open vSwitch bridge created in the first ten seconds after boot can drop every packet.
OVS_AGE_S = 10.0

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError for a failed system call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(kind: str, target: str, options: str = "", flags: int = 0, source: str | None = None) -> None:
    """Call mount(2). Raises OSError if it fails."""
    arguments = (value.encode() if value is not None else None for value in (source or kind, target, kind))
    check(
        libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {kind} on {target}"
    )


def enter_writable_root(folders: list[str]) -> None:
    """Change to a root whose changes stay in memory, except for those in `folders`, which reach the host."""
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
    os.symlink("/proc/self/fd", "dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"dev/{name}")
    mount("tmpfs", "run", "mode=0755")
    for folder in folders:
        mount("hostfs", folder.lstrip("/"), folder)
    os.mkdir("run/host")
    pivot_root = 155  # on x86-64, the only architecture of guests
    check(libc.syscall(pivot_root, b".", b"run/host"), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"/run/host", MNT_DETACH), "umount the host's root")
    os.rmdir("/run/host")


def bring_up_loopback() -> None:
    """Set the loopback interface up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(sock, SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | IFF_UP)
        fcntl.ioctl(sock, SIOCSIFFLAGS, request)


def start_open_vswitch() -> None:
    """Create a database in memory and start both daemons of Open vSwitch."""
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
    """Prepare the guest for the command: limits, loopback, host name, sysctls and Open vSwitch."""
    check(libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0), "timer slack")  # so that sleeps end on time
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
    """Run the command and return its exit code, -n if signal n killed it."""
    # O_DSYNC: the host sees output at once, not when the guest's kernel writes it back.
    streams = [
        os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_DSYNC) for name in ("stdout", "stderr")
    ]
    try:
        process = subprocess.Popen(
            task["command"],
            cwd=task["directory"],
            env=task["environment"],
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
            restore_signals=False,
        )
    except OSError as error:
        os.write(streams[1], f"{task['command'][0]}: {error.strerror}\n".encode())
        return 127
    while True:
        ended, status = os.wait()  # reaps orphans, too: this is process 1
        if ended == process.pid:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Execute the task and power off, whatever happens."""
    folder = os.readlink("/proc/self/cwd")  # /proc is still the host's, and its "self" is the guest's kernel
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
