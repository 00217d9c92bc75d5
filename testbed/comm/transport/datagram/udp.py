"""UDP sockets that send and receive many packets per system call (sendmmsg, recvmmsg).

In real time, consecutive packets use segmentation offload (UDP_SEGMENT): the kernel takes them as one train and cuts it
where it leaves the NIC's queue. Everything behind that queue (links, captures, receivers) sees single packets. A train
is no longer than the burst of the NIC's shaper; the kernel takes all of it or nothing. Memory addresses are kept as
numbers, so that packets are sent straight from the memory of messages. `coalesce_packets` sorts the packets that one
call has received: consecutive data packets become one run, and only the latest acknowledgement of each path is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.clock import clock_here
from testbed.comm.transport.base import TrafficClass, TransportError, buffer_address
from testbed.comm.transport.datagram.packets import (
    ACK,
    ACK_KIND,
    ACK_REQUESTED,
    CREDIT,
    DATA,
    DATA_KIND,
    ETHERNET_HEADER_BYTES,
    HEADER_ROOM,
    MAX_AHEAD,
    NAK,
    UDP_HEADERS_BYTES,
    WORDS,
    Data,
)
from testbed.comm.transport.sockets import FORCED_OPTIONS, SocketSettings

BATCH = 64  # packets per call
MAX_MTU_BYTES = 9216  # a multiple of 8 bytes
LOOPBACK_MTU_BYTES = 9000  # instead of the 64 kB of the loopback interface
RECEIVE_BUFFER_BYTES = 8 * 1024**2
# data in the NIC's queue, as the kernel counts it: in real time, a rank may be late to refill it
SEND_BUFFER_BYTES, EXACT_SEND_BUFFER_BYTES = 512 * 1024, 128 * 1024

# limits of trains: the burst of shapers in real time (testbed.net.links.shaping), and an IPv4 packet
TRAIN_S, MAX_TRAIN_BYTES = 0.002, 65507
HEADER_STRIDE = 64  # distance between packets' headers in a SendBatch

# from linux/in.h
_IP_MTU, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO, _IP_RECVERR, _IP_RECVTOS = 14, 10, 2, 11, 13
_CONGESTION_EXPERIENCED, _ECN_CAPABLE, _ECN_BITS = 3, 2, 3
_CONTROL_BYTES, _TOS_OFFSET = 32, 16  # one struct cmsghdr with one byte of data

_MESSAGE = np.dtype(
    {
        "names": ["iov", "count", "control", "control_bytes", "bytes"],
        "formats": ["u8", "u8", "u8", "u8", "u4"],
        "offsets": [16, 24, 32, 40, 56],
        "itemsize": 64,
    }
)
_PART = np.dtype([("base", "u8"), ("bytes", "u8")])
# struct cmsghdr with the argument of UDP_SEGMENT and padding
_SEGMENT = np.dtype([("bytes", "u8"), ("level", "i4"), ("kind", "i4"), ("segment", "u2"), ("rest", "u2", 3)])
_UDP_SEGMENT, _SEGMENT_BYTES = 103, 18
# errors of kernels without UDP_SEGMENT, or without it for NICs that do not compute checksums (before Linux 6.11)
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
_libc = ctypes.CDLL(None, use_errno=True)

PerPacket = Sequence[int] | NDArray[np.int64]
"""One value for each packet of a call."""


class QueueFull(TransportError):
    """The NIC's queue is full. Retry a little later: no event announces room."""


class SegmentationOffload:
    """Trains of packets of one size that the kernel takes as one, with up to `packets` in each; 1: no trains.

    Args:
        packet_bytes: Size of one packet, with its header.
        card_bps: Rate of the NIC that sends them.
    """

    def __init__(self, packet_bytes: int, card_bps: float) -> None:
        self.packets = 1
        if clock_here() != "free":
            at_once = min(TRAIN_S * card_bps / 8, MAX_TRAIN_BYTES) / packet_bytes
            self.packets = max(1, min(BATCH, int(at_once)))
        self.control = np.zeros(1, _SEGMENT)
        self.control["bytes"], self.control["level"] = _SEGMENT_BYTES, socket.IPPROTO_UDP
        self.control["kind"], self.control["segment"] = _UDP_SEGMENT, packet_bytes


class SendBatch:
    """Headers and payload addresses of one call's packets; shared by all sockets of a thread."""

    def __init__(self) -> None:
        self.headers = bytearray(BATCH * HEADER_STRIDE)
        self.words = np.frombuffer(self.headers, "<u8").reshape(BATCH, -1)
        self._parts = np.zeros((BATCH, 2), _PART)
        self._messages = np.zeros(BATCH, _MESSAGE)
        base = buffer_address(memoryview(self.headers))
        self._parts["base"][:, 0] = base + np.arange(BATCH) * HEADER_STRIDE
        self._messages["iov"] = self._parts.ctypes.data + np.arange(BATCH) * 2 * _PART.itemsize
        self._messages["count"] = 2
        self._address = ctypes.c_void_p(self._messages.ctypes.data)
        self.segmented = 0  # packets cut from trains, which IP did not count
        self._trains = np.zeros(BATCH, _MESSAGE)
        self._trains_address = ctypes.c_void_p(self._trains.ctypes.data)

    def send_trains(
        self,
        sock: socket.socket,
        trains: SegmentationOffload,
        headers: PerPacket,
        payloads: PerPacket,
        sizes: PerPacket,
    ) -> int:
        """Like `send`, for consecutive packets of one size, except for the last."""
        count, each = len(headers), trains.packets
        if each == 1 or count == 1:
            return self.send(sock, headers, payloads, sizes)
        self._fill(headers, payloads, sizes)
        number = -(-count // each)
        messages = self._trains[:number]
        messages["iov"] = self._messages["iov"][:count:each]
        messages["count"] = 2 * each
        messages["count"][-1] = 2 * (count - (number - 1) * each)
        messages["control"] = trains.control.ctypes.data
        messages["control_bytes"] = trains.control.itemsize
        taken: int = _libc.sendmmsg(sock.fileno(), self._trains_address, number, 0)
        if taken < 0 and ctypes.get_errno() in _NO_SEGMENTATION:
            trains.packets = 1
            return self.send(sock, headers, payloads, sizes)
        packets = min(count, self._check_result(taken) * each)
        self.segmented += packets - taken
        return packets

    def send(self, sock: socket.socket, headers: PerPacket, payloads: PerPacket, sizes: PerPacket) -> int:
        """Send packets, and return how many the kernel took.

        Args:
            sock: The socket.
            headers: Sizes of the headers.
            payloads: Addresses of the payloads.
            sizes: Sizes of the payloads.

        Raises:
            BlockingIOError: If the kernel takes none until the socket is writable.
            QueueFull: If the NIC's queue is full.
        """
        self._fill(headers, payloads, sizes)
        return self._check_result(_libc.sendmmsg(sock.fileno(), self._address, len(headers), 0))

    def _fill(self, headers: PerPacket, payloads: PerPacket, sizes: PerPacket) -> None:
        count = len(headers)
        self._parts["bytes"][:count, 0] = headers
        self._parts["base"][:count, 1] = payloads
        self._parts["bytes"][:count, 1] = sizes

    @staticmethod
    def _check_result(result: int) -> int:
        """Return a call's result, or raise its error."""
        if result >= 0:
            return result
        number = ctypes.get_errno()
        if number == errno.EINTR:
            return 0
        if number == errno.ENOBUFS:
            raise QueueFull
        raise OSError(number, os.strerror(number))


class ReceiveBatch:
    """Memory for the packets that one call receives; shared by all sockets of a thread."""

    def __init__(self, uses_ecn: bool) -> None:
        room = MAX_MTU_BYTES
        self._memory = np.zeros(BATCH * room, np.uint8)
        self.rows = self._memory.reshape(BATCH, room)  # the packets, of length `sizes`
        self.words = self._memory.view("<u8").reshape(BATCH, -1)
        self.sizes: list[int] = []
        self.marked: list[bool] = []
        self._views = [memoryview(row.data) for row in self.rows]
        self._controls = np.zeros((BATCH, _CONTROL_BYTES), np.uint8)
        self._parts = np.zeros(BATCH, _PART)
        self._messages = np.zeros(BATCH, _MESSAGE)
        self._parts["base"] = self._memory.ctypes.data + np.arange(BATCH) * room
        self._parts["bytes"] = room
        self._messages["iov"] = self._parts.ctypes.data + np.arange(BATCH) * _PART.itemsize
        self._messages["count"] = 1
        self._uses_ecn = uses_ecn
        if uses_ecn:
            self._messages["control"] = self._controls.ctypes.data + np.arange(BATCH) * _CONTROL_BYTES
        self._address = ctypes.c_void_p(self._messages.ctypes.data)

    def packet(self, position: int) -> memoryview:
        """Return one of the last received packets; valid until the next call."""
        return self._views[position][: self.sizes[position]]

    def receive(self, sock: socket.socket) -> int:
        """Receive up to BATCH packets and return their number. Sets their `sizes` and `marked`. Raises OSError."""
        if self._uses_ecn:
            self._messages["control_bytes"] = _CONTROL_BYTES
        count: int = _libc.recvmmsg(sock.fileno(), self._address, BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in {errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED}:
                count = 0
            else:
                raise OSError(number, os.strerror(number))
        self.sizes = self._messages["bytes"][:count].tolist()
        if self._uses_ecn:
            bits = self._controls[:count, _TOS_OFFSET] & _ECN_BITS
            has_control = self._messages["control_bytes"][:count] > 0
            self.marked = (has_control & (bits == _CONGESTION_EXPERIENCED)).tolist()
        else:
            self.marked = [False] * count
        return count


def make_socket(
    local: tuple[str, int],
    remote: tuple[str, int],
    settings: SocketSettings,
    traffic: TrafficClass,
    uses_ecn: bool,
) -> socket.socket:
    """Return a socket between two addresses.

    Args:
        local: Address and port of this end.
        remote: Address and port of the peer.
        settings: Buffers and window.
        traffic: The class of traffic.
        uses_ecn: Whether links may mark its packets, and marks are reported.

    Raises:
        OSError, TransportError: If the socket cannot be made.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        settings.set_traffic_class(sock, traffic)
        if uses_ecn:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic.dscp << 2 | _ECN_CAPABLE)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        # report a full NIC queue as an error
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        exact = clock_here() == "free"
        window_bytes = settings.window_bytes or 0
        receive_bytes = settings.receive_buffer_bytes or max(RECEIVE_BUFFER_BYTES, 4 * window_bytes)
        send_bytes = settings.send_buffer_bytes or (EXACT_SEND_BUFFER_BYTES if exact else SEND_BUFFER_BYTES)
        _set_buffer(sock, socket.SO_RCVBUF, receive_bytes)
        _set_buffer(sock, socket.SO_SNDBUF, send_bytes)
        sock.bind(local)
        sock.connect(remote)
    except BaseException:
        sock.close()
        raise
    return sock


def payload_bytes(sock: socket.socket) -> int:
    """Return the largest payload of a data packet, given the path's MTU."""
    mtu_bytes = sock.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    if mtu_bytes > MAX_MTU_BYTES:
        mtu_bytes = LOOPBACK_MTU_BYTES
    return mtu_bytes - UDP_HEADERS_BYTES - HEADER_ROOM


def frame_bytes(payload: int) -> int:
    """Return the Ethernet frame size of a full packet, given its payload in bytes."""
    return payload + HEADER_ROOM + UDP_HEADERS_BYTES + ETHERNET_HEADER_BYTES


def drain_errors(sock: socket.socket) -> None:
    """Discard queued network errors. A lost peer is detected by the control connection."""
    with contextlib.suppress(OSError):
        for _ in range(MAX_AHEAD):
            sock.recvmsg(1, 512, socket.MSG_ERRQUEUE)


def _set_buffer(sock: socket.socket, option: int, size_bytes: int) -> None:
    """Set a buffer's size; root may exceed the host's limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, FORCED_OPTIONS[option], size_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)


READ, WRITE, ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR


MIN_VECTORISED = 5  # number of packets from which vectorised code is faster
_FLAGS = np.uint64(0xFF00)  # in a header's first word
_SAME = ~_FLAGS
_ACK_REQUESTED = np.uint64(ACK_REQUESTED << 8)


class PacketRun(NamedTuple):
    """Consecutive data packets of one message and path, of one size and all marked or none.

    Attributes:
        header: The first packet's header.
        at: Its position in the batch.
        packets: Their number.
        serial: The last packet's serial.
        asks: Whether one of them requests an acknowledgement.
        marked: Whether they carry an ECN mark.
    """

    header: Data
    at: int
    packets: int
    serial: int
    asks: bool
    marked: bool


def coalesce_packets(inbox: ReceiveBatch, secret: int) -> tuple[list[PacketRun], list[int], list[memoryview]]:
    """Return (runs of data, positions of other packets, acknowledgements). Packets of other pairs are dropped."""
    runs: list[PacketRun] = []
    others: list[int] = []
    acks: dict[object, tuple[tuple[int, int], memoryview]] = {}
    position, count = 0, len(inbox.sizes)
    while position < count:
        size, packet = inbox.sizes[position], inbox.packet(position)
        at, position = position, position + 1
        if size < CREDIT.size or int.from_bytes(packet[4:8], "little") != secret:
            continue
        kind = packet[0]
        if kind == DATA_KIND and size >= DATA.size:
            header = Data._make(DATA.unpack_from(packet))
            packets, asks = (
                _count_run(inbox, at)
                if count - at >= MIN_VECTORISED
                else (1, header.flags & ACK_REQUESTED > 0)
            )
            serial = header.serial + packets - 1
            runs.append(PacketRun(header, at, packets, serial, asks, inbox.marked[at]))
            position = at + packets
        elif kind == ACK_KIND and size >= ACK.size:
            _, flags, path, _, _, received, _, low = ACK.unpack_from(packet)
            ack_key: object = (path, at) if flags & NAK else path
            known = acks.get(ack_key)
            if known is None or known[0] <= (received, low):
                acks[ack_key] = (received, low), packet
        else:
            others.append(at)
    return runs, others, [packet for _, packet in acks.values()]


def _count_run(inbox: ReceiveBatch, at: int) -> tuple[int, bool]:
    """Return how many packets follow each other from `at` on, and whether one requests an acknowledgement."""
    size, marked = inbox.sizes[at], inbox.marked[at]
    end = at + 1
    while end < len(inbox.sizes) and inbox.sizes[end] == size and inbox.marked[end] == marked:
        end += 1
    words = inbox.words[at:end, :WORDS].copy()
    flags = words[:, 0] & _FLAGS
    words[:, 0] &= _SAME
    # kind, path and secret; serial and message; number; tag; offset; size of the message
    steps = np.array([0, 1, 1, 0, size - DATA.size, 0], np.uint64)
    follow = (words[1:] - words[:-1] == steps).all(axis=1)
    packets = len(words) if follow.all() else 1 + int(follow.argmin())
    return packets, bool((flags[:packets] & _ACK_REQUESTED).any())
