"""Set up one network namespace with few netlink messages: sysctls, commands, offloads, soft-RoCE.

A network of 64 hosts is some six thousand settings. As one program each they take seconds under the real clock, and
minutes under the virtual one, where a program costs 45 ms. So what hosts have many of goes to the kernel in batches,
and what is left to few programs, each with many commands.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from testbed.net.errors import LinkError
from testbed.net.links.netlink import Netlink, Request, put, text
from testbed.net.links.netlink_requests import Indexes, translate
from testbed.net.links.netns import TIMEOUT_S, network_namespace

SEGMENTS = 1  # that TCP may put into one packet, for the kernel to cut
_SYSCTLS = Path("/proc/sys")


@dataclass
class Setup:
    """Kernel parameters, commands without their program's name, interfaces whose offloads go off.

    soft_roce: names of cards with verbs, and the interface that each is on.
    """

    sysctls: dict[str, str] = field(default_factory=dict)
    plain: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)
    bridge: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)
    soft_roce: list[tuple[str, str]] = field(default_factory=list)

    def add_interface(self, interface: str, mtu: int) -> None:
        """MTU, no offloads (userspace paths carry frames as they are), up.

        TCP makes packets of many segments all the same, for the kernel to cut at the interface: unless it may have only
        one in each. Else senders' trains leave 5 % of their window unused on a short queue.
        """
        self.plain.append(interface)
        self.ip.append(f"link set dev {interface} mtu {mtu} gso_max_segs {SEGMENTS} up")

    def apply(self, pid: int | None) -> None:
        """Set it all in the network namespace of process `pid` (None: here). LinkError names what failed."""
        with network_namespace(pid), Netlink() as netlink:
            for key, value in known_sysctls(self.sysctls).items():
                write_sysctl(key, value)
            apply_commands(netlink, [("ip", line) for line in self.ip])
            run_batch("bridge", self.bridge)
            disable_offloads(self.plain)
            apply_commands(netlink, [("tc", line) for line in self.tc])
            for name, interface in self.soft_roce:
                add_soft_roce(name, interface)


def apply_commands(netlink: Netlink, commands: Iterable[tuple[str, str]]) -> None:
    """(program, command) after command here, over netlink where we know how to say it; LinkError names what failed."""
    requests: list[Request] = []
    lines: list[str] = []
    last = ""

    def flush() -> None:  # one of both is empty
        netlink.carry_out(requests)
        run_batch(last, lines)
        requests.clear()
        lines.clear()

    index = Indexes(netlink, flush)
    for program, line in commands:
        request = translate(program, line, index)
        if (lines and (request or program != last)) or (requests and not request):
            flush()
        if request:
            requests.append(request)
        else:
            lines.append(line)
            last = program
    flush()


def run_batch(program: str, commands: Iterable[str]) -> None:
    """Run many commands of `ip`, `bridge` or `tc` here; LinkError with its own words at the first that fails."""
    lines = list(commands)
    if not lines:
        return
    try:
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise LinkError(f"cannot run {error.filename}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"no end after {TIMEOUT_S} s: {program} {'; '.join(lines)}") from error
    complaint = done.stderr.strip()
    if done.returncode != 0 or complaint:
        numbered = "\n".join(f"{program} {line}" for line in lines)
        raise LinkError(
            f"failed ({done.returncode}): {complaint or 'no message'}\n  while running:\n{numbered}"
        )


def known_sysctls(settings: Mapping[str, str]) -> dict[str, str]:
    """Those kernel parameters that this kernel was built with."""
    return {key: value for key, value in settings.items() if _path(key).exists()}


def write_sysctl(key: str, value: str) -> None:
    """Set a kernel parameter, in the present network namespace if it is one of a network. LinkError."""
    try:
        _path(key).write_text(value)
    except OSError as error:
        raise LinkError(f"{key}: cannot be set to {value}: {os.strerror(error.errno or 0)}") from error


def read_sysctl(key: str) -> str:
    """A kernel parameter as it is now, its fields separated by single spaces. LinkError."""
    try:
        return " ".join(_path(key).read_text().split())
    except OSError as error:
        raise LinkError(f"{key}: cannot be read: {os.strerror(error.errno or 0)}") from error


def _path(key: str) -> Path:
    return _SYSCTLS / key.replace(".", "/")


SIOCETHTOOL = 0x8946
GET_FEATURES, GET_STRINGS, FEATURE_STRINGS, FEATURE_WORDS = 0x3A, 0x1B, 4, 2
# name as `ethtool -k` has it: (command that reads, command that sets); the order matters, as scatter-gather is needed
# by segmentation, which therefore goes first
OFFLOADS = {
    "tcp-segmentation-offload": (0x1E, 0x1F),
    "generic-segmentation-offload": (0x23, 0x24),
    "generic-receive-offload": (0x2B, 0x2C),
    "scatter-gather": (0x18, 0x19),
    "tx-checksumming": (0x16, 0x17),
}


class Asker(Protocol):
    """A socket of any family, or what has one."""

    def fileno(self) -> int:
        """Its number."""


def disable_offloads(interfaces: Iterable[str]) -> None:
    """All of them, on interfaces of the present network namespace. LinkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for interface in interfaces:
            for name, (_, setter) in OFFLOADS.items():
                _call(asker, interface, name, setter, 0)


def enabled_offloads(interface: str) -> list[str]:
    """Names of the offloads that are on, on an interface of the present network namespace. LinkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return [name for name, (getter, _) in OFFLOADS.items() if _call(asker, interface, name, getter, 0)]


def features(asker: Asker, interface: str) -> bytes:
    """Which of all the kernel's offloads are on, a bit each, on an interface of the socket's namespace. OSError."""
    answer = ctypes.create_string_buffer(
        struct.pack("=II", GET_FEATURES, FEATURE_WORDS).ljust(8 + 16 * FEATURE_WORDS, b"\0"),
        8 + 16 * FEATURE_WORDS,
    )
    _ioctl(asker, interface, answer)
    # of each word: available, requested, active, never changed
    return b"".join(answer.raw[16 * word + 16 : 16 * word + 20] for word in range(FEATURE_WORDS))


@functools.cache
def feature_names() -> tuple[str, ...]:
    """Their names, from the lowest bit on, as `ethtool -k` has them. OSError."""
    size = 32 * 32 * FEATURE_WORDS
    answer = ctypes.create_string_buffer(
        struct.pack("=III", GET_STRINGS, FEATURE_STRINGS, 32 * FEATURE_WORDS).ljust(12 + size, b"\0"),
        12 + size,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        _ioctl(asker, "lo", answer)
    names = (answer.raw[12 + at : 44 + at] for at in range(0, size, 32))
    return tuple(name.rstrip(b"\0").decode() for name in names)


def _ioctl(asker: Asker, interface: str, answer: ctypes.Array[ctypes.c_char]) -> None:
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(answer)).ljust(40, b"\0")
    fcntl.ioctl(asker, SIOCETHTOOL, request)


def _call(asker: socket.socket, interface: str, name: str, command: int, value: int) -> int:
    answer = ctypes.create_string_buffer(struct.pack("=II", command, value), 8)
    try:
        _ioctl(asker, interface, answer)
    except OSError as error:
        raise LinkError(f"{interface}: {name}: {os.strerror(error.errno or 0)}") from error
    return int(struct.unpack("=II", answer.raw)[1])


NETLINK_RDMA = 20
_NEW_LINK = 5 << 10 | 3  # RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
_DEVICE, _INTERFACE, _KIND = 2, 51, 65  # RDMA_NLDEV_ATTR_DEV_NAME, _NDEV_NAME, _LINK_TYPE
_DEVICES = Path("/sys/class/infiniband")
_MODULE = Path("/sys/module/rdma_rxe")
MOST_UNACKNOWLEDGED = _MODULE / "parameters/max_unacked_psns"


def soft_roce_reason() -> str | None:
    """Why this machine's hosts can have no such cards, each in its namespace; None where they can.

    What tells a kernel that looks for routes, and listens, in the namespace of a card's interface, is our own change
    beside it: that its window is a parameter.
    """
    if not _MODULE.exists():
        return "this kernel has no soft-RoCE (rdma_rxe)"
    if not MOST_UNACKNOWLEDGED.exists():
        return (
            "this kernel's soft-RoCE has a window of 128 packets and, before Linux 7.2, works in the first network "
            "namespace only"
        )
    return None


def add_soft_roce(name: str, interface: str) -> None:
    """Give an interface of this network namespace a card of that name, whose counters are never old. LinkError."""
    body = put(_DEVICE, text(name)) + put(_KIND, text("rxe")) + put(_INTERFACE, text(interface))
    with Netlink(NETLINK_RDMA) as netlink:
        netlink.carry_out([Request(_NEW_LINK, 0, body, f"rdma link add {name} type rxe netdev {interface}")])
    # as it comes, who reads them within 10 ms of somebody else gets what that one got
    lifespan = _counters(name) / "lifespan"
    try:
        lifespan.write_text("0")
    except OSError as error:
        raise LinkError(f"{lifespan}: cannot be set to 0: {os.strerror(error.errno or 0)}") from error


def packets_sent(name: str) -> int:
    """By a card, so far; IP counts them, but none of its protocols does. OSError where there is no such card."""
    return int((_counters(name) / "sent_pkts").read_text())


def _counters(name: str) -> Path:
    return _DEVICES / name / "ports/1/hw_counters"
