"""Offloads of network interfaces, switched off and read back by ioctl, as `ethtool -K` and `-k` do.

Each is one of the kernel's old ethtool commands, which every kernel knows (linux/ethtool.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Iterable
from typing import Protocol

from testbed.net.links.errors import LinkError

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
