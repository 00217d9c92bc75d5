"""A rank's NIC through pyverbs: soft-RoCE, or any libibverbs device, found by the address of its interface.

Completions arrive as events of a completion channel, because busy polling would stop the virtual clock.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
from dataclasses import dataclass
from typing import Any

from testbed.clock import private_memory
from testbed.comm.transport.base import TransportError, buffer_address
from testbed.comm.transport.rdma.devices import DEVICES, import_pyverbs
from testbed.comm.transport.rdma.verbs import (
    RECEIVED,
    SENT,
    WRITTEN,
    Address,
    CardCounts,
    Completion,
)
from testbed.comm.transport.rdma.wire import Immediate, flow_label, pack_immediate

# from infiniband/verbs.h
_RELIABLE = 2  # IBV_QPT_RC
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2  # IBV_ACCESS_...
_WRITE_IMM, _SEND_IMM = 1, 3  # IBV_WR_...
_SIGNALED = 2  # IBV_SEND_SIGNALED
_RECV, _RECV_WRITE = 128, 129  # IBV_WC_...
_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR
_STATUS = {
    4: "a local protection error",
    5: "the work request was flushed",
    9: "the peer rejected the request as invalid",
    10: "the peer denied access to its memory",
    11: "the peer failed to complete the request",
    12: "retries exhausted without an acknowledgement",
    13: "retries exhausted: the peer was not ready to receive",
}
_ACK_UNIT_S = 4.096e-6
_MAX_EXPONENT = 31
_RETRIES = _UNLIMITED = 7  # the maximum; for RNR retries it means unlimited
_MIN_RNR_TIMER = 1  # 10 us
_COMPLETIONS = 1 << 14
_POLL_BATCH = 64
_WRITES = 1 << 32  # work request ids from here on are writes, lower ones are slots

# the fields of CardCounts, by soft-RoCE's counter names (rxe_hw_counters.c)
_COUNTERS = ("rcvd_pkts", "completer_retry_err", "out_of_seq_request", "duplicate_request")

_opening = threading.Lock()  # completion channels are found by comparing open descriptors


@dataclass(frozen=True)
class CardSettings:
    """Settings of a NIC.

    Attributes:
        name: The device's name.
        gid_index: GID index of the address on its port.
        slot_bytes: Size of a small message with its header.
        slots: The number of receive slots, and of send slots.
        writes: Writes of peers that may arrive before this rank polls.
        ack_timeout_s: Time until unacknowledged packets are retransmitted. NICs round it up to 4.096 us times a power
            of two.
    """

    name: str
    gid_index: int
    slot_bytes: int
    slots: int = 512
    writes: int = 1 << 13
    ack_timeout_s: float = 0.067


def timeout_exponent(timeout_s: float) -> int:
    """Return the exponent of a NIC's smallest timeout that is not shorter than this.

    An exponent of 0, which is never returned, means no timeout.
    """
    return next(
        (n for n in range(1, _MAX_EXPONENT) if _ACK_UNIT_S * 2**n >= timeout_s * (1 - 1e-9)), _MAX_EXPONENT
    )


def ack_timeout_s(timeout_s: float) -> float:
    """Return the timeout that a NIC uses, in seconds."""
    return math.ldexp(_ACK_UNIT_S, timeout_exponent(timeout_s))


class Card:
    """One NIC, for one rank. Completions are available when `fileno` is readable.

    Raises TransportError if there is no such NIC.
    """

    def __init__(self, settings: CardSettings) -> None:
        self.settings = settings
        self.slot_bytes = settings.slot_bytes
        try:
            device, cq, wr, mr, srq = (import_pyverbs(name) for name in ("device", "cq", "wr", "mr", "srq"))
        except ImportError as error:
            raise TransportError(str(error)) from None
        self._wr, self._mr = wr, mr
        try:
            self._fileno = -1
            self._open(device, cq)
            self.gid = str(self._context.query_gid(port_num=1, index=settings.gid_index).gid)
            self._mtu = int(self._context.query_port(1).active_mtu)
            self._domain = import_pyverbs("pd").PD(self._context)
            self._make_queue(cq)
            count = settings.slots
            self._memory = memoryview(private_memory(2 * count * self.slot_bytes))
            self._base = buffer_address(self._memory)
            self._region = mr.MR(self._domain, len(self._memory), _LOCAL_WRITE, address=self._base)
            # small messages go into slots; writes of peers consume only a receive request
            self._small = srq.SRQ(self._domain, srq.SrqInitAttr(srq.SrqAttr(max_wr=count, max_sge=1)))
            self._written = srq.SRQ(
                self._domain, srq.SrqInitAttr(srq.SrqAttr(max_wr=settings.writes, max_sge=1))
            )
        except Exception as error:  # pyverbs raises several types
            raise TransportError(f"RDMA device {settings.name}: {error}") from None
        for number in range(count):
            self.free(number)
        # a write uses no receive buffer, but pyverbs requires one
        self._empty_receive = wr.RecvWR(wr_id=0, num_sge=1, sg=[wr.SGE(self._base, 1, self._region.lkey)])
        for _ in range(settings.writes):
            self._written.post_recv(self._empty_receive)
        self._unsent = list(range(count, 2 * count))  # free send slots
        self._sending: dict[int, int] = {}  # send slots in flight, with their queue pair

    def _open(self, device: Any, cq: Any) -> None:
        """Open the device and a completion channel. The device has a descriptor of the same kind, too."""
        with _opening:
            self._context = device.Context(name=self.settings.name)
            before = _event_descriptors()
            self._channel = cq.CompChannel(self._context)
            (self._fileno,) = _event_descriptors() - before

    def _make_queue(self, cq: Any) -> None:
        self._poll = select.poll()
        self._poll.register(self._fileno, select.POLLIN)
        self._queue = cq.CQ(self._context, _COMPLETIONS, None, self._channel, 0)
        self._queue.req_notify()

    def fileno(self) -> int:
        """Return a descriptor for epoll."""
        return self._fileno

    def queue_pair(self, fast: bool, depth: int, port: int, dscp: int) -> QueuePair:
        """Return a new queue pair.

        Args:
            fast: Whether it is for messages into slots; otherwise it is for writes.
            depth: The maximum number of work requests in flight.
            port: Source port of its packets; 0 for any.
            dscp: Their DSCP.
        """
        return QueuePair(self, self._small if fast else self._written, depth, port, dscp)

    def send(self, queue_pair: QueuePair, header: bytes, body: bytes | memoryview) -> bool:
        """Send a copy of the message into the peer's next slot; return False if the NIC has no room."""
        if not self._unsent:
            return False
        slot = self._unsent.pop()
        self._sending[slot] = queue_pair.number
        start, size_bytes = slot * self.slot_bytes, len(header) + len(body)
        self._memory[start : start + len(header)] = header
        if body:
            self._memory[start + len(header) : start + size_bytes] = body
        piece = self._wr.SGE(self._base + start, size_bytes, self._region.lkey)
        queue_pair.post(_SEND_IMM, slot, piece, pack_immediate(Immediate(fast=True)))
        return True

    def register(self, address: int, size_bytes: int, writable: bool) -> Region:
        """Register memory. Raises TransportError."""
        access = _LOCAL_WRITE | _REMOTE_WRITE if writable else 0
        try:
            return Region(self._mr.MR(self._domain, size_bytes, access, address=address))
        except Exception as error:
            raise TransportError(
                f"RDMA device {self.settings.name}: {size_bytes} bytes of memory: {error}"
            ) from None

    def slot(self, number: int) -> memoryview:
        """Return the memory of a received message, valid until `free`."""
        return self._memory[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def free(self, number: int) -> None:
        """Make the slot available for receiving again."""
        piece = self._wr.SGE(self._base + number * self.slot_bytes, self.slot_bytes, self._region.lkey)
        self._small.post_recv(self._wr.RecvWR(wr_id=number, num_sge=1, sg=[piece]))

    def completions(self) -> list[Completion]:
        """Return all completions since the last call. Later ones cause an event."""
        if self._poll.poll(0):  # request the next event before polling, so that none is missed
            self._channel.get_cq_event(self._queue)
            self._queue.ack_events(1)
            self._queue.req_notify()
        completions: list[Completion] = []
        while True:
            count, entries = self._queue.poll(_POLL_BATCH)
            completions += [
                completion for entry in entries if (completion := self._completion(entry)) is not None
            ]
            if count < _POLL_BATCH:
                return completions

    def _completion(self, entry: Any) -> Completion | None:
        failed = _STATUS.get(entry.status, f"status {entry.status}") if entry.status else ""
        if entry.opcode & _RECV and not failed:
            if entry.opcode == _RECV_WRITE:
                self._written.post_recv(self._empty_receive)
                immediate = socket.ntohl(entry.imm_data)
                return Completion(WRITTEN, entry.qp_num, 0, immediate, entry.byte_len)
            return Completion(RECEIVED, entry.qp_num, entry.wr_id, 0, entry.byte_len)
        if entry.status == _FLUSHED:  # it was queued when the queue pair was closed
            return None
        if entry.wr_id < _WRITES:
            if self._sending.pop(entry.wr_id, None) is None:
                return None
            self._unsent.append(entry.wr_id)
            return Completion(SENT, entry.qp_num, 0, failed=failed)
        return Completion(SENT, entry.qp_num, entry.wr_id - _WRITES, failed=failed)

    def drop_sends(self, queue_pair: int) -> None:
        """Release the send slots of a closed queue pair: their completions will not come."""
        for slot in [slot for slot, sender in self._sending.items() if sender == queue_pair]:
            del self._sending[slot]
            self._unsent.append(slot)

    def counts(self) -> CardCounts | None:
        """Return the NIC's counts; None if unavailable."""
        folder = DEVICES / self.settings.name / "ports/1/hw_counters"
        try:
            return CardCounts(*(int((folder / name).read_text()) for name in _COUNTERS))
        except OSError:
            return None

    def close(self) -> None:
        """Release all resources of the NIC."""
        if self._fileno >= 0:
            self._fileno = -1
            self._context.close()  # closes everything created from it, too


class Region:
    """Registered memory. `key`: for this rank's own requests; `remote_key`: for peers that write into it."""

    def __init__(self, made: Any) -> None:
        self._pyverbs = made
        self.key, self.remote_key = int(made.lkey), int(made.rkey)

    def close(self) -> None:
        """Deregister the memory."""
        self._pyverbs.close()


class QueuePair:
    """One reliable connection."""

    def __init__(self, card: Card, receives: Any, depth: int, port: int, dscp: int) -> None:
        qp = import_pyverbs("qp")
        self._card, self._port, self._dscp = card, port, dscp
        settings = qp.QPInitAttr(
            qp_type=_RELIABLE,
            scq=card._queue,
            rcq=card._queue,
            srq=receives,
            cap=qp.QPCap(max_send_wr=depth, max_recv_wr=0, max_send_sge=1, max_recv_sge=0),
            sq_sig_all=1,
        )
        try:
            self._pyverbs = qp.QP(card._domain, settings)
        except Exception as error:
            raise TransportError(f"RDMA device {card.settings.name}: a queue pair: {error}") from None
        self.number = int(self._pyverbs.qp_num)

    @property
    def address(self) -> Address:
        """The information that the peer needs to connect."""
        return Address(self._card.gid, self.number)

    def connect(self, peer: Address) -> None:
        """Connect to the peer's queue pair. Raises TransportError."""
        addr, qp = import_pyverbs("addr"), import_pyverbs("qp")
        card = self._card
        try:
            route = addr.GlobalRoute(
                dgid=addr.GID(peer.gid),
                sgid_index=card.settings.gid_index,
                flow_label=flow_label(self._port),
                hop_limit=64,
                traffic_class=self._dscp << 2,
            )
            wanted = qp.QPAttr(port_num=1)
            wanted.qp_access_flags = _LOCAL_WRITE | _REMOTE_WRITE
            wanted.dest_qp_num = peer.number
            wanted.path_mtu = card._mtu
            wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
            wanted.min_rnr_timer = _MIN_RNR_TIMER
            wanted.timeout = timeout_exponent(card.settings.ack_timeout_s)
            wanted.retry_cnt, wanted.rnr_retry = _RETRIES, _UNLIMITED
            wanted.ah_attr = addr.AHAttr(port_num=1, is_global=True, gr=route, dlid=0)
            self._pyverbs.to_rts(wanted)
        except Exception as error:
            raise TransportError(f"RDMA device {card.settings.name}: connecting: {error}") from None

    def write(
        self, number: int, address: int, size_bytes: int, key: int, to: int, remote_key: int, immediate: int
    ) -> None:
        """Write from registered memory into a peer's memory, with notification.

        Args:
            number: Identifies the completion; not 0.
            address: Source address.
            size_bytes: Size.
            key: Key of the source.
            to: Destination address.
            remote_key: Key of the destination.
            immediate: Passed to the peer.
        """
        piece = self._card._wr.SGE(address, size_bytes, key)
        self.post(_WRITE_IMM, _WRITES + number, piece, immediate, (remote_key, to))

    def post(
        self, kind: int, number: int, piece: Any, immediate: int, into: tuple[int, int] | None = None
    ) -> None:
        """Post a work request with an immediate. into: key and address of a peer's memory."""
        work = self._card._wr.SendWR(
            wr_id=number,
            opcode=kind,
            num_sge=1,
            sg=[piece],
            imm_data=socket.htonl(immediate),
            send_flags=_SIGNALED,
        )
        if into is not None:
            work.set_wr_rdma(*into)
        self._pyverbs.post_send(work)

    def close(self) -> None:
        """Close the connection; drop everything in flight."""
        self._pyverbs.close()
        self._card.drop_sends(self.number)


def _event_descriptors() -> set[int]:
    """Return the descriptors of this process's completion channels, which pyverbs does not expose."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[infinibandevent]":
                descriptors.add(int(name))
        except OSError:
            pass
    return descriptors
