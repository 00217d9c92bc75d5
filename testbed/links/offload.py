"""Offloads of network interfaces, switched off and read back by ioctl, as `ethtool -K` and `-k` do.

Each is one of the kernel's old ethtool commands, which every kernel knows (linux/ethtool.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from testbed.links.errors import LinkError

SIOCETHTOOL = 0x8946
# name as `ethtool -k` has it: (command that reads, command that sets); the order matters, as scatter-gather is needed
# by segmentation, which therefore goes first
OFFLOADS = {
    "tcp-segmentation-offload": (0x1E, 0x1F),
    "generic-segmentation-offload": (0x23, 0x24),
    "generic-receive-offload": (0x2B, 0x2C),
    "scatter-gather": (0x18, 0x19),
    "tx-checksumming": (0x16, 0x17),
}


def switch_off(interfaces: Iterable[str]) -> None:
    """All of them, on interfaces of the present network namespace. LinkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for interface in interfaces:
            for name, (_, setter) in OFFLOADS.items():
                _call(asker, interface, name, setter, 0)


def switched_on(interface: str) -> list[str]:
    """Names of the offloads that are on, on an interface of the present network namespace. LinkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return [name for name, (getter, _) in OFFLOADS.items() if _call(asker, interface, name, getter, 0)]


def _call(asker: socket.socket, interface: str, name: str, command: int, value: int) -> int:
    answer = ctypes.create_string_buffer(struct.pack("=II", command, value), 8)
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(answer)).ljust(40, b"\0")
    try:
        fcntl.ioctl(asker, SIOCETHTOOL, request)
    except OSError as error:
        raise LinkError(f"{interface}: {name}: {os.strerror(error.errno or 0)}") from error
    return int(struct.unpack("=II", answer.raw)[1])
