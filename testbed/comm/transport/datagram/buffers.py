"""Send and receive buffers of a pair, which convert messages to packets and packets to messages.

The send buffer cuts messages into packets of one size. It tracks where each packet's bytes are and when a message has
left. The receive buffer writes packets to their places in messages, and recovers lost ones from parity if possible.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from testbed.comm.transport.base import PeerCounters, Request, buffer_address
from testbed.comm.transport.datagram.erasure_codes import Bytes, Words, get_code
from testbed.comm.transport.datagram.packets import ACK_REQUESTED, DATA, DATA_KIND, PARITY, PARITY_KIND, Data
from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.recoveries import Item, Parity, Recovery
from testbed.comm.transport.datagram.udp import BATCH, PacketRun, PerPacket
from testbed.comm.transport.onesided import PeerEnd
from testbed.comm.transport.reassembly import MESSAGE_MASK, IncomingMessage, Reassembler

_STEPS = np.arange(BATCH)
_ACK_REQUESTED = np.uint64(ACK_REQUESTED << 8)
_DATA_SIZES = np.full(BATCH, DATA.size)


class _Outgoing:
    """An unacknowledged message. `first`: its first packet. `request`: set until all of it has left."""

    __slots__ = ("address", "first", "number", "packets", "parity", "request", "tag", "total", "view")

    def __init__(self, request: Request, number: int, first: int, packets: int) -> None:
        self.request: Request | None = request
        self.number = number
        self.tag = request.tag
        self.first, self.packets = first, packets
        self.total = len(request.view)
        self.parity: dict[int, Bytes] = {}  # by the group's first packet
        self.set_memory(request.view, 0)

    def set_memory(self, view: memoryview, start: int) -> None:
        """Set where the message's bytes from `start` on are."""
        self.view, self.address = view, buffer_address(view) - start


class SendBuffer:
    """Outgoing messages of one pair.

    Args:
        payload_bytes: Payload of a full packet.
        secret: The pair's secret.
        code: The erasure code, one of CODES.
        counters: Counts messages that have left.
    """

    def __init__(self, payload_bytes: int, secret: int, code: str | None, counters: PeerCounters) -> None:
        self._payload_bytes, self._secret, self._code = payload_bytes, secret, code
        self._counters = counters
        self._sizes = np.full(BATCH, payload_bytes)
        self._messages: list[_Outgoing] = []  # by first packet
        self._next = 0  # the number of the next message
        self._done_count = 0  # `_messages` before this index have left

    def add(self, request: Request, first: int) -> int:
        """Add a message whose first packet has the number `first`; return its number of packets."""
        packets = max(1, math.ceil(len(request.view) / self._payload_bytes))
        self._messages.append(_Outgoing(request, self._next, first, packets))
        self._next = (self._next + 1) & MESSAGE_MASK
        return packets

    def drop(self) -> list[Request]:
        """Drop all messages of a lost peer; return the requests of those that have not left."""
        found = [message.request for message in self._messages if message.request is not None]
        self._messages.clear()
        return found

    def write(
        self, room: bytearray, at: int, item: Item, path: int, serial: int, asks: bool
    ) -> tuple[int, int, int]:
        """Write a packet's header to `room` at offset `at`.

        Returns:
            The size of the header, and address and size of the payload.
        """
        parity = isinstance(item, Parity)
        number = item.first if isinstance(item, Parity) else item
        message = self._find_message(number)
        size = self._payload_bytes
        offset = (number - message.first) * size
        header = (
            PARITY_KIND if parity else DATA_KIND,
            ACK_REQUESTED if asks else 0,
            path,
            self._secret,
            serial,
        )
        DATA.pack_into(room, at, *header, message.number, number, message.tag, offset, message.total)
        if not isinstance(item, Parity):
            return DATA.size, message.address + offset, min(size, message.total - offset)
        PARITY.pack_into(room, at + DATA.size, item.data, item.parity, item.number)
        rows = self._get_parity(message, item, offset)
        return DATA.size + PARITY.size, rows.ctypes.data + item.number * rows.shape[1], rows.shape[1]

    def write_run(
        self, words: Words, numbers: range, path: int, serial: int, asking: slice
    ) -> tuple[PerPacket, PerPacket, PerPacket]:
        """Write headers of consecutive data packets, up to the end of their message.

        Args:
            words: The headers of a `SendBatch`.
            numbers: The packets.
            path: The path that they take.
            serial: The first packet's serial.
            asking: The packets that request an acknowledgement, in addition to the last.

        Returns:
            Per packet, the size of its header, and address and size of its payload, as `SendBatch.send` expects them.
        """
        first, size = numbers.start, self._payload_bytes
        message = self._find_message(first)
        count = min(len(numbers), message.first + message.packets - first)
        steps, offset = _STEPS[:count], (first - message.first) * size
        offsets = steps * size + offset
        words = words[:count]
        # as in DATA: kind, flags, path, secret; serial, message; number; tag; offset; size of the message
        words[:, 0] = DATA_KIND | path << 16 | self._secret << 32
        words[asking, 0] |= _ACK_REQUESTED
        words[-1, 0] |= _ACK_REQUESTED
        words[:, 1] = steps + (serial | message.number << 32)
        words[:, 2] = steps + first
        words[:, 3] = message.tag
        words[:, 4] = offsets
        words[:, 5] = message.total
        sizes = self._sizes[:count]
        if offset + count * size > message.total:
            sizes = sizes.copy()
            sizes[-1] = message.total - offset - (count - 1) * size
        return _DATA_SIZES[:count], offsets + message.address, sizes

    def _find_message(self, number: int) -> _Outgoing:
        return self._messages[bisect_right(self._messages, number, key=lambda message: message.first) - 1]

    def _get_parity(self, message: _Outgoing, item: Parity, offset: int) -> Bytes:
        """Return a group's parity, (parity, length). It is encoded on first use."""
        rows = message.parity.get(item.first)
        if rows is None:
            assert self._code is not None
            size = max(1, min(self._payload_bytes, message.total))
            data = pad_rows(message.view, offset, item.data, size)
            rows = get_code(self._code, item.data, item.parity).encode(data)
            message.parity = {item.first: rows}
        return rows

    def complete(self, recovery: Recovery) -> None:
        """Complete the requests of messages that have left entirely, after copying bytes that may have to be resent."""
        messages = self._messages
        while self._done_count < len(messages):
            message = messages[self._done_count]
            if not recovery.is_sent_below(message.first + message.packets):
                break
            self._done_count += 1
            request, message.request = message.request, None
            assert request is not None
            start = max(0, recovery.low - message.first) * self._payload_bytes
            message.parity.clear()
            message.set_memory(memoryview(bytearray(request.view[start:])), start)
            self._counters.messages_sent += 1
            self._counters.bytes_sent += message.total
            request.complete()

    def forget(self, low: int) -> None:
        """Forget messages whose packets are all below `low`: they have arrived."""
        count = 0
        for message in self._messages[: self._done_count]:
            if message.first + message.packets > low:
                break
            count += 1
        if count:
            del self._messages[:count]
            self._done_count -= count


def pad_rows(view: memoryview, offset: int, rows: int, size: int) -> Bytes:
    """Return (rows, size): a copy of a message's bytes from `offset` on, as packets of one size, zero-padded."""
    padded = np.zeros(rows * size, np.uint8)
    part = np.frombuffer(view, np.uint8)[offset : offset + rows * size] if view else padded[:0]
    padded[: len(part)] = part
    return padded.reshape(rows, size)


class ReceiveBuffer(Reassembler):
    """The receiving half of a pair. paths: the number of paths. in_order, code: see Receiver."""

    def __init__(self, end: PeerEnd, paths: int, in_order: bool, code: str | None) -> None:
        super().__init__(end)
        self.paths = paths
        self.receiver = Receiver(in_order, code or "mds")
        self._code = code

    def on_run(self, run: PacketRun, payloads: Bytes) -> None:
        """Handle a run of data packets. payloads: (packets, bytes)."""
        receiver, header, count = self.receiver, run.header, run.packets
        if header.path >= self.paths:
            self.fail(f"it sent on path {header.path} of {self.paths}")
            return
        receiver.on_packet(header.path, run.serial, run.marked, run.asks, count)
        if receiver.wants(header.number, count):
            self._take(header, payloads)
            return
        size = payloads.shape[1]
        for step in range(count):
            number, offset = header.number + step, header.offset + step * size
            if not receiver.wants(number):
                receiver.refuse(number, header.path)
            elif not self._take(header._replace(number=number, offset=offset), payloads[step : step + 1]):
                return

    def _take(self, header: Data, payloads: Bytes) -> bool:
        """Store wanted packets, the first with this header; return False if there is no room or they are invalid."""
        receiver, number, count = self.receiver, header.number, len(payloads)
        into = self._place(header, header.offset, payloads)
        if into is None:
            return False
        receiver.take(number, header.path, count)
        self.counters.header_bytes_received += DATA.size * count
        if into.received == into.total:
            self.end(into)
        if receiver.groups:
            for first in {receiver.group_of(number + step): None for step in range(count)}:
                if first is not None:
                    self._recover(first, header.path)
        return True

    def _place(self, header: Data, offset: int, payloads: Bytes) -> IncomingMessage | None:
        """Write a part of a message to its place; return None if there is no room for it or it is invalid."""
        length, total = payloads.size, header.total
        if offset + length > total or (length == 0) != (total == 0):
            self.fail(f"it sent {length} bytes at {offset} of a message of {total}")
            return None
        into = self.begin(header.message, header.tag, total)
        if into is None:
            return None
        if into.received + length > total or into.ended:
            self.fail(f"it sent more than the {total} bytes of message {header.message}")
            return None
        if length:  # an empty buffer may be read-only
            target = np.frombuffer(into.view, np.uint8, length, offset)
            target.reshape(payloads.shape)[:] = payloads
        into.received += length
        if into.staged:
            into.segments.append((offset, length))
        return into

    def on_parity(self, header: Data, rest: memoryview, marked: bool) -> None:
        """Handle a parity packet. rest: the bytes after its DATA header."""
        receiver = self.receiver
        receiver.on_packet(header.path, header.serial, marked, bool(header.flags & ACK_REQUESTED))
        data, parity, number = PARITY.unpack_from(rest)
        try:
            payload = header, bytes(rest[PARITY.size :])
            receiver.parity(header.number, data, parity, number, payload)
        except ValueError as error:
            self.fail(f"it sent {error}")
            return
        self._recover(header.number, header.path)

    def _recover(self, first: int, path: int) -> None:
        """Recover the lost packets of a group from its parity, if there is enough of it."""
        receiver = self.receiver
        lost = receiver.recoverable(first)
        if not lost:
            return
        group = receiver.groups[first]
        header, payload = next(iter(group.has.values()))
        size = len(payload)
        into = self.begin(header.message, header.tag, header.total)
        if into is None:
            return
        data = pad_rows(into.view, header.offset, group.data, size)
        parity = {number: np.frombuffer(row, np.uint8) for number, (_, row) in group.has.items()}
        assert self._code is not None
        get_code(self._code, group.data, group.parity).recover(data, lost, parity)
        for number in lost:
            offset = header.offset + number * size
            length = min(size, header.total - offset)
            if self._place(header, offset, data[number : number + 1, :length]) is None:
                return
        receiver.recover(first, lost, path)
        if into.received == into.total:
            self.end(into)
