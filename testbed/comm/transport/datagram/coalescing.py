"""What one call has received, put together: packets of data in a row are one, acknowledgements of a path the latest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.comm.transport.datagram.packets import (
    ACK,
    ACK_KIND,
    ASKS,
    CREDIT,
    DATA,
    DATA_KIND,
    REFUSES,
    WORDS,
    Data,
)
from testbed.comm.transport.datagram.udp import Inbox

MANY = 5  # packets from which on it is quicker to look at all at once
_FLAGS = np.uint64(0xFF00)  # of a header's first word
_SAME = ~_FLAGS
_ASKS = np.uint64(ASKS << 8)


class Run(NamedTuple):
    """Packets of data of one message and path, each the next of the one before, all of one size and marked alike.

    header: of the first. at: its position. packets: how many. serial: of the last. asks: whether one of them asks for
    an acknowledgement.
    """

    header: Data
    at: int
    packets: int
    serial: int
    asks: bool
    marked: bool


def put_together(inbox: Inbox, secret: int) -> tuple[list[Run], list[int], list[memoryview]]:
    """(runs of data, positions of other packets, acknowledgements); what is not of this pair is left out."""
    runs: list[Run] = []
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
            packets, asks = _in_a_row(inbox, at) if count - at >= MANY else (1, header.flags & ASKS > 0)
            serial = header.serial + packets - 1
            runs.append(Run(header, at, packets, serial, asks, inbox.marked[at]))
            position = at + packets
        elif kind == ACK_KIND and size >= ACK.size:
            _, flags, path, _, _, came, _, low = ACK.unpack_from(packet)
            which: object = (path, at) if flags & REFUSES else path
            known = acks.get(which)
            if known is None or known[0] <= (came, low):
                acks[which] = (came, low), packet
        else:
            others.append(at)
    return runs, others, [packet for _, packet in acks.values()]


def _in_a_row(inbox: Inbox, at: int) -> tuple[int, bool]:
    """How many packets, from one of data on, follow each other; whether one of them asks for an acknowledgement."""
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
    return packets, bool((flags[:packets] & _ASKS).any())
