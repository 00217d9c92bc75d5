"""UDP sockets that send and receive many packets in one system call each (sendmmsg, recvmmsg).

Segmentation by the kernel (UDP_SEGMENT) would save more, but hands a card's shaper 64 kB at a time as one packet, which
a testbed of packets must not: TCP here has one segment in each, too. At 1 Gbit/s and with packets of 9 kB calls are not
what limits. Addresses in memory are kept as numbers: packets go out from where messages lie.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket

import numpy as np

from testbed.transport.base import TrafficClass, TransportError
from testbed.transport.datagram.packets import DATA, MOST_AHEAD, PARITY, UDP_HEADERS_BYTES
from testbed.transport.sockets import FORCED, SocketSettings
from testbed.transport.views import address_of
from testbed.virtual import clock_here

BATCH = 32  # packets of one call
MOST_MTU_BYTES = 9216
LOOPBACK_MTU_BYTES = 9000  # in place of the 64 kB that the loopback interface allows
RECEIVE_BUFFER_BYTES = 8 * 1024**2
# what waits in the card's queue, as the kernel counts it: by the real clock a rank may be late to fill it up again
SEND_BUFFER_BYTES, EXACT_SEND_BUFFER_BYTES = 512 * 1024, 128 * 1024
HEADER_ROOM = DATA.size + PARITY.size

# of linux/in.h
_IP_MTU, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO, _IP_RECVERR, _IP_RECVTOS = 14, 10, 2, 11, 13
_CONGESTION_EXPERIENCED, _ECN_CAPABLE, _ECN_BITS = 3, 2, 3
_CONTROL_BYTES, _TOS_OFFSET = 32, 16  # of one struct cmsghdr with a byte

_MESSAGE = np.dtype(
    {
        "names": ["iov", "count", "control", "control_bytes", "bytes"],
        "formats": ["u8", "u8", "u8", "u8", "u4"],
        "offsets": [16, 24, 32, 40, 56],
        "itemsize": 64,
    }
)
_PART = np.dtype([("base", "u8"), ("bytes", "u8")])
_libc = ctypes.CDLL(None, use_errno=True)


class CardFull(TransportError):
    """The card's queue is full: to be tried again a little later, no event tells when."""


class Outbox:
    """Room for the headers of a call's packets, and where their payloads lie; one for all sockets of a thread."""

    def __init__(self) -> None:
        self.headers = bytearray(BATCH * HEADER_ROOM)
        self._parts = np.zeros((BATCH, 2), _PART)
        self._messages = np.zeros(BATCH, _MESSAGE)
        base = address_of(memoryview(self.headers))
        self._parts["base"][:, 0] = base + np.arange(BATCH) * HEADER_ROOM
        self._messages["iov"] = self._parts.ctypes.data + np.arange(BATCH) * 2 * _PART.itemsize
        self._messages["count"] = 2
        self._address = self._messages.ctypes.data

    def send(self, sock: socket.socket, headers: list[int], payloads: list[int], sizes: list[int]) -> int:
        """Send packets, with these sizes of headers, addresses and sizes of payloads; how many the kernel took.

        BlockingIOError where it takes none until the socket is writable, CardFull where the card's queue is full.
        """
        count = len(headers)
        self._parts["bytes"][:count, 0] = headers
        self._parts["base"][:count, 1] = payloads
        self._parts["bytes"][:count, 1] = sizes
        took: int = _libc.sendmmsg(sock.fileno(), ctypes.c_void_p(self._address), count, 0)
        if took >= 0:
            return took
        number = ctypes.get_errno()
        if number == errno.EINTR:
            return 0
        if number == errno.ENOBUFS:
            raise CardFull
        raise OSError(number, os.strerror(number))


class Inbox:
    """Room for what one call receives; one for all sockets of a thread."""

    def __init__(self, marks: bool) -> None:
        room = MOST_MTU_BYTES
        self._memory = np.zeros(BATCH * room, np.uint8)
        self._views = [memoryview(self._memory.data)[i * room : (i + 1) * room] for i in range(BATCH)]
        self._controls = np.zeros((BATCH, _CONTROL_BYTES), np.uint8)
        self._parts = np.zeros(BATCH, _PART)
        self._messages = np.zeros(BATCH, _MESSAGE)
        self._parts["base"] = self._memory.ctypes.data + np.arange(BATCH) * room
        self._parts["bytes"] = room
        self._messages["iov"] = self._parts.ctypes.data + np.arange(BATCH) * _PART.itemsize
        self._messages["count"] = 1
        self._marks = marks
        if marks:
            self._messages["control"] = self._controls.ctypes.data + np.arange(BATCH) * _CONTROL_BYTES
        self._address = self._messages.ctypes.data

    def receive(self, sock: socket.socket) -> list[tuple[memoryview, bool]]:
        """What is there, BATCH packets at most: each, valid until the next call, and whether it was marked. OSError."""
        if self._marks:
            self._messages["control_bytes"] = _CONTROL_BYTES
        count: int = _libc.recvmmsg(
            sock.fileno(), ctypes.c_void_p(self._address), BATCH, socket.MSG_DONTWAIT, None
        )
        if count < 0:
            number = ctypes.get_errno()
            if number in {errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED}:
                return []
            raise OSError(number, os.strerror(number))
        sizes = self._messages["bytes"][:count].tolist()
        if not self._marks:
            return [(view[:size], False) for view, size in zip(self._views, sizes, strict=False)]
        tos = (self._controls[:count, _TOS_OFFSET] & _ECN_BITS).tolist()
        told = self._messages["control_bytes"][:count].tolist()
        return [
            (view[:size], bool(has) and mark == _CONGESTION_EXPERIENCED)
            for view, size, has, mark in zip(self._views, sizes, told, tos, strict=False)
        ]


def make_socket(
    local: tuple[str, int],
    remote: tuple[str, int],
    settings: SocketSettings,
    traffic: TrafficClass,
    marks: bool,
) -> socket.socket:
    """A socket between two addresses. marks: links may mark its packets, and it tells. OSError, TransportError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        settings.mark(sock, traffic)
        if marks:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic.dscp << 2 | _ECN_CAPABLE)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        # a full queue of the card is told, not passed over
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        exact = clock_here() == "free"
        window_bytes = settings.window_bytes or 0
        receive_bytes = settings.receive_buffer_bytes or max(RECEIVE_BUFFER_BYTES, 4 * window_bytes)
        send_bytes = settings.send_buffer_bytes or (EXACT_SEND_BUFFER_BYTES if exact else SEND_BUFFER_BYTES)
        _widen(sock, socket.SO_RCVBUF, receive_bytes)
        _widen(sock, socket.SO_SNDBUF, send_bytes)
        sock.bind(local)
        sock.connect(remote)
    except BaseException:
        sock.close()
        raise
    return sock


def payload_bytes(sock: socket.socket) -> int:
    """What a packet of data carries at most, by the path's MTU."""
    mtu_bytes = sock.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    if mtu_bytes > MOST_MTU_BYTES:
        mtu_bytes = LOOPBACK_MTU_BYTES
    return mtu_bytes - UDP_HEADERS_BYTES - HEADER_ROOM


def drain_errors(sock: socket.socket) -> None:
    """Take what the network has complained of: who is not there any more is known by other ways."""
    with contextlib.suppress(OSError):
        for _ in range(MOST_AHEAD):
            sock.recvmsg(1, 512, socket.MSG_ERRQUEUE)


def _widen(sock: socket.socket, option: int, size_bytes: int) -> None:
    """As wide as may be: root may pass the machine's limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, FORCED[option], size_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)


READ, WRITE, BAD = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR
