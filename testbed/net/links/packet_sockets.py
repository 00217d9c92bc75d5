"""Packet sockets with the kernel's arrival timestamps, and one-way delays between namespaces."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

from testbed.net.links.netns import network_namespace

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)


def open_packet_socket(interface: str) -> socket.socket:
    """Open a non-blocking socket for all incoming frames of an interface, with arrival timestamps."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.bind((interface, ETH_P_ALL))
    return made


def receive_stamped(receiver: socket.socket) -> tuple[bytes, int]:
    """Receive a packet and return it with its arrival time in nanoseconds of CLOCK_REALTIME."""
    packet, ancillary, _flags, _address = receiver.recvmsg(65_536, ANCILLARY_BYTES)
    seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
    return packet, seconds * 1_000_000_000 + nanoseconds


SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
_PROBE = struct.Struct("!iq")  # number and send time
PROBE_FRAME_BYTES = 14 + 20 + 8 + _PROBE.size  # Ethernet, IPv4, UDP
PACKET_TIMEOUT_S = 1.0  # longer than any path's delay on Earth
RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024

Endpoint = tuple[int, str]  # a process in the namespace, the address there


@contextlib.contextmanager
def udp_pair(
    here: Endpoint, there: Endpoint, in_flight_bytes: int | None = None
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open a connected pair of UDP sockets in two namespaces; the receiver gets the kernel's arrival timestamps.

    The kernel charges a packet to its sender until it has arrived. A sender at a fixed rate needs a buffer for the
    bandwidth-delay product of the path. A sender without a rate is held back by a small buffer and causes no overrun.

    Args:
        here: The endpoint that sends.
        there: The endpoint that receives.
        in_flight_bytes: Send buffer of the sender; None for the kernel's default of about 200 kB.

    Yields:
        The sender and the receiver.
    """
    with contextlib.ExitStack() as stack:
        with network_namespace(there[0]):
            receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind((there[1], 0))
        with network_namespace(here[0]):
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        if in_flight_bytes is not None:
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, in_flight_bytes)
        sender.bind((here[1], 0))
        sender.connect(receiver.getsockname())
        yield sender, receiver


def probe_transmission_s(rate_bps: float) -> float:
    """Return the transmission time in seconds of a probe datagram at a rate."""
    return PROBE_FRAME_BYTES * 8 / rate_bps


def measure_one_way_delays(
    here: Endpoint, there: Endpoint, packets: int, pause_s: float = 0.001
) -> list[float]:
    """Measure the one-way delays of small datagrams, sent one at a time.

    Args:
        here: The endpoint that sends.
        there: The endpoint that receives.
        packets: How many datagrams to send.
        pause_s: Pause in seconds between two datagrams; the longer, the more processes on the path have to wake up.

    Returns:
        Seconds from sending to arrival in the receiving kernel; lost datagrams are left out.
    """
    delays_s = []
    with udp_pair(here, there) as (sender, receiver):
        receiver.settimeout(PACKET_TIMEOUT_S)
        for number in range(packets):
            sender.send(_PROBE.pack(number, time.time_ns()))
            with contextlib.suppress(TimeoutError):
                while True:
                    packet, arrived_ns = receive_stamped(receiver)
                    arrived_number, sent_ns = _PROBE.unpack(packet)
                    delays_s.append((arrived_ns - sent_ns) / 1e9)
                    if arrived_number == number:
                        break
            time.sleep(pause_s)
    return delays_s
