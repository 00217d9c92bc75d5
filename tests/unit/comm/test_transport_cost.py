"""Messages that cost time: how much, at which end, and one after another."""

from __future__ import annotations

import time

import numpy as np
import pytest

from testbed.comm.collectives import Communicator
from testbed.comm.transport import (
    CostedTransport,
    MemoryNetwork,
    OperationCosts,
    PeerLost,
    Registration,
    Software,
    Transport,
    operation_costs,
    wait_all,
)
from testbed.comm.transport.base import CONTROL_TAG
from tests.unit.measure.ranks import in_memory, with_cost

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


def test_messages_are_handed_over_side_by_side_and_notes_not_at_all() -> None:
    here, there = MemoryNetwork(2).transports
    paying = CostedTransport(here, 0.01, 0.0, note_s=0.005, handover_s=0.1)
    paying.progress()
    began_s = time.monotonic()
    messages = [paying.isend(1, 1, memoryview(b"ab")) for _ in range(3)]
    note = paying.isend(1, CONTROL_TAG, memoryview(b"note"))
    wait_all(paying, [note], 5)
    # worked off after the messages, and gone before the first of them is handed over
    assert 0.034 <= elapsed(began_s) < 0.1
    assert not messages[0].done
    wait_all(paying, messages, 5)
    assert 0.129 <= elapsed(began_s) < 0.3  # one after the other they would take 0.33
    wait_all(there, [there.irecv(0, 1, memoryview(bytearray(2))) for _ in range(3)], 1)


def test_operations_that_cost_nothing_have_no_costs() -> None:
    assert operation_costs(Software(message_s=1.0, byte_s=1.0, handover_s=1.0), 1, 0) is None


def test_an_array_is_registered_when_it_is_first_used_and_small_ones_are_not() -> None:
    software = Software("rendezvous", launch_s=0.5, registration=Registration(1.0, 2.0, 10.0, 0.0))
    costs = OperationCosts(software, "1/registration/0")
    first_s = costs.before_s(4096, 8192)
    assert 1.5 <= first_s <= 2.5
    assert costs.before_s(4096, 8192) == 0.5
    assert costs.before_s(4096, 16384) > 1.5
    assert costs.before_s(999, 4095) == costs.before_s(0, 0) == 0.5
    assert OperationCosts(software, "1/registration/0").before_s(4096, 8192) == first_s
    assert OperationCosts(software, "1/registration/1").before_s(4096, 8192) != first_s


def test_operations_wait_for_their_launch_and_for_their_completion() -> None:
    def program(transport: Transport) -> float:
        communicator = Communicator(transport)
        communicator.barrier()
        communicator.engine.costs = OperationCosts(Software(launch_s=0.05, completion_s=0.03), "")
        array = np.ones(4, np.float32)
        communicator.barrier()
        work = communicator.all_reduce(array, async_op=True)
        began_s = time.monotonic()
        assert not work.is_completed()
        work.wait()
        assert array.tolist() == [2.0] * 4
        return time.monotonic() - began_s

    for took_s in in_memory(2, program):
        assert 0.079 <= took_s < 0.5
