"""Rendezvous and staged: where bytes go, how many are copied, how much is under way."""

from __future__ import annotations

import time

import pytest

from testbed.comm.collectives import Communicator, count_wrong
from testbed.comm.transport import (
    MemoryNetwork,
    RendezvousTransport,
    StagedTransport,
    Transport,
    wait_all,
    with_protocol,
)
from testbed.plugins import PluginError
from tests.unit.comm.collective_runs import ALGORITHMS, filled
from tests.unit.measure.ranks import in_memory, over_channels, over_tcp


def both_ways(transport: Transport, size_bytes: int, early: bool) -> int:
    """Messages both ways, whose receives are posted before or after they come; bytes copied at this rank."""
    peer = 1 - transport.rank
    for _ in range(4):
        payload, buffer = bytes([transport.rank]) * size_bytes, bytearray(size_bytes)
        if early:
            receive = transport.irecv(peer, 1, memoryview(buffer))
            wait_all(transport, [transport.isend(peer, 2, memoryview(b""))], 5)
            wait_all(transport, [transport.irecv(peer, 2, memoryview(b""))], 5)
            send = transport.isend(peer, 1, memoryview(payload))
        else:
            send = transport.isend(peer, 1, memoryview(payload))
            end_s = time.monotonic() + 0.05
            while time.monotonic() < end_s:
                transport.progress(0.01)
            receive = transport.irecv(peer, 1, memoryview(buffer))
        wait_all(transport, [send, receive], 5)
        assert buffer == bytes([peer]) * size_bytes
    return transport.counters[peer].bytes_copied


def test_how_often_bytes_are_copied() -> None:
    """Eager: when the receive came late; rendezvous: never; staged: at both ends, and for late receives once more."""
    size = 200_000
    whole = 4 * size

    def copied(protocol: str, early: bool) -> list[int]:
        def program(transport: Transport) -> int:
            layer = with_protocol(transport, protocol)
            try:
                # rendezvous waits for the receive before the empty message can go: only late ones can be tried so
                return both_ways(layer, size, early)
            finally:
                layer.close()

        found: list[int] = over_tcp(2, program)
        return found

    assert all(count <= 16 * 1024 * 4 for count in copied("eager", early=True))
    assert copied("eager", early=False) == [whole] * 2
    assert all(count <= 16 * 1024 * 4 for count in copied("rendezvous", early=False))
    assert all(2 * whole <= count <= 2 * whole + 4 * 17 * 1024 for count in copied("staged", early=True))
    assert all(2 * whole <= count <= 3 * whole + 1000 for count in copied("staged", early=False))


def test_a_rendezvous_send_waits_to_be_asked_for() -> None:
    one, two = (RendezvousTransport(transport) for transport in MemoryNetwork(2).transports)
    payload, buffer = bytearray(b"early"), bytearray(5)
    send = one.isend(1, 1, memoryview(payload))
    for _ in range(5):
        one.progress()
        two.progress()
    assert not send.done
    payload[:] = b"later"
    receive = two.irecv(0, 1, memoryview(buffer))
    for _ in range(5):
        one.progress()
        two.progress()
    assert send.done
    assert receive.done
    assert buffer == b"later"
    assert one.counters[1].messages_sent == two.counters[0].messages_received == 1


def test_no_more_than_the_slots_hold_is_under_way() -> None:
    one, two = (
        StagedTransport(transport, chunk_bytes=100, slots=3) for transport in MemoryNetwork(2).transports
    )
    messages = [bytes([number]) * 1050 for number in range(2)]
    sends = [one.isend(1, 1, memoryview(message)) for message in messages]
    one.progress()
    assert not any(send.done for send in sends)
    assert one.inner.counters[1].messages_sent == 3
    buffers = [bytearray(1050) for _ in messages]
    receives = [two.irecv(0, 1, memoryview(buffer)) for buffer in buffers]
    for _ in range(100):
        two.progress()
        one.progress()
        chunks_sent = one.inner.counters[1].messages_sent
        # a slot of the first message is free only when the receiver has emptied it
        assert chunks_sent >= 11 or chunks_sent - two.inner.counters[0].messages_received <= 3
    assert all(item.done and item.error is None for item in (*sends, *receives))
    assert buffers == messages
    assert one.counters[1].messages_sent == two.counters[0].messages_received == 2
    assert one.counters[1].bytes_sent == two.counters[0].bytes_received == 2100
    assert not one.has_waiting_sends


def test_announced_slots_are_empty_until_the_receiver_waits() -> None:
    one, two = (
        StagedTransport(transport, chunk_bytes=100, slots=3, announced=True)
        for transport in MemoryNetwork(2).transports
    )
    early = bytearray(250)
    receives = [two.irecv(0, 1, memoryview(early))]
    messages = [b"a" * 250, b"b" * 1050]
    sends = [one.isend(1, 1, memoryview(message)) for message in messages]
    for _ in range(5):
        one.progress()
        two.progress()
    assert bytes(early) == messages[0]
    assert one.inner.counters[1].messages_sent == 3  # of the second nothing, though slots are free
    late = bytearray(1050)
    receives.append(two.irecv(0, 1, memoryview(late)))
    one.progress()
    assert one.inner.counters[1].messages_sent == 6
    for _ in range(30):
        two.progress()
        one.progress()
    assert bytes(late) == messages[1]
    assert all(item.done and item.error is None for item in (*sends, *receives))
    assert one._free == {}
    assert not one.has_waiting_sends


@pytest.mark.parametrize("protocol", ["rendezvous", "staged"])
def test_collectives_work_over_either(protocol: str) -> None:
    def program(transport: Transport) -> int:
        layer = with_protocol(transport, protocol)
        try:
            communicator = Communicator(layer, [0, 0, 1, 1, 1])
            wrong = 0
            for number, algorithm in enumerate(ALGORITHMS["all_reduce"]):
                array = filled(50_000 + number, communicator.rank, "float32")
                communicator.all_reduce(array, algorithm=algorithm)
                wrong += count_wrong(array, 5, salt=50_000 + number)
            communicator.barrier()
            return wrong
        finally:
            layer.close()

    for runner in (in_memory, over_tcp, over_channels):
        assert runner(5, program) == [0] * 5


def test_other_protocols_are_refused() -> None:
    transport = MemoryNetwork(1).transports[0]
    assert with_protocol(transport, "eager") is transport
    words = "protocol: got 'push', expected FILE.py:NAME or one of eager, rendezvous, staged"
    with pytest.raises(PluginError, match=words):
        with_protocol(transport, "push")


def test_announced_slots_are_for_all_messages_that_are_waited_for_in_their_order() -> None:
    """A second message of two chunks needs no note of its own once the first has come: it has had slots all along."""
    one, two = (
        StagedTransport(transport, chunk_bytes=100, slots=3, announced=True)
        for transport in MemoryNetwork(2).transports
    )
    messages = [b"a" * 200, b"b" * 200, b"c" * 300]
    buffers = [bytearray(len(message)) for message in messages]
    receives = [two.irecv(0, 1, memoryview(buffer)) for buffer in buffers]
    two.progress()
    one.progress()
    sends = [one.isend(1, 1, memoryview(message)) for message in messages]
    one.progress()
    assert one.inner.counters[1].messages_sent == 3  # both of the first, one of the second: all slots
    for _ in range(30):
        two.progress()
        one.progress()
    assert buffers == [bytearray(message) for message in messages]
    assert all(item.done and item.error is None for item in (*sends, *receives))
    assert one._free == {}
    assert two._windows == {}
