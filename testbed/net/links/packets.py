"""Packet sockets and the kernel's arrival stamps."""

from __future__ import annotations

import socket
import struct

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)


def packet_socket(interface: str) -> socket.socket:
    """For every frame that comes in at an interface of this network namespace, stamped; never waits."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.bind((interface, ETH_P_ALL))
    return made


def receive_stamped(receiver: socket.socket) -> tuple[bytes, int]:
    """The next packet and when the kernel got it, in nanoseconds of CLOCK_REALTIME."""
    packet, ancillary, _flags, _address = receiver.recvmsg(65_536, ANCILLARY_BYTES)
    seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
    return packet, seconds * 1_000_000_000 + nanoseconds
