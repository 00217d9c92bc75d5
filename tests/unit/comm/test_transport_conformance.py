"""What any transport must do; run on all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.comm.transport import (
    TRANSPORTS,
    CostedTransport,
    MemoryNetwork,
    PeerCounters,
    PeerLost,
    Transport,
)
from testbed.contrib.conformance import check_transport, transport_checks
from testbed.contrib.conformance.harness import in_threads
from tests.unit.measure.ranks import (
    in_memory,
    in_place,
    over_channels,
    over_datagrams,
    over_granted_datagrams,
    over_shared_window,
    over_spray,
    over_sprayed_datagrams,
    over_tcp,
    through_announced_slots,
    through_slots,
    with_cost,
)

Runner = Callable[..., list[Any]]


RUNNERS = {
    "memory": in_memory,
    "tcp": over_tcp,
    "cost": with_cost,
    "striped": over_channels,
    "striped, one window": over_shared_window,
    "spray": over_spray,
    "datagram": over_datagrams,
    "datagram, sprayed": over_sprayed_datagrams,
    "datagram, granted": over_granted_datagrams,
    "rendezvous": in_place,
    "staged": through_slots,
    "staged, announced": through_announced_slots,
}


SENDS_WAIT = ("rendezvous", "staged, announced")
CASES = [(runner, check) for runner in RUNNERS for check in transport_checks(sends_wait=runner in SENDS_WAIT)]


@pytest.mark.parametrize(("runner", "check"), CASES)
def test_transports_do_what_any_must(runner: str, check: str) -> None:
    transport_checks()[check](RUNNERS[runner])


def test_a_kind_is_checked_over_loopback() -> None:
    check_transport(TRANSPORTS["tcp"]())


def test_what_does_not_conform_is_named() -> None:
    class Forgetful(CostedTransport):
        @property
        def counters(self) -> dict[int, PeerCounters]:
            return {peer: PeerCounters() for peer in self.inner.counters}

    @contextlib.contextmanager
    def mesh(size: int) -> Iterator[Callable[[int], Transport]]:
        transports = MemoryNetwork(size).transports
        yield lambda rank: Forgetful(transports[rank], 0.0, 0.0)

    with pytest.raises(AssertionError, match=r"^counters_count_payload: AssertionError"):
        check_transport(mesh)


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


def test_ranks_in_threads_raise_the_first_error_and_leave_no_transport_open() -> None:
    transports = MemoryNetwork(3).transports

    def program(transport: Transport) -> int:
        if transport.rank == 1:
            raise ZeroDivisionError("rank 1")
        return transport.rank

    with pytest.raises(ZeroDivisionError, match="rank 1"):
        in_threads(3, transports.__getitem__, program)
    for transport in transports:
        assert isinstance(transport.isend((transport.rank + 1) % 3, 1, memoryview(b"x")).error, PeerLost)
    assert in_threads(2, MemoryNetwork(2).transports.__getitem__, lambda transport: transport.rank) == [0, 1]
