"""Communicators of some of the ranks, many at once; batches; classes of traffic; giving up; tuning tables."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from testbed.comm.collectives import Communicator, P2POp, TuningTable, traffic
from testbed.comm.collectives.algorithm_selection import Entry, choose_algorithm
from testbed.comm.transport import (
    Aborted,
    MemoryNetwork,
    PeerLost,
    TcpTransport,
    TrafficClass,
    Transport,
    TransportError,
)
from tests.unit.comm.collective_runs import finish, run
from tests.unit.measure.ranks import Places, forked, in_memory, over_tcp


def rows_and_columns(transport: Transport) -> bool:
    """Six ranks as two rows of three; collectives of rows, columns and all are under way at the same time."""
    world = Communicator(transport, [0, 0, 0, 1, 1, 1])
    row_number, column_number = divmod(world.rank, 3)
    row = world.split([3 * row_number + c for c in range(3)], "row")
    column = world.split([column_number, column_number + 3], "column", traffic=TrafficClass(10, 1))
    reverse = world.split([5, 4, 3] if world.rank > 2 else [0, 1, 2][::-1])
    assert row is not None
    assert column is not None
    assert reverse is not None
    assert (row.rank, column.rank, reverse.rank) == (column_number, row_number, 2 - column_number)
    assert row.groups == (row_number,) * 3
    assert column.groups == (0, 1)
    right = True
    for size in (1, 5000):
        arrays = [np.full(size, world.rank, "int64") for _ in range(4)]
        works = [
            column.all_reduce(arrays[0], async_op=True),
            row.all_reduce(arrays[1], async_op=True),
            world.all_reduce(arrays[2], async_op=True),
            reverse.broadcast(arrays[3], src=0, async_op=True),
        ]
        for work in works[::-1]:
            work.wait()
        expected = [2 * column_number + 3, 9 * row_number + 3, 15, 3 * row_number + 2]
        right &= all(bool((a == value).all()) for a, value in zip(arrays, expected, strict=True))
    row.barrier()
    world.barrier()
    return bool(right)


def test_groups_of_ranks_do_not_meet() -> None:
    assert in_memory(6, rows_and_columns) == [True] * 6
    assert over_tcp(6, rows_and_columns) == [True] * 6


def test_ranks_outside_a_split_get_none_and_overlapping_groups_have_numbers_of_their_own() -> None:
    def program(transport: Transport) -> list[int]:
        world = Communicator(transport)
        low = world.split([0, 1, 2])
        high = world.split([1, 2, 3])
        assert (low is None) == (world.rank == 3)
        assert (high is None) == (world.rank == 0)
        nested = low.split([1, 2]) if low else None
        found = []
        for group in (low, high, nested):
            if group is not None:
                total = np.array([1])
                group.all_reduce(total)
                found.append(int(total[0]))
        world.barrier()
        return found

    assert in_memory(4, program) == [[3], [3, 3, 2], [3, 3, 2], [3]]


def test_ranks_to_split_are_checked() -> None:
    world = Communicator(MemoryNetwork(2).transports[0])
    for ranks in ([0, 0], [0, 2], [-1]):
        with pytest.raises(ValueError, match=r"ranks: got \[.*\], expected distinct ranks of 0 to 1"):
            world.split(ranks)


def test_errors_name_the_group_and_the_ranks_of_the_job() -> None:
    def program(transport: Transport) -> str:
        world = Communicator(transport)
        group = world.split([2, 0], "pair")
        if transport.rank == 1:
            transport.progress(0.3)
            return ""
        assert group is not None
        if transport.rank == 2:
            time.sleep(0.2)
            return ""
        with pytest.raises(TransportError) as caught:
            group.barrier(timeout_s=0.05)
        return str(caught.value)

    words = "barrier #1 of pair (distance 1) on rank 0: not done within 0.05 s; waits to receive from rank 2"
    assert in_memory(3, program)[0] == words


def test_batches_start_with_their_receives() -> None:
    def program(transport: Transport) -> list[int]:
        communicator = Communicator(transport)
        right, left = (transport.rank + 1) % 4, (transport.rank - 1) % 4
        incoming = [np.zeros(1, "int32"), np.zeros(1, "int32")]
        works = communicator.batch_isend_irecv(
            [
                P2POp("isend", np.array([transport.rank], "int32"), right),
                P2POp("irecv", incoming[0], left),
                P2POp("isend", np.array([10 + transport.rank], "int32"), left, tag=1),
                P2POp("irecv", incoming[1], right, tag=1),
            ]
        )
        assert [work.name.split()[0] for work in works] == ["isend", "irecv", "isend", "irecv"]
        for work in works:
            work.wait()
        communicator.barrier()
        return [int(array[0]) for array in incoming]

    assert in_memory(4, program) == [[3, 11], [0, 12], [1, 13], [2, 10]]
    with pytest.raises(ValueError, match=r"operations\[0\]: kind: got 'send', expected isend or irecv"):
        Communicator(MemoryNetwork(1).transports[0]).batch_isend_irecv(
            [P2POp("send", np.zeros(1), 0)]  # type: ignore[arg-type]
        )


def test_counts_that_do_not_fit_are_refused() -> None:
    one, two = (Communicator(transport) for transport in MemoryNetwork(2).transports)
    array = np.zeros((4, 2), "int32")
    with pytest.raises(
        ValueError, match=r"input_split_sizes: got \[1, 2\], expected 2 sizes, 0 or more, that make 4"
    ):
        one.all_to_all_single(np.zeros((4, 2), "int32"), array, None, [1, 2])
    with pytest.raises(
        ValueError, match=r"output: got shape \(4, 2\), expected \(2, maximum rows of any rank, \*\(2,\)\)"
    ):
        one.all_to_all_v_dynamic(np.zeros((4, 2), "int32"), array, [1, 3])
    with pytest.raises(ValueError, match=r"input_split_sizes: got 3, expected at most 2 rows"):
        one.all_to_all_v_dynamic(np.zeros((2, 2, 2), "int32"), array, [1, 3])
    # what a peer announces is not believed
    work = one.all_to_all_v_dynamic(np.zeros((2, 3, 2), "int32"), array, [1, 3], async_op=True)
    other = two.all_to_all_v_dynamic(
        np.zeros((2, 99, 2), "int32"), np.zeros((99, 2), "int32"), [99, 0], async_op=True
    )
    with pytest.raises(
        TransportError, match=r"exchange\) on rank 0: count announced by peer 1: got 99, expected 0 to 3"
    ):
        work.wait()
    assert not other.is_completed()


# ---- classes of traffic


def test_classes_have_connections_of_their_own_with_their_marks() -> None:
    def program(transport: TcpTransport) -> list[tuple[int, int]]:
        world = Communicator(transport)
        group = world.split([0, 1], traffic=TrafficClass(46, 5))
        assert group is not None
        group.all_reduce(np.ones(10))
        found = [(entry.get("dscp", 0), entry.get("priority", 0)) for entry in transport.socket_info()]
        world.barrier()
        return found

    assert over_tcp(2, program) == [[(0, 0), (46, 5)]] * 2


@pytest.mark.parametrize(
    ("marks", "words"),
    [((64, 0), "dscp: got 64, expected 0 to 63"), ((0, 7), "priority: got 7, expected 0 to 6")],
)
def test_classes_that_packets_cannot_carry_are_refused(marks: tuple[int, int], words: str) -> None:
    def program(transport: Transport) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (its words are what is tested)
            transport.isend(1 - transport.rank, 1, memoryview(b""), TrafficClass(*marks))
        return str(caught.value)

    for runner in (in_memory, over_tcp):
        assert runner(2, program) == [f"traffic class: {words}"] * 2


# ---- giving up


def gives_up(transport: Transport) -> str:
    communicator = Communicator(transport, timeout_s=20)
    communicator.barrier()
    if transport.rank == 1:
        threading.Timer(0.1, communicator.abort, ["lost its mind\x07"]).start()
    error: type[TransportError] = Aborted if transport.rank == 1 else PeerLost
    with pytest.raises(error) as caught:
        communicator.irecv(np.zeros(1), (transport.rank + 1) % 3).wait()
    with pytest.raises(TransportError):  # from then on everything fails at once
        communicator.barrier()
    return str(caught.value)


def test_an_abort_ends_every_wait_here_and_tells_the_others_why() -> None:
    for runner in (in_memory, over_tcp):
        begun_s = time.monotonic()
        zero, one, two = runner(3, gives_up)
        assert one == "rank 1: aborted: lost its mind\x07"
        assert zero == "irecv from rank 1, tag 0 on rank 0: lost peer 1: it aborted: lost its mind?"
        assert "on rank 2: lost peer" in two  # 0, which gave up because of it
        assert time.monotonic() - begun_s < 5


def test_a_signal_handler_may_abort() -> None:
    def program(transport: Transport) -> None:
        communicator = Communicator(transport)
        signal.signal(signal.SIGALRM, lambda number, frame: communicator.abort("time is up"))
        communicator.barrier()
        if transport.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        communicator.recv(np.zeros(1), 1 - transport.rank)

    places = Places(2)
    with forked(program, places, [0, 1]) as running:
        assert running.results() == [
            "Aborted: rank 0: aborted: time is up",
            "PeerLost: irecv from rank 0, tag 0 on rank 1: lost peer 0: it aborted: time is up",
        ]
    places.close()


def test_an_operation_may_have_a_timeout_of_its_own() -> None:
    one, _ = (Communicator(transport, timeout_s=30) for transport in MemoryNetwork(2).transports)
    work = one.all_reduce(np.ones(3), async_op=True, timeout_s=0.05)
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"):
        work.wait()
    assert time.monotonic() - begun_s < 5


# ---- tuning


def test_a_tuning_table_says_what_auto_takes(tmp_path: Path) -> None:
    times = {
        ("all_reduce", 4, 2): {
            1000: {"ring": 3.0, "double_tree": 1.0},
            2000: {"ring": 3.0, "double_tree": 2.0},
            4000: {"ring": 3.0, "double_tree": 5.0},
        }
    }
    table = TuningTable.fastest(times)
    assert table.entries == (
        Entry("all_reduce", 4, 2, 2000, "double_tree"),
        Entry("all_reduce", 4, 2, None, "ring"),
    )
    path = tmp_path / "table.json"
    table.write(path)
    table = TuningTable.read(path)
    two = [0, 0, 1, 1]
    assert [table.choose("all_reduce", size, two) for size in (1, 2000, 2001)] == ["double_tree"] * 2 + [
        "ring"
    ]
    assert table.choose("all_reduce", 1, [0] * 4) == choose_algorithm("all_reduce", 1, [0] * 4)
    arrays = [np.ones(10) for _ in two]
    communicators = [Communicator(t, two, tuning=table) for t in MemoryNetwork(4).transports]
    works = [c.all_reduce(array, async_op=True) for c, array in zip(communicators, arrays, strict=True)]
    finish(communicators, works)
    sent = {
        (c.rank, peer): counters.bytes_sent
        for c in communicators
        for peer, counters in c.transport.counters.items()
        if counters.bytes_sent
    }
    assert sent == traffic("all_reduce", "double_tree", 10, 8, two)
    assert run(two, Communicator.all_reduce, arrays) != sent


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("[", "expected JSON, as `testbed bench --tune` writes it"),
        ({"schema": 2}, "expected a tuning table of schema 1"),
        ({"schema": 1, "entries": 3}, "entries: got 3, expected a list"),
        ({"schema": 1, "entries": [3]}, r"entries\[0\]: got 3, expected an object"),
        ({"ranks": 0}, r"entries\[0\]: ranks: got 0, expected a whole number above 0"),
        ({"max_bytes": "x"}, r"entries\[0\]: max_bytes: got 'x', expected a whole number above 0"),
        (
            {"collective": "mean"},
            r"entries\[0\]: collective: got 'mean', expected FILE.py:NAME or a coll",
        ),
        (
            {"algorithm": "bruck"},
            r"entries\[0\]: algorithm: got 'bruck', expected FILE.py:NAME or an all",
        ),
    ],
)
def test_a_tuning_table_that_makes_no_sense_is_refused(tmp_path: Path, document: object, words: str) -> None:
    path = tmp_path / "table.json"
    good = {"collective": "all_reduce", "ranks": 4, "buildings": 1, "max_bytes": None, "algorithm": "ring"}
    if isinstance(document, dict) and "schema" not in document:
        document = {"schema": 1, "entries": [{**good, **document}]}
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ValueError, match=f"table.json: {words}"):
        TuningTable.read(path)
