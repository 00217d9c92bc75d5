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


SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
_PROBE = struct.Struct("!iq")  # its number, when it was sent
PROBE_FRAME_BYTES = 14 + 20 + 8 + _PROBE.size  # Ethernet, IPv4, UDP
PACKET_TIMEOUT_S = 1.0  # more than any path on Earth takes
RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024

End = tuple[int, str]  # a process in the namespace, the address there


@contextlib.contextmanager
def udp_pair(
    here: End, there: End, in_flight_bytes: int | None = None
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """(sender, receiver): connected UDP sockets in two namespaces; the kernel stamps what the receiver gets.

    The kernel charges a packet to its sender until it has arrived, and lets no more than `in_flight_bytes` be on the
    way (None: its own default, some 200 kB). Who sends at a rate that something else sets wants room for a long fat
    link; who sends without a pause is held back by the little there is, and overruns nobody.
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


def probe_s(rate_bps: float) -> float:
    """What a datagram of `one_way_times` takes on a wire of that rate, beside its delay."""
    return PROBE_FRAME_BYTES * 8 / rate_bps


def one_way_times(here: End, there: End, packets: int, pause_s: float = 0.001) -> list[float]:
    """Seconds from sending to the receiving kernel, of small datagrams one at a time; lost ones are left out.

    `pause_s` passes between them: the longer, the deeper everything on the way falls asleep again.
    """
    times = []
    with udp_pair(here, there) as (sender, receiver):
        receiver.settimeout(PACKET_TIMEOUT_S)
        for number in range(packets):
            sender.send(_PROBE.pack(number, time.time_ns()))
            with contextlib.suppress(TimeoutError):
                while True:
                    packet, arrived_ns = receive_stamped(receiver)
                    arrived_number, sent_ns = _PROBE.unpack(packet)
                    times.append((arrived_ns - sent_ns) / 1e9)
                    if arrived_number == number:
                        break
            time.sleep(pause_s)
    return times
