"""Setup of one network namespace in batches: sysctls, `ip`, `bridge` and `tc` commands, offloads, soft-RoCE.

A network of 64 hosts has about six thousand settings. One program per setting would take seconds under the real clock,
and minutes under the virtual one, where a program costs 45 ms. So frequent settings go to the kernel in netlink
batches, and the others to a few programs with many commands each.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.net.errors import LinkError
from testbed.net.links.interfaces import read_interfaces
from testbed.net.links.netlink import Netlink, Request, encode_attribute, encode_string
from testbed.net.links.netlink_requests import encode_command
from testbed.net.links.netns import network_namespace, run_with_input

if TYPE_CHECKING:
    from _typeshed import HasFileno

MAX_GSO_SEGMENTS = 1  # segments that TCP may put into one packet for the kernel to split
_SYSCTLS = Path("/proc/sys")


@dataclass
class Setup:
    """The settings of one network namespace.

    sysctls: kernel parameters by name. without_offloads: interfaces on which offloads are switched off. ip, bridge, tc:
    commands without the program's name. soft_roce: names of soft-RoCE NICs, each with its interface.
    """

    sysctls: dict[str, str] = field(default_factory=dict)
    without_offloads: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)
    bridge: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)
    soft_roce: list[tuple[str, str]] = field(default_factory=list)

    def add_interface(self, interface: str, mtu: int) -> None:
        """Set an interface up with an MTU and without offloads, since userspace paths forward frames unchanged.

        Even without offloads, TCP builds packets of many segments, which the kernel splits at the interface. It is
        limited to one segment per packet here, because with such trains senders leave 5 % of their window unused on a
        short queue.
        """
        self.without_offloads.append(interface)
        self.ip.append(f"link set dev {interface} mtu {mtu} gso_max_segs {MAX_GSO_SEGMENTS} up")

    def apply(self, pid: int | None) -> None:
        """Apply all settings in the network namespace of process `pid` (None: the current one).

        Raises:
            LinkError: A setting failed; the message names it.
        """
        with network_namespace(pid), Netlink() as netlink:
            for key, value in supported_sysctls(self.sysctls).items():
                write_sysctl(key, value)
            apply_commands(netlink, [("ip", line) for line in self.ip])
            run_batch("bridge", self.bridge)
            disable_offloads(self.without_offloads)
            apply_commands(netlink, [("tc", line) for line in self.tc])
            for name, interface in self.soft_roce:
                add_soft_roce(name, interface)


def apply_commands(netlink: Netlink, commands: Iterable[tuple[str, str]]) -> None:
    """Run commands of `ip` and `tc` in the current namespace, over netlink where `encode_command` knows them.

    Args:
        netlink: A socket in the current namespace.
        commands: The program and the command without its name, in order.

    Raises:
        LinkError: A command failed; the message names it.
    """
    requests: list[Request] = []
    lines: list[str] = []
    last = ""

    def flush() -> None:  # at most one of the two is not empty
        netlink.execute(requests)
        run_batch(last, lines)
        requests.clear()
        lines.clear()

    known: dict[str, int] = {}

    def index(name: str) -> int:  # index of an interface; 0, which the kernel refuses, if it is missing
        if name not in known:
            flush()
            known.clear()
            known.update((link.name, link.index) for link in read_interfaces(netlink))
        return known.get(name, 0)

    for program, line in commands:
        request = encode_command(program, line, index)
        if (lines and (request or program != last)) or (requests and not request):
            flush()
        if request:
            requests.append(request)
        else:
            lines.append(line)
            last = program
    flush()


def run_batch(program: str, commands: Iterable[str]) -> None:
    """Run many commands of `ip`, `bridge` or `tc` in the current namespace. Raises LinkError for the first failure."""
    lines = list(commands)
    if lines:
        listed = "".join(f"\n{program} {line}" for line in lines)
        run_with_input([program, "-batch", "-"], "\n".join(lines), f"{program} {'; '.join(lines)}", listed)


def supported_sysctls(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the kernel parameters that this kernel supports."""
    return {key: value for key, value in settings.items() if _sysctl_path(key).exists()}


def write_sysctl(key: str, value: str) -> None:
    """Set a kernel parameter, in the current namespace if it is a network's. Raises LinkError if that fails."""
    try:
        _sysctl_path(key).write_text(value)
    except OSError as error:
        raise LinkError(f"{key}: cannot be set to {value}: {os.strerror(error.errno or 0)}") from error


def read_sysctl(key: str) -> str:
    """Read a kernel parameter, with its fields separated by single spaces. Raises LinkError if that fails."""
    try:
        return " ".join(_sysctl_path(key).read_text().split())
    except OSError as error:
        raise LinkError(f"{key}: cannot be read: {os.strerror(error.errno or 0)}") from error


def _sysctl_path(key: str) -> Path:
    return _SYSCTLS / key.replace(".", "/")


SIOCETHTOOL = 0x8946
GET_FEATURES, GET_STRINGS, FEATURE_STRINGS, FEATURE_WORDS = 0x3A, 0x1B, 4, 2
# name in `ethtool -k`: (get command, set command). The order matters: segmentation needs scatter-gather, so it is
# switched off first.
OFFLOADS = {
    "tcp-segmentation-offload": (0x1E, 0x1F),
    "generic-segmentation-offload": (0x23, 0x24),
    "generic-receive-offload": (0x2B, 0x2C),
    "scatter-gather": (0x18, 0x19),
    "tx-checksumming": (0x16, 0x17),
}


def disable_offloads(interfaces: Iterable[str]) -> None:
    """Switch off the OFFLOADS of interfaces in the current network namespace. Raises LinkError if that fails."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for interface in interfaces:
            for name, (_, setter) in OFFLOADS.items():
                _ethtool_value(sock, interface, name, setter, 0)


def enabled_offloads(interface: str) -> list[str]:
    """Return the OFFLOADS that are on for an interface. Raises LinkError if they cannot be read."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [
            name for name, (getter, _) in OFFLOADS.items() if _ethtool_value(sock, interface, name, getter, 0)
        ]


def read_feature_bits(sock: HasFileno, interface: str) -> bytes:
    """Return which of the kernel's offloads are on for an interface, one bit each.

    Args:
        sock: A socket in the namespace of the interface.
        interface: Its name.

    Raises:
        OSError: The interface does not exist.
    """
    answer = ctypes.create_string_buffer(
        struct.pack("=II", GET_FEATURES, FEATURE_WORDS).ljust(8 + 16 * FEATURE_WORDS, b"\0"),
        8 + 16 * FEATURE_WORDS,
    )
    _ethtool_ioctl(sock, interface, answer)
    # four values per word: available, requested, active, never changed
    return b"".join(answer.raw[16 * word + 16 : 16 * word + 20] for word in range(FEATURE_WORDS))


@functools.cache
def feature_names() -> tuple[str, ...]:
    """Return the names of the kernel's offloads as in `ethtool -k`, from the lowest bit on."""
    size = 32 * 32 * FEATURE_WORDS
    answer = ctypes.create_string_buffer(
        struct.pack("=III", GET_STRINGS, FEATURE_STRINGS, 32 * FEATURE_WORDS).ljust(12 + size, b"\0"),
        12 + size,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        _ethtool_ioctl(sock, "lo", answer)
    names = (answer.raw[12 + at : 44 + at] for at in range(0, size, 32))
    return tuple(name.rstrip(b"\0").decode() for name in names)


def _ethtool_ioctl(sock: HasFileno, interface: str, answer: ctypes.Array[ctypes.c_char]) -> None:
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(answer)).ljust(40, b"\0")
    fcntl.ioctl(sock, SIOCETHTOOL, request)


def _ethtool_value(sock: socket.socket, interface: str, name: str, command: int, value: int) -> int:
    answer = ctypes.create_string_buffer(struct.pack("=II", command, value), 8)
    try:
        _ethtool_ioctl(sock, interface, answer)
    except OSError as error:
        raise LinkError(f"{interface}: {name}: {os.strerror(error.errno or 0)}") from error
    return int(struct.unpack("=II", answer.raw)[1])


NETLINK_RDMA = 20
_NEW_LINK = 5 << 10 | 3  # RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
_DEVICE, _INTERFACE, _KIND = 2, 51, 65  # RDMA_NLDEV_ATTR_DEV_NAME, _NDEV_NAME, _LINK_TYPE
_DEVICES = Path("/sys/class/infiniband")
_MODULE = Path("/sys/module/rdma_rxe")
MAX_UNACKED_PSNS = _MODULE / "parameters/max_unacked_psns"


def soft_roce_obstacle() -> str | None:
    """Return why hosts on this machine cannot have soft-RoCE NICs in their namespaces; None if they can.

    A kernel whose rxe works in every namespace cannot be recognised directly. The testbed's kernel patches also make
    the window a module parameter, so that parameter is checked.
    """
    if not _MODULE.exists():
        return "this kernel has no soft-RoCE (rdma_rxe)"
    if not MAX_UNACKED_PSNS.exists():
        return (
            "this kernel's soft-RoCE has a window of 128 packets and, before Linux 7.2, works in the first network "
            "namespace only"
        )
    return None


def add_soft_roce(name: str, interface: str) -> None:
    """Add a soft-RoCE NIC to an interface of the current namespace, with uncached counters. Raises LinkError."""
    body = (
        encode_attribute(_DEVICE, encode_string(name))
        + encode_attribute(_KIND, encode_string("rxe"))
        + encode_attribute(_INTERFACE, encode_string(interface))
    )
    with Netlink(NETLINK_RDMA) as netlink:
        netlink.execute([Request(_NEW_LINK, 0, body, f"rdma link add {name} type rxe netdev {interface}")])
    # by default a reader gets cached counters that are up to 10 ms old
    lifespan = _rdma_counters(name) / "lifespan"
    try:
        lifespan.write_text("0")
    except OSError as error:
        raise LinkError(f"{lifespan}: cannot be set to 0: {os.strerror(error.errno or 0)}") from error


def read_rdma_packets_sent(name: str) -> int:
    """Return how many packets a soft-RoCE NIC has sent; IP counts them, but no protocol above it does.

    Raises:
        OSError: There is no such NIC.
    """
    return int((_rdma_counters(name) / "sent_pkts").read_text())


def _rdma_counters(name: str) -> Path:
    return _DEVICES / name / "ports/1/hw_counters"
