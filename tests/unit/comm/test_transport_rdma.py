"""RDMA's pairs over cards in memory: the conformance suite, what is announced and copied, immediates, ports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.comm.transport import MeshSettings, Request, StripeSettings, TransportError
from testbed.comm.transport.base import PeerCounters
from testbed.comm.transport.onesided import ExposedWindows, PeerEnd
from testbed.comm.transport.rdma import wire
from testbed.comm.transport.rdma.pair import RdmaPair
from testbed.comm.transport.rdma.regions import RegionCache
from testbed.comm.transport.rdma.transport import RdmaTransport
from testbed.comm.transport.rdma.verbs import CardCounts
from testbed.comm.transport.rdma.wire import (
    ASK,
    MESSAGE,
    Frame,
    Immediate,
    flow_label,
    pack_immediate,
    udp_port,
    unpack_immediate,
)
from testbed.contrib.conformance import transport_checks
from testbed.contrib.conformance.harness import in_threads, linger, raises, wait_requests
from tests.unit.comm.rdma_card import MemoryCard, MemoryFabric
from tests.unit.measure.ranks import TOKEN, Places, Program

STRIPES = StripeSettings(connections=3, segment_bytes=5000, outstanding=2, fast_bytes=1000)
SPRAY = StripeSettings(connections=3, segment_bytes=5000, outstanding=2, fast_bytes=1000, mode="spray")


def over_rdma(size: int, program: Program, stripes: StripeSettings = STRIPES, seed: int = 1) -> list[Any]:
    """Like `in_memory`, each rank with an RdmaTransport on a card in memory."""
    places, fabric = Places(size), MemoryFabric(seed)
    settings = MeshSettings(token=TOKEN)

    def make(rank: int) -> RdmaTransport:
        own = places.sockets[rank]
        return RdmaTransport(
            rank, places.addresses, settings, MemoryCard(fabric), lambda peer: stripes, listener=own
        )

    try:
        return in_threads(size, make, program)
    finally:
        places.close()


@pytest.mark.parametrize("stripes", [STRIPES, SPRAY], ids=lambda one: one.mode)
@pytest.mark.parametrize("check", transport_checks())
def test_rdma_does_what_any_transport_must(check: str, stripes: StripeSettings) -> None:
    transport_checks()[check](lambda size, program: over_rdma(size, program, stripes))


def test_large_messages_are_written_in_place_and_arrays_registered_once() -> None:
    size, rounds = 40_000, 5

    def program(transport: RdmaTransport) -> tuple[int, int]:
        peer = 1 - transport.rank
        mine, theirs = np.full(size, transport.rank + 1, np.uint8), np.zeros(size, np.uint8)
        for tag in range(rounds):
            wait_requests(
                transport,
                transport.irecv(peer, tag, theirs.data),
                transport.isend(peer, tag, mine.data),
            )
            assert (theirs == peer + 1).all()
            theirs[:] = 0
        return transport.counters[peer].bytes_copied, transport.registered

    assert over_rdma(2, program) == [(0, 2)] * 2


def test_a_card_s_counts_are_told_with_each_connection() -> None:
    def program(transport: RdmaTransport) -> tuple[dict[str, float], Any]:
        card = transport._card
        assert isinstance(card, MemoryCard)
        card.told = CardCounts(received=90, went_back=3, out_of_sequence=40, duplicates=1)
        peer, own = 1 - transport.rank, np.zeros(2000, np.uint8)

        def exchange() -> None:
            wait_requests(transport, transport.irecv(peer, 1, own.data), transport.isend(peer, 1, own.data))

        exchange()
        ((_, _, glance),) = transport.snapshots()
        (entry,) = transport.socket_info()
        exchange()  # the other one has looked, too
        return glance, entry["card"]

    for glance, card in over_rdma(2, program):
        assert (glance["went_back"], glance["out_of_sequence"], glance["bytes_acked"]) == (3, 40, 2000)
        assert card == {"received": 90, "went_back": 3, "out_of_sequence": 40, "duplicates": 1}


def test_segments_of_several_queue_pairs_come_in_any_order() -> None:
    fabrics: list[MemoryFabric] = []

    def program(transport: RdmaTransport) -> bool:
        peer = 1 - transport.rank
        fabrics.append(transport._card.fabric)  # type: ignore[attr-defined]
        sent = [np.random.default_rng(tag).integers(0, 256, 60_000, np.uint8) for tag in range(8)]
        got = [np.zeros(60_000, np.uint8) for _ in sent]
        wait_requests(
            transport,
            *(transport.isend(peer, tag, one.data) for tag, one in enumerate(sent)),
            *(transport.irecv(peer, tag, one.data) for tag, one in enumerate(got)),
        )
        return all((one == other).all() for one, other in zip(sent, got, strict=True))

    for seed in range(3):
        assert over_rdma(2, program, seed=seed) == [True, True]
    assert all(fabric.reordered for fabric in fabrics)


def test_word_of_a_message_that_is_written_already_takes_no_receive() -> None:
    """It went by another queue pair, and was asked for before the peer heard where to write."""
    card = MemoryCard(MemoryFabric(1))
    pair = RdmaPair(PeerEnd(0, 1, PeerCounters(), ExposedWindows(), 1 << 20), STRIPES)
    pair.attach(card, card.queue_pair(True, 8, 50_000, 0), (), RegionCache(card))
    large, empty = (Request("recv", 1, 9, memoryview(bytearray(size))) for size in (2000, 0))
    pair.receive(large)
    pair.receive(empty)
    assert pair.on_written(Immediate(notify=True), 2000) == ""
    assert pair.on_frame(Frame(ASK, announced=0, tag=9, length=2000), memoryview(b"")) == ""
    assert large.done
    assert not empty.done
    assert pair.on_frame(Frame(MESSAGE, announced=1, tag=9), memoryview(b"")) == ""
    assert empty.done
    assert empty.error is None


def test_more_receives_than_slots_wait_for_one() -> None:
    count = 150

    def program(transport: RdmaTransport) -> bool:
        peer = 1 - transport.rank
        sent = [np.full(2000, tag % 256, np.uint8) for tag in range(count)]
        got = [np.zeros(2000, np.uint8) for _ in range(count)]
        receives = [transport.irecv(peer, tag, one.data) for tag, one in enumerate(got)]
        linger(transport, 0.05)
        wait_requests(
            transport,
            *receives,
            *(transport.isend(peer, tag, one.data) for tag, one in enumerate(sent)),
        )
        return all((one == tag % 256).all() for tag, one in enumerate(got))

    assert over_rdma(2, program) == [True, True]


@pytest.mark.parametrize("early", [True, False])
def test_a_small_message_in_place_of_a_large_one_is_an_error_that_names_both_lengths(early: bool) -> None:
    def program(transport: RdmaTransport) -> str:
        if transport.rank == 0:
            linger(transport, 0.1 if early else 0.0)
            wait_requests(transport, transport.isend(1, 5, memoryview(bytes(10))))
            return ""
        linger(transport, 0.0 if early else 0.1)
        with raises(TransportError) as caught:
            wait_requests(transport, transport.irecv(0, 5, memoryview(bytearray(3000))))
        return str(caught.exception)

    expected = "rank 1: message from peer 0, tag 5: got 10 bytes, expected 3000, as posted"
    assert over_rdma(2, program)[1] == expected


def test_a_message_of_nothing_needs_no_memory_that_can_be_written() -> None:
    def program(transport: RdmaTransport) -> None:
        peer, nothing = 1 - transport.rank, memoryview(b"")
        for wait_s in (0.0, 0.05):  # its receive comes first, then the message
            sent = transport.isend(peer, 1, nothing)
            linger(transport, wait_s)
            wait_requests(transport, sent, transport.irecv(peer, 1, nothing))

    over_rdma(2, program)


def test_immediates_keep_what_they_say_where_nccl_has_it() -> None:
    for one in (Immediate(), Immediate(5, 63, notify=True), Immediate(2**24 - 1, 1), Immediate(fast=True)):
        assert unpack_immediate(pack_immediate(one)) == one
    assert pack_immediate(Immediate(7, notify=True)) == 1 << 31 | 7
    assert pack_immediate(Immediate(fast=True)) == 1 << 30
    for bad in (Immediate(1 << 24), Immediate(0, 64), Immediate(-1)):
        with pytest.raises(ValueError, match="expected a sequence below"):
            pack_immediate(bad)


def test_frames_that_are_none_are_refused() -> None:
    frame = wire.Frame(wire.ANNOUNCE, 3, 4, 5, 6, 7, 8)
    assert wire.unpack_frame(memoryview(wire.pack_frame(frame))) == frame
    for bad, words in ((b"short", "5 bytes"), (bytes(wire.HEADER.size), "a frame of kind 0")):
        with pytest.raises(ValueError, match=words):
            wire.unpack_frame(memoryview(bad))


def test_source_ports_are_those_that_cards_can_choose() -> None:
    assert udp_port(0) == flow_label(0) == 0
    for port in (33_000, 49_152, 50_000, 52_997):
        assert 0xC000 < udp_port(port) <= 0xFFFF
        assert 0xC000 | flow_label(udp_port(port)) == udp_port(port)


def test_memory_is_forgotten_with_what_owned_it() -> None:
    card = MemoryCard(MemoryFabric(1))
    regions = RegionCache(card)
    array = np.zeros((10, 100), np.float32)
    pieces = [regions.piece(array[row].data.cast("B")) for row in range(10)]
    assert regions.registered == len(card.regions) == 1
    assert [piece.address - pieces[0].address for piece in pieces] == [400 * row for row in range(10)]
    del array
    assert not card.regions
    passing = regions.piece(memoryview(bytearray(50)))
    assert len(card.regions) == 1
    passing.release()
    assert not card.regions
