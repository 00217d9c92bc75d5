"""Messages on their way out, cut into packets of one size: where each packet's bytes lie, when a message has left."""

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
from testbed.comm.transport.onesided import ExposedWindows
from testbed.comm.transport.reassembly import MESSAGE_MASK, IncomingMessage, Reassembler

_STEPS = np.arange(BATCH)
_ACK_REQUESTED = np.uint64(ACK_REQUESTED << 8)
_DATA_SIZES = np.full(BATCH, DATA.size)


class _Outgoing:
    """A message that is not acknowledged yet. first: its first packet. request: until all of it has left."""

    __slots__ = ("address", "first", "number", "packets", "parity", "request", "tag", "total", "view")

    def __init__(self, request: Request, number: int, first: int, packets: int) -> None:
        self.request: Request | None = request
        self.number = number
        self.tag = request.tag
        self.first, self.packets = first, packets
        self.total = len(request.view)
        self.parity: dict[int, Bytes] = {}  # by a group's first packet
        self.keep(request.view, 0)

    def keep(self, view: memoryview, start: int) -> None:
        """From now on its bytes from `start` on are here."""
        self.view, self.address = view, buffer_address(view) - start


class SendBuffer:
    """Of one pair. payload_bytes: of a full packet. code: of parity, one of CODES."""

    def __init__(self, payload_bytes: int, secret: int, code: str | None, counters: PeerCounters) -> None:
        self._payload_bytes, self._secret, self._code = payload_bytes, secret, code
        self._counters = counters
        self._sizes = np.full(BATCH, payload_bytes)
        self._messages: list[_Outgoing] = []  # by first packet
        self._next = 0  # the number of the next message
        self._left = 0  # of `_messages`, those before have left

    def add(self, request: Request, first: int) -> int:
        """A message more, whose first packet has this number; how many packets it is."""
        packets = max(1, math.ceil(len(request.view) / self._payload_bytes))
        self._messages.append(_Outgoing(request, self._next, first, packets))
        self._next = (self._next + 1) & MESSAGE_MASK
        return packets

    def drop(self) -> list[Request]:
        """The peer is lost: the requests of those that have not left."""
        found = [own.request for own in self._messages if own.request is not None]
        self._messages.clear()
        return found

    def write(
        self, room: bytearray, at: int, item: Item, path: int, serial: int, asks: bool
    ) -> tuple[int, int, int]:
        """Write a packet's header to `room` at `at`; its size, and address and size of the payload."""
        parity = isinstance(item, Parity)
        number = item.first if isinstance(item, Parity) else item
        own = self._message_of(number)
        size = self._payload_bytes
        offset = (number - own.first) * size
        header = (
            PARITY_KIND if parity else DATA_KIND,
            ACK_REQUESTED if asks else 0,
            path,
            self._secret,
            serial,
        )
        DATA.pack_into(room, at, *header, own.number, number, own.tag, offset, own.total)
        if not isinstance(item, Parity):
            return DATA.size, own.address + offset, min(size, own.total - offset)
        PARITY.pack_into(room, at + DATA.size, item.data, item.parity, item.number)
        rows = self._parity_of(own, item, offset)
        return DATA.size + PARITY.size, rows.ctypes.data + item.number * rows.shape[1], rows.shape[1]

    def write_run(
        self, words: Words, numbers: range, path: int, serial: int, asking: slice
    ) -> tuple[PerPacket, PerPacket, PerPacket]:
        """Write headers of packets of data in a row to `words`, of an outbox, as far as they are of one message.

        Of each the size of its header, the payload's address and size, as `Outbox.send` wants them. asking: which of
        them ask for an acknowledgement, beside the last.
        """
        first, size = numbers.start, self._payload_bytes
        own = self._message_of(first)
        count = min(len(numbers), own.first + own.packets - first)
        steps, offset = _STEPS[:count], (first - own.first) * size
        offsets = steps * size + offset
        words = words[:count]
        # as DATA has them: kind, flags, path, secret; serial, message; number; tag; offset; size of the message
        words[:, 0] = DATA_KIND | path << 16 | self._secret << 32
        words[asking, 0] |= _ACK_REQUESTED
        words[-1, 0] |= _ACK_REQUESTED
        words[:, 1] = steps + (serial | own.number << 32)
        words[:, 2] = steps + first
        words[:, 3] = own.tag
        words[:, 4] = offsets
        words[:, 5] = own.total
        sizes = self._sizes[:count]
        if offset + count * size > own.total:
            sizes = sizes.copy()
            sizes[-1] = own.total - offset - (count - 1) * size
        return _DATA_SIZES[:count], offsets + own.address, sizes

    def _message_of(self, number: int) -> _Outgoing:
        return self._messages[bisect_right(self._messages, number, key=lambda one: one.first) - 1]

    def _parity_of(self, own: _Outgoing, item: Parity, offset: int) -> Bytes:
        """(parity, length): of a group, encoded when its first packet is wanted."""
        rows = own.parity.get(item.first)
        if rows is None:
            assert self._code is not None
            size = max(1, min(self._payload_bytes, own.total))
            data = pad_rows(own.view, offset, item.data, size)
            rows = get_code(self._code, item.data, item.parity).encode(data)
            own.parity = {item.first: rows}
        return rows

    def complete(self, recovery: Recovery) -> None:
        """What has left entirely is done for its sender; of what may have to be sent again a copy is kept."""
        messages = self._messages
        while self._left < len(messages):
            own = messages[self._left]
            if not recovery.sent_below(own.first + own.packets):
                break
            self._left += 1
            request, own.request = own.request, None
            assert request is not None
            start = max(0, recovery.low - own.first) * self._payload_bytes
            own.parity.clear()
            own.keep(memoryview(bytearray(request.view[start:])), start)
            self._counters.messages_sent += 1
            self._counters.bytes_sent += own.total
            request.complete()

    def forget(self, low: int) -> None:
        """All packets below have come."""
        count = 0
        for own in self._messages[: self._left]:
            if own.first + own.packets > low:
                break
            count += 1
        if count:
            del self._messages[:count]
            self._left -= count


def pad_rows(view: memoryview, offset: int, rows: int, size: int) -> Bytes:
    """(rows, size): a message's bytes from `offset` on as packets of one size, a copy; zeros behind its end."""
    found = np.zeros(rows * size, np.uint8)
    there = np.frombuffer(view, np.uint8)[offset : offset + rows * size] if view else found[:0]
    found[: len(there)] = there
    return found.reshape(rows, size)


class ReceiveBuffer(Reassembler):
    """The receiving half of a pair. paths: how many there are. in_order, code: see Receiver."""

    def __init__(
        self,
        rank: int,
        peer: int,
        max_staged_bytes: int,
        counters: PeerCounters,
        exposed: ExposedWindows,
        paths: int,
        in_order: bool,
        code: str | None,
    ) -> None:
        super().__init__(rank, peer, max_staged_bytes, counters, exposed)
        self.paths = paths
        self.receiver = Receiver(in_order, code or "mds")
        self._code = code

    def on_run(self, run: PacketRun, payloads: Bytes) -> None:
        """Packets of data have come; payloads: (of each, bytes)."""
        receiver, header, count = self.receiver, run.header, run.packets
        if header.path >= self.paths:
            self.fail(f"it sent on path {header.path} of {self.paths}")
            return
        receiver.came(header.path, run.serial, run.marked, run.asks, count)
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
        """Packets that are wanted, the first with this header; whether there is room for them, and they make sense."""
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
                    self._mend(first, header.path)
        return True

    def _place(self, header: Data, offset: int, payloads: Bytes) -> IncomingMessage | None:
        """Put a part of a message where it belongs; None where there is no room for it, or it makes no sense."""
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
        if length:  # nothing may go into memory that cannot be written to
            there = np.frombuffer(into.view, np.uint8, length, offset)
            there.reshape(payloads.shape)[:] = payloads
        into.received += length
        if into.staged:
            into.segments.append((offset, length))
        return into

    def on_parity(self, header: Data, rest: memoryview, marked: bool) -> None:
        """A packet of parity has come; rest: what is behind its DATA header."""
        receiver = self.receiver
        receiver.came(header.path, header.serial, marked, bool(header.flags & ACK_REQUESTED))
        data, parity, number = PARITY.unpack_from(rest)
        try:
            kept = header, bytes(rest[PARITY.size :])
            receiver.parity(header.number, data, parity, number, kept)
        except ValueError as error:
            self.fail(f"it sent {error}")
            return
        self._mend(header.number, header.path)

    def _mend(self, first: int, path: int) -> None:
        """Have what is lost of a group by its parity, if that is enough now."""
        receiver = self.receiver
        lost = receiver.mendable(first)
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
        get_code(self._code, group.data, group.parity).mend(data, lost, parity)
        for number in lost:
            offset = header.offset + number * size
            length = min(size, header.total - offset)
            if self._place(header, offset, data[number : number + 1, :length]) is None:
                return
        receiver.mend(first, lost, path)
        if into.received == into.total:
            self.end(into)
