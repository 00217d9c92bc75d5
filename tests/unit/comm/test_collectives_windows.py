"""Windows: puts land where they are meant to, signals come behind them, what does not fit is refused at both ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testbed.comm.collectives import CollectiveTimeout, Communicator, Revoked, Window
from testbed.comm.flight_recorder import Recorder, read_ring
from testbed.comm.flight_recorder.ring_buffer import ring_bytes
from testbed.comm.transport import MemoryNetwork, PeerLost, TrafficClass, Transport, TransportError
from testbed.comm.transport.onesided import WINDOWS, ExposedWindows, is_one_sided, is_put, put_tag, signal_tag
from testbed.comm.transport.wire import GOODBYE_TAG, NOTE_TAG
from tests.unit.measure.ranks import (
    Program,
    in_memory,
    in_place,
    over_channels,
    over_spray,
    over_tcp,
    through_slots,
    with_cost,
)

Runner = Callable[[int, Program], list[Any]]
RUNNERS: list[Runner] = [in_memory, with_cost, over_tcp, over_channels, over_spray, in_place, through_slots]
runners = pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.__name__)


def on_window(size: int, use: Callable[[Communicator, Window], Any]) -> Program:
    """A window of so many int64 on every rank, -1 at first."""

    def program(transport: Transport) -> Any:
        communicator = Communicator(transport, timeout_s=20)
        return use(communicator, communicator.new_window(np.full(size, -1, np.int64)))

    return program


# ---- what is written


@runners
def test_every_rank_writes_into_every_other(runner: Runner) -> None:
    """Of sizes from one element to hundreds of KB, in an order of its own; each signal tells of the put before it."""
    sizes = [1, 30_000, 7, 1_000, 4_000]
    size = sum(sizes)
    bounds = np.cumsum([0, *sizes]).tolist()

    def use(own: Communicator, window: Window) -> int:
        peers = [rank for rank in range(own.size) if rank != own.rank]
        order = [(peer, part) for peer in peers for part in range(len(sizes))]
        random.Random(own.rank).shuffle(order)
        sent: dict[int, list[int]] = {peer: [] for peer in peers}
        works = []
        for peer, part in order:
            values = np.full(sizes[part], 100 * own.rank + part, np.int64)
            works.append(window.put(values, peer, own.rank * size + bounds[part], async_op=True))
            works.append(window.signal(peer, async_op=True))
            sent[peer].append(part)
        wrong = 0
        for peer in peers:
            parts = list(range(len(sizes)))
            theirs = [(to, part) for to in range(own.size) if to != peer for part in parts]
            random.Random(peer).shuffle(theirs)
            for part in [part for to, part in theirs if to == own.rank]:
                window.wait_signal(peer)
                start = peer * size + bounds[part]
                wrong += int((window.array[start : start + sizes[part]] != 100 * peer + part).sum())
        for work in works:
            work.wait()
        untouched = window.array[own.rank * size : (own.rank + 1) * size]
        return wrong + int((untouched != -1).sum())

    assert runner(3, on_window(3 * size, use)) == [0, 0, 0]


@runners
def test_a_fence_comes_behind_all_puts_of_all_ranks(runner: Runner) -> None:
    def use(own: Communicator, window: Window) -> list[int]:
        found = []
        for turn in range(3):
            for peer in range(own.size):
                if peer != own.rank:
                    values = np.full(10_000, 10 * turn + own.rank, np.int64)
                    window.put(values, peer, 10_000 * own.rank, async_op=True)
            window.fence()
            found += [int(window.array[10_000 * rank : 10_000 * (rank + 1)].min()) for rank in range(3)]
            own.barrier()  # or the next turn might write before this one has looked
        window.free()
        return found

    def expected(rank: int) -> list[int]:
        return [-1 if rank == other else 10 * turn + other for turn in range(3) for other in range(3)]

    assert runner(3, on_window(30_000, use)) == [expected(rank) for rank in range(3)]


@pytest.mark.parametrize("runner", [over_tcp, in_place, through_slots], ids=lambda runner: runner.__name__)
def test_puts_take_no_control_message_whatever_the_protocol(runner: Runner) -> None:
    """So many puts and signals are so many messages, of so many bytes, with no more headers than theirs, uncopied."""

    def use(own: Communicator, window: Window) -> tuple[int, ...]:
        peer = 1 - own.rank
        window.fence()
        before = own.transport.counters[peer]
        names = ("messages_sent", "bytes_sent", "header_bytes_sent", "bytes_copied")
        sent, sent_bytes, headers, copied = (getattr(before, name) for name in names)
        for number in range(10):
            window.put(np.arange(5_000, dtype=np.int64), peer, 5_000 * number, async_op=True)
            window.signal(peer, async_op=True)
        for _ in range(10):
            window.wait_signal(peer)
        after = own.transport.counters[peer]
        found = [getattr(after, name) for name in names]
        own.barrier()
        return tuple(now - then for now, then in zip(found, (sent, sent_bytes, headers, copied), strict=True))

    assert runner(2, on_window(50_000, use)) == [(20, 400_000, 20 * 16, 0)] * 2


def test_windows_have_sizes_and_classes_of_traffic_of_their_own() -> None:
    """Those of a part of the ranks, too, whose numbers there differ."""

    def program(transport: Transport) -> tuple[tuple[int, ...], list[float]]:
        world = Communicator(transport, timeout_s=20)
        first = world.new_window(np.zeros(transport.rank))
        if transport.rank == 1:  # so that numbers differ from rank to rank
            world.engine.transport.exposed.add(memoryview(bytearray(8)), [])  # type: ignore[attr-defined]
        part = world.split([2, 1], traffic=TrafficClass(dscp=46))
        if part is None:
            return first.sizes, []
        window = part.new_window(np.zeros(2))
        window.put(np.array([1.5]), 1 - part.rank, part.rank)
        window.signal(1 - part.rank)
        window.wait_signal(1 - part.rank)
        return first.sizes, window.array.tolist()

    assert in_memory(3, program) == [((0, 1, 2), []), ((0, 1, 2), [1.5, 0.0]), ((0, 1, 2), [0.0, 1.5])]


# ---- what is not


def test_what_does_not_fit_is_refused_before_it_is_sent() -> None:
    def use(own: Communicator, window: Window) -> None:
        peer = 1 - own.rank
        for offset, count in ((-1, 1), (9, 2), (0, 11), (11, 0)):
            words = rf"put into window 0 of rank {peer}: got {count} elements at offset {offset}, .* within its 10"
            with pytest.raises(ValueError, match=words):
                window.put(np.zeros(count, np.int64), peer, offset)
        with pytest.raises(TypeError, match=r"array: got dtype float64, expected int64"):
            window.put(np.zeros(1), peer)
        for rank in (own.rank, 2, -1):
            for call in (window.signal, lambda rank: window.put(np.zeros(1, np.int64), rank)):
                with pytest.raises(ValueError, match=rf"dst: got {rank}, expected another rank of 0 to 1"):
                    call(rank)
            with pytest.raises(ValueError, match=rf"peer: got {rank}, expected another rank"):
                window.wait_signal(rank)
        assert (window.array == -1).all()

    in_memory(2, on_window(10, use))


@runners
def test_a_put_into_a_window_that_is_free_loses_its_sender(runner: Runner) -> None:
    def use(own: Communicator, window: Window) -> str:
        window.free()
        try:
            own.barrier()  # on a busy machine rank 1 hears of the put while it is still in here
            if own.rank == 0:
                window.put(np.zeros(3, np.int64), 1, 2, async_op=True)
            own.recv(np.zeros(1), 1 - own.rank, timeout_s=5)
        except TransportError as error:
            return str(error)
        return "came"

    told = runner(2, on_window(10, use))[1]
    assert "lost peer 0: its put of 24 bytes at offset 16 into window 0, which is not open to it" in told


def test_elements_of_different_sizes_are_refused_on_all_ranks_alike() -> None:
    def program(transport: Transport) -> int:
        own = Communicator(transport)
        array = np.zeros(3, np.int32 if transport.rank else np.int64)
        with pytest.raises(ValueError, match=r"array: got elements of \[4, 8\] bytes"):
            own.new_window(array)
        return own.new_window(np.zeros(3)).sizes[0]  # and its number is free again

    assert in_memory(2, program) == [3, 3]


def test_a_transport_of_ones_own_without_puts_says_so() -> None:
    class Own:
        """All that a transport must have, and nothing more."""

        def __init__(self, own: Transport) -> None:
            self._own = own

        def __getattr__(self, name: str) -> Any:
            if name not in dir(Transport):
                raise AttributeError(name)
            return getattr(self._own, name)

    communicator = Communicator(Own(MemoryNetwork(2).transports[0]))
    with pytest.raises(TransportError, match="its transport supports no puts"):
        communicator.new_window(np.zeros(1))


@runners
def test_who_waits_for_a_signal_of_one_that_goes_hears_of_it(runner: Runner) -> None:
    def use(own: Communicator, window: Window) -> bool:
        own.barrier()
        if own.rank == 1:
            return True
        begun_s = time.monotonic()
        with pytest.raises((PeerLost, Revoked)):
            window.wait_signal(1)
        return time.monotonic() - begun_s < 5

    assert runner(2, on_window(10, use)) == [True, True]


def test_signals_that_do_not_come_name_window_and_rank() -> None:
    def use(own: Communicator, window: Window) -> str:
        with pytest.raises(CollectiveTimeout) as caught:
            window.wait_signal(1 - own.rank, timeout_s=0.05)
        own.barrier()
        return str(caught.value)

    words = (
        "wait_signal from rank 1, window 0 on rank 0: not done within 0.05 s; waits to receive from rank 1"
    )
    assert in_memory(2, on_window(1, use))[0] == words


# ---- tags, and records


def test_tags_tell_puts_signals_and_everything_else_apart() -> None:
    last = WINDOWS - 1
    assert is_put(put_tag(0, 0))
    assert is_put(put_tag(last, (1 << 48) - 3))
    for tag in (signal_tag(0), signal_tag(last, kind=(1 << 48) - 1)):
        assert is_one_sided(tag)
        assert not is_put(tag)
    for tag in (0, (1 << 63) - 1, GOODBYE_TAG, NOTE_TAG, (1 << 64) - 2):
        assert not is_one_sided(tag)
    with pytest.raises(ValueError, match="offset: got"):
        put_tag(0, (1 << 48) - 2)


def test_numbers_of_windows_are_given_again_and_there_is_an_end_to_them() -> None:
    exposed = ExposedWindows()
    view = memoryview(bytearray(4))
    assert [exposed.add(view, [1]) for _ in range(3)] == [0, 1, 2]
    exposed.remove(1)
    assert exposed.add(view, [1]) == 1
    assert "not open to it" in str(exposed.place(2, put_tag(0, 0), 1))  # who is no member
    assert not isinstance(exposed.place(1, put_tag(0, 3), 1), str)
    assert exposed.place(1, put_tag(2, 1), 4) == (
        "its put of 4 bytes at offset 1 into window 2, which has 4 bytes"
    )
    for _ in range(WINDOWS - 3):
        exposed.add(view, ())
    with pytest.raises(TransportError, match="expected at most"):
        exposed.add(view, ())


def test_the_flight_recorder_has_puts_and_signals() -> None:
    memories = [bytearray(ring_bytes()) for _ in range(2)]

    def program(transport: Transport) -> None:
        own = Communicator(transport, recorder=Recorder(memories[transport.rank], transport.rank))
        window = own.new_window(np.zeros(10))
        if own.rank == 0:
            window.put(np.ones(4), 1, 2)
            window.signal(1)
        else:
            window.wait_signal(0)
        window.fence()

    in_memory(2, program)
    found = [read_ring(memory, "host", 0.0).entries for memory in memories]
    names = [[entry.name for entry in entries] for entries in found]
    assert names == [["new_window", "put", "signal", "fence"], ["new_window", "wait_signal", "fence"]]
    put = found[0][1]
    assert (put.size_bytes, put.peer, put.peers[1].sent_bytes, put.state) == (32, 1, 32, "completed")
    waited = found[1][1]
    assert (waited.peer, waited.peers[0].expected, waited.peers[0].received) == (0, 1, 1)
