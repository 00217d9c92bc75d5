"""Packets that have come: put where they belong in their messages; what is lost had from parity if that will do."""

from __future__ import annotations

import numpy as np

from testbed.comm.transport.base import PeerCounters
from testbed.comm.transport.datagram.coalescing import Run
from testbed.comm.transport.datagram.codes import Bytes, code_of
from testbed.comm.transport.datagram.packets import ASKS, DATA, PARITY, Data
from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.send_buffer import rows_of
from testbed.comm.transport.onesided import Exposed
from testbed.comm.transport.reassembly import Assembly, Incoming


class Arriving(Assembly):
    """The receiving half of a pair. paths: how many there are. in_order, code: see Receiver."""

    def __init__(
        self,
        rank: int,
        peer: int,
        max_staged_bytes: int,
        counters: PeerCounters,
        exposed: Exposed,
        paths: int,
        in_order: bool,
        code: str | None,
    ) -> None:
        super().__init__(rank, peer, max_staged_bytes, counters, exposed)
        self.paths = paths
        self.receiver = Receiver(in_order, code or "mds")
        self._code = code

    def on_run(self, run: Run, payloads: Bytes) -> None:
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

    def _place(self, header: Data, offset: int, payloads: Bytes) -> Incoming | None:
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
        receiver.came(header.path, header.serial, marked, bool(header.flags & ASKS))
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
        data = rows_of(into.view, header.offset, group.data, size)
        parity = {number: np.frombuffer(row, np.uint8) for number, (_, row) in group.has.items()}
        assert self._code is not None
        code_of(self._code, group.data, group.parity).mend(data, lost, parity)
        for number in lost:
            offset = header.offset + number * size
            length = min(size, header.total - offset)
            if self._place(header, offset, data[number : number + 1, :length]) is None:
                return
        receiver.mend(first, lost, path)
        if into.received == into.total:
            self.end(into)
