"""What any transport must do; run on all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from testbed.transport import (
    MAX_TAG,
    MemoryNetwork,
    PeerLost,
    Request,
    Transport,
    TransportError,
    TransportTimeout,
    wait_all,
)
from tests.unit.ranks import (
    in_memory,
    in_place,
    over_channels,
    over_spray,
    over_tcp,
    through_slots,
    with_cost,
)

Runner = Callable[..., list[Any]]


RUNNERS = {
    "memory": in_memory,
    "tcp": over_tcp,
    "cost": with_cost,
    "striped": over_channels,
    "spray": over_spray,
    "rendezvous": in_place,
    "staged": through_slots,
}


@pytest.fixture(params=list(RUNNERS))
def run(request: pytest.FixtureRequest) -> Runner:
    return RUNNERS[request.param]


@pytest.fixture(params=[name for name in RUNNERS if name != "rendezvous"])
def run_eager(request: pytest.FixtureRequest) -> Runner:
    """Those whose sends are done without the peer having asked for them."""
    return RUNNERS[request.param]


def finish(transport: Transport, *requests: Request) -> None:
    wait_all(transport, requests, 10)


def linger(transport: Transport, seconds: float) -> None:
    """Make progress, with nothing to wait for."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        transport.progress(0.01)


def test_messages_arrive_whole_and_in_order_per_tag(run: Runner) -> None:
    sizes = [0, 1, 7, 16_383, 16_384, 65_536, 3_000_000, 0, 5]

    def program(transport: Transport) -> bool:
        peer = 1 - transport.rank
        outgoing = [bytes([number + transport.rank]) * size for number, size in enumerate(sizes)]
        incoming = [bytearray(size) for size in sizes]
        requests = [transport.isend(peer, 9, memoryview(data)) for data in outgoing]
        requests += [transport.irecv(peer, 9, memoryview(data)) for data in incoming]
        finish(transport, *requests)
        return [bytes(data) for data in incoming] == [
            bytes([number + peer]) * size for number, size in enumerate(sizes)
        ]

    assert run(2, program) == [True, True]


def test_tags_pick_messages_whatever_their_order(run_eager: Runner) -> None:
    def program(transport: Transport) -> list[bytes]:
        peer = 1 - transport.rank
        finish(transport, *(transport.isend(peer, tag, memoryview(b"tag%d" % tag)) for tag in (3, 1, 2)))
        linger(transport, 0.05)  # let the messages come before their receives are posted
        buffers = [bytearray(4) for _ in range(3)]
        finish(transport, *(transport.irecv(peer, tag, memoryview(buffers[tag - 1])) for tag in (1, 2, 3)))
        return [bytes(buffer) for buffer in buffers]

    assert run_eager(2, program) == [[b"tag1", b"tag2", b"tag3"]] * 2


def test_many_messages_of_all_sizes_between_all_ranks(run: Runner) -> None:
    """Each rank sends the others the same shuffled list and receives in another order, some early and some late."""
    rng = random.Random(3)
    plan = [(tag, rng.choice([0, 3, 100, 5_000, 40_000, 300_000])) for tag in range(60)]

    def program(transport: Transport) -> int:
        peers = [peer for peer in range(transport.size) if peer != transport.rank]
        sends, receives = plan[:], plan[:]
        random.Random(10 + transport.rank).shuffle(receives)
        requests, wrong = [], []
        buffers: list[tuple[int, int, bytearray]] = []
        for (out_tag, out_size), (in_tag, in_size) in zip(sends, receives, strict=True):
            for peer in peers:
                payload = bytes([(out_tag + transport.rank) % 256]) * out_size
                requests.append(transport.isend(peer, out_tag, memoryview(payload)))
                buffer = bytearray(in_size)
                buffers.append((peer, in_tag, buffer))
                requests.append(transport.irecv(peer, in_tag, memoryview(buffer)))
            transport.progress(0.0)
        finish(transport, *requests)
        for peer, tag, buffer in buffers:
            if buffer != bytes([(tag + peer) % 256]) * len(buffer):
                wrong.append((peer, tag))
        return len(wrong)

    assert run(4, program) == [0] * 4


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("length", [4, 100_000])
def test_a_message_of_another_length_is_an_error_that_names_both_ranks(
    run: Runner, early: bool, length: int
) -> None:
    """And the connection goes on."""

    def program(transport: Transport) -> str:
        if transport.rank == 0:
            linger(transport, 0.1 if early else 0)
            finish(transport, transport.isend(1, 5, memoryview(bytes(length))))
            finish(transport, transport.isend(1, 5, memoryview(b"next")))
            return ""
        linger(transport, 0 if early else 0.1)
        with pytest.raises(TransportError) as caught:
            finish(transport, transport.irecv(0, 5, memoryview(bytearray(3))))
        buffer = bytearray(4)
        finish(transport, transport.irecv(0, 5, memoryview(buffer)))
        assert buffer == b"next"
        return str(caught.value)

    words = f"rank 1: message from peer 0, tag 5: got {length} bytes, expected 3, as posted"
    assert run(2, program)[1] == words


def test_counters_count_payload(run: Runner) -> None:
    def program(transport: Transport) -> tuple[int, ...]:
        peer = 1 - transport.rank
        assert list(transport.counters) == [peer]
        for _ in range(3):
            finish(
                transport,
                transport.isend(peer, 1, memoryview(b"x" * 1000)),
                transport.irecv(peer, 1, memoryview(bytearray(1000))),
            )
        mine = transport.counters[peer]
        return mine.bytes_sent, mine.bytes_received, mine.messages_sent, mine.messages_received

    assert run(2, program) == [(3000, 3000, 3, 3)] * 2


def test_a_peer_that_leaves_fails_what_waits_for_it_at_once(run_eager: Runner) -> None:
    """Requests under way and later ones; what it sent before can still be received."""

    def program(transport: Transport) -> float:
        if transport.rank == 1:
            finish(transport, transport.isend(0, 2, memoryview(b"last")))
            return 0.0
        request = transport.irecv(1, 1, memoryview(bytearray(4)))
        begun_s = time.monotonic()
        with pytest.raises(PeerLost, match="rank 0: lost peer 1: it closed its end"):
            finish(transport, request)
        took_s = time.monotonic() - begun_s
        buffer = bytearray(4)
        finish(transport, transport.irecv(1, 2, memoryview(buffer)))
        assert buffer == b"last"
        for late in (
            transport.irecv(1, 2, memoryview(buffer)),
            transport.isend(1, 2, memoryview(buffer)),
        ):
            assert late.done
            assert isinstance(late.error, PeerLost)
            assert (late.error.rank, late.error.peer) == (0, 1)
        return took_s

    assert run_eager(2, program)[0] < 5


def test_waiting_in_vain_names_rank_and_peer(run: Runner) -> None:
    def program(transport: Transport) -> str:
        if transport.rank == 1:
            finish(transport, transport.irecv(0, 1, memoryview(bytearray(1))))
            return ""
        with pytest.raises(TransportTimeout) as caught:
            wait_all(transport, [transport.irecv(1, 1, memoryview(bytearray(1)))], 0.05)
        finish(transport, transport.isend(1, 1, memoryview(b"x")))
        assert isinstance(caught.value, TimeoutError)
        return str(caught.value)

    assert run(2, program)[0] == "rank 0: recv with peer 1: nothing within 0.05 s"


def test_bad_peers_tags_and_buffers_are_refused(run: Runner) -> None:
    def program(transport: Transport) -> None:
        nothing = memoryview(bytearray())
        for peer in (-1, 0, 2):
            with pytest.raises(
                ValueError, match=rf"rank 0: peer: got {peer}, expected another rank of 0 to 1"
            ):
                transport.isend(peer, 1, nothing)
        for tag in (-1, MAX_TAG + 1):
            with pytest.raises(ValueError, match=rf"rank 0: tag: got {tag}, expected 0 to"):
                transport.irecv(1, tag, nothing)
        with pytest.raises(ValueError, match="view: got read-only memory"):
            transport.irecv(1, 1, memoryview(b"constant"))

    run(2, lambda transport: program(transport) if transport.rank == 0 else None)


def test_after_close_everything_fails_and_nothing_hangs(run: Runner) -> None:
    def program(transport: Transport) -> bool:
        pending = transport.irecv(1 - transport.rank, 1, memoryview(bytearray(1)))
        transport.close()
        transport.close()
        transport.progress(0.0)
        later = transport.isend(1 - transport.rank, 1, memoryview(b"x"))
        return isinstance(pending.error, PeerLost) and isinstance(later.error, PeerLost)

    assert run(2, program) == [True, True]


def test_one_thread_can_drive_both_ends_of_the_memory_network() -> None:
    ends = MemoryNetwork(2).transports
    buffer = bytearray(5)
    receive = ends[1].irecv(0, 1, memoryview(buffer))
    payload = bytearray(b"hello")
    assert ends[0].isend(1, 1, memoryview(payload)).done
    payload[:] = b"later"  # a send that is done lets go of its buffer
    assert not receive.done
    ends[1].progress(0.0)
    assert receive.done
    assert buffer == b"hello"
