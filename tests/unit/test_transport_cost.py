"""Messages that cost time: how much, at which end, and one after another."""

from __future__ import annotations

import time

import pytest

from testbed.transport import CostedTransport, MemoryNetwork, PeerLost, Transport, wait_all
from tests.unit.ranks import with_cost

PER_MESSAGE_S, PER_BYTE_S = 0.02, 1e-6


def pair() -> tuple[CostedTransport, Transport]:
    """Two ranks, of which only the first pays."""
    here, there = MemoryNetwork(2).transports
    return CostedTransport(here, PER_MESSAGE_S, PER_BYTE_S), there


def elapsed(began_s: float) -> float:
    return time.monotonic() - began_s


def test_a_message_leaves_after_its_cost_and_the_next_after_both() -> None:
    paying, free = pair()
    paying.progress()
    began_s = time.monotonic()
    requests = [paying.isend(1, 1, memoryview(bytes(10_000))) for _ in range(2)]
    assert not any(request.done for request in requests)
    wait_all(paying, requests[:1], 5)
    assert elapsed(began_s) >= PER_MESSAGE_S + 0.01
    assert not requests[1].done
    wait_all(paying, requests, 5)
    assert elapsed(began_s) >= 2 * (PER_MESSAGE_S + 0.01)
    assert free.counters[0].messages_received == 0  # it is there, and free to take
    wait_all(free, [free.irecv(0, 1, memoryview(bytearray(10_000)))], 0.1)


def test_a_message_is_there_after_its_cost() -> None:
    paying, free = pair()
    room = bytearray(3)
    request = paying.irecv(1, 7, memoryview(room))
    free.isend(0, 7, memoryview(b"abc"))
    paying.progress()
    began_s = time.monotonic()
    paying.progress()
    assert not request.done
    wait_all(paying, [request], 5)
    assert elapsed(began_s) >= PER_MESSAGE_S / 2
    assert bytes(room) == b"abc"


def test_what_is_paid_for_leaves_before_the_end_and_a_lost_peer_shows() -> None:
    paying, free = pair()
    request = paying.isend(1, 1, memoryview(b"last"))
    paying.close()
    assert request.done
    assert request.error is None
    room = bytearray(4)
    wait_all(free, [free.irecv(0, 1, memoryview(room))], 1)
    assert bytes(room) == b"last"
    with pytest.raises(PeerLost):
        wait_all(free, [free.irecv(0, 2, memoryview(room))], 1)


def test_bad_addresses_are_refused_at_once() -> None:
    def program(transport: Transport) -> None:
        with pytest.raises(ValueError, match="another rank"):
            transport.isend(5, 1, memoryview(b""))
        with pytest.raises(ValueError, match="tag"):
            transport.isend(1 - transport.rank, -1, memoryview(b""))

    with_cost(2, program)
