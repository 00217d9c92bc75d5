"""What one call receives is put together without losing or inventing anything; packets in a row are sent in one."""

from __future__ import annotations

import ctypes
import errno
import random
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.transport.base import PeerCounters, Request
from testbed.comm.transport.datagram import udp
from testbed.comm.transport.datagram.buffers import SendBuffer
from testbed.comm.transport.datagram.packets import (
    ACK_REQUESTED,
    DATA,
    DATA_KIND,
    GRANTED_KIND,
    Ack,
    Data,
    unpack_ack,
)
from testbed.comm.transport.datagram.packets import CREDIT as CREDITS
from testbed.comm.transport.datagram.udp import (
    BATCH,
    HEADER_STRIDE,
    ReceiveBatch,
    SegmentationOffload,
    SendBatch,
    coalesce_packets,
)

SECRET, SIZE = 77, 40


def filled(packets: list[bytes], marked: list[bool] | None = None) -> ReceiveBatch:
    """As if these had been received."""
    inbox = ReceiveBatch(False)
    for row, packet in zip(inbox.rows, packets, strict=False):
        row[: len(packet)] = np.frombuffer(packet, np.uint8)
    inbox.sizes = [len(packet) for packet in packets]
    inbox.marked = marked or [False] * len(packets)
    return inbox


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), shuffled=st.booleans(), many=st.integers(0, 14))
def test_runs_are_made_of_all_that_came_and_of_nothing_else(seed: int, shuffled: bool, many: int) -> None:
    chance = random.Random(seed)
    packets, serials = [], [0, 0]
    for message in range(4):
        count = chance.randrange(1, many + 2)
        total = count * SIZE - chance.randrange(SIZE)
        path = chance.randrange(2)
        for number in range(count):
            size = min(SIZE, total - number * SIZE)
            flags = ACK_REQUESTED * (chance.random() < 0.2)
            place = 100 * message + number, message + 5, number * SIZE, total
            header = Data(DATA_KIND, flags, path, SECRET, serials[path], message, *place)
            serials[path] += 1
            if chance.random() < 0.9:  # the others are lost
                packets.append(DATA.pack(*header) + chance.randbytes(size))
    if shuffled:
        chance.shuffle(packets)
    strangers = [DATA.pack(DATA_KIND, 0, 0, SECRET + 1, 0, 0, 0, 0, 0, 1) + b"x", b"", b"short"]
    packets = (packets + strangers)[:BATCH]
    marked = [chance.random() < 0.1 for _ in packets]
    runs, others, acks = coalesce_packets(filled(packets, marked), SECRET)
    assert (others, acks) == ([], [])
    found: list[tuple[Any, ...]] = []
    for run in runs:
        sizes = {len(packets[run.at + step]) - DATA.size for step in range(run.packets)}
        assert len(sizes) == 1
        for step in range(run.packets):
            own = run.header
            offset = own.offset + step * next(iter(sizes))
            assert run.serial - run.packets + 1 == own.serial
            found.append((own.path, own.serial + step, own.number + step, offset, run.marked))
        asks = [DATA.unpack_from(packets[run.at + step])[1] & ACK_REQUESTED for step in range(run.packets)]
        assert run.asks == any(asks)
    expected = []
    for packet, mark in zip(packets, marked, strict=True):
        if len(packet) >= DATA.size and DATA.unpack_from(packet)[3] == SECRET:
            header = Data._make(DATA.unpack_from(packet))
            expected.append((header.path, header.serial, header.number, header.offset, mark))
    assert found == expected


def test_packets_in_a_row_are_one_run() -> None:
    packets = [
        DATA.pack(DATA_KIND, 0, 0, SECRET, 9 + step, 3, 20 + step, 1, step * SIZE, 50 * SIZE) + bytes(SIZE)
        for step in range(50)
    ]
    (run,), _, _ = coalesce_packets(filled(packets), SECRET)
    assert (run.at, run.packets, run.header.number, run.serial) == (0, 50, 20, 58)


def test_of_a_paths_acknowledgements_the_latest_counts_and_every_refusal() -> None:
    told = [
        Ack(0, 5, 6, 0, 5, 0),
        Ack(0, 3, 4, 0, 3, 0),  # came late
        Ack(1, 1, 2, 0, 5, 1),
        Ack(0, 6, 7, 0, 5, 0, nak=True),
    ]
    grant = CREDITS.pack(GRANTED_KIND, 0, 0, SECRET, 9)
    _, others, acks = coalesce_packets(filled([*(ack.pack(SECRET) for ack in told), grant]), SECRET)
    assert [unpack_ack(packet) for packet in acks] == [told[0], told[2], told[3]]
    assert others == [4]


def test_headers_of_a_run_are_those_of_its_packets() -> None:
    data = bytearray(random.Random(1).randbytes(10 * SIZE - 7))
    out, outbox = SendBuffer(SIZE, SECRET, None, PeerCounters()), SendBatch()
    out.add(Request("send", 1, 4, memoryview(bytearray(SIZE))), 0)
    out.add(Request("send", 1, 2**64 - 9, memoryview(data)), 1)
    headers, payloads, sizes = out.write_run(outbox.words, range(3, 40), 0, 1000, slice(1, 37, 3))
    assert len(headers) == len(payloads) == 8  # to the message's end
    alone = SendBatch()
    for step in range(8):
        at = step * HEADER_STRIDE
        asks = step in {1, 4, 7}
        one = out.write(alone.headers, at, 3 + step, 0, 1000 + step, asks)
        assert one == (headers[step], payloads[step], sizes[step])
        assert alone.headers[at : at + DATA.size] == outbox.headers[at : at + DATA.size]


def test_where_the_kernel_makes_no_trains_packets_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def __init__(self) -> None:
            self.calls: list[int] = []

        def sendmmsg(self, descriptor: int, messages: object, count: int, flags: int) -> int:
            self.calls.append(count)
            return -1 if len(self.calls) == 1 else count

    kernel = Kernel()
    monkeypatch.setattr(udp, "_libc", kernel)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EIO)
    outbox, trains = SendBatch(), SegmentationOffload(1000, 1e12)
    assert trains.packets > 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert outbox.send_trains(sock, trains, [48] * 64, [0] * 64, [952] * 64) == 64
    assert trains.packets == 1
    assert kernel.calls == [1, 64]
    assert outbox.segmented == 0


@pytest.mark.parametrize(
    ("packet_bytes", "card_bps", "packets"),
    [(8968, 1e9, 7), (8968, 100e6, 2), (8968, 10e6, 1), (1468, 1e9, 44)],
)
def test_trains_are_what_a_shaper_lets_go_at_once(packet_bytes: int, card_bps: float, packets: int) -> None:
    assert SegmentationOffload(packet_bytes, card_bps).packets == packets
