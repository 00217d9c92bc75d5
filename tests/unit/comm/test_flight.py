"""The flight recorder's ring, and dumps of it."""

from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

import pytest

from testbed.comm.flight_recorder import COMPLETED, FAILED, DumpError, RankDump, Recorder, read_ring
from testbed.comm.flight_recorder.ring_buffer import ring_bytes


def test_a_ring_says_what_was_written() -> None:
    memory = bytearray(ring_bytes())
    recorder = Recorder(memory, rank=3)
    recorder.group(0, "everybody", (0, 1, 2, 3))
    record = recorder.begin(
        0, 1, "all_reduce", 1.0, size_bytes=100, algorithm="ring", dtype="float32", op="sum"
    )
    assert record is not None
    record.started(1.1)
    record.position("reduce-scatter", 2, 3)
    record.expected(2, 50, 1.1)
    record.expected(2, 50, 1.2)
    record.sent(1, 50, 1.2)
    record.received(2, 50, 1.3)
    dump = read_ring(memory, "east-0", 9.0)
    (entry,) = dump.entries
    assert dump.groups[0].ranks == (0, 1, 2, 3)
    assert (entry.name, entry.state, entry.started_s, entry.phase) == (
        "all_reduce",
        "started",
        1.1,
        "reduce-scatter",
    )
    assert (entry.round, entry.rounds, entry.waits_for) == (2, 3, (2,))
    assert (entry.peers[2].expected_bytes, entry.peers[2].received, entry.peers[1].sent_last_s) == (
        100,
        1,
        1.2,
    )
    record.ended(FAILED, 2.0, "lost peer 2")
    (entry,) = read_ring(memory, "east-0", 9.0).entries
    assert (entry.state, entry.error, entry.ended_s) == ("failed", "lost peer 2", 2.0)


def test_the_oldest_of_the_busiest_communicator_go_and_those_under_way_stay() -> None:
    memory = bytearray(ring_bytes(slots=8))
    recorder = Recorder(memory, 0, slots=8)
    recorder.begin(1, 1, "barrier", 0.0)  # never over
    rare = recorder.begin(2, 1, "all_gather", 0.0)
    assert rare is not None
    rare.ended(COMPLETED, 0.5)
    for number in range(1, 21):
        record = recorder.begin(3, number, "all_reduce", float(number))
        assert record is not None
        record.ended(COMPLETED, number + 0.5)
    entries = read_ring(memory, "", 0.0).entries
    assert [(entry.group, entry.sequence) for entry in entries] == [
        (1, 1),
        (2, 1),
        *((3, n) for n in range(15, 21)),
    ]
    while recorder.begin(4, 1, "barrier", 0.0) is not None:  # nothing is over: the newest are left out
        pass
    assert sum(not entry.over for entry in read_ring(memory, "", 0.0).entries) == 8


def test_more_peers_than_there_is_room_for() -> None:
    memory = bytearray(ring_bytes(peers=2))
    record = Recorder(memory, 0, peers=2).begin(0, 1, "all_to_all", 0.0)
    assert record is not None
    for peer in (1, 2, 3):
        record.sent(peer, 10, 1.0)
    (entry,) = read_ring(memory, "", 0.0).entries
    assert sorted(entry.peers) == [1, 2]


def test_it_outlives_a_rank_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(bytes(ring_bytes()))
    child = os.fork()
    if child == 0:
        with path.open("r+b") as file:
            record = Recorder(mmap.mmap(file.fileno(), 0), 5).begin(0, 7, "broadcast", 3.0)
            assert record is not None
            record.expected(1, 10, 3.0)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    dump = read_ring(path.read_bytes(), "west-0", 4.0, "killed by signal 9")
    assert (dump.rank, dump.ended) == (5, "killed by signal 9")
    assert [(entry.sequence, entry.waits_for) for entry in dump.entries] == [(7, (1,))]


def test_a_dump_as_json_is_the_same_again(tmp_path: Path) -> None:
    memory = bytearray(ring_bytes())
    recorder = Recorder(memory, 1)
    recorder.group(4, "pipeline", (1, 5))
    message = recorder.begin(4, 0, "isend", 1.0, peer=5, tag=0)
    assert message is not None
    message.sent(5, 10, 1.0)
    dump = read_ring(memory, "east-1", 2.0)
    dump.write(tmp_path / "rank-1.json")
    assert RankDump.read(tmp_path / "rank-1.json") == dump


def head(entries: str, rank: str = "0") -> str:
    """Write a dump as JSON around its entries."""
    return f'{{"schema": 1, "rank": {rank}, "host": "", "time_s": 1, "ended": "", "groups": [], "entries": {entries}}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "got list"),
        ('{"schema": 7}', "schema: got 7"),
        ('{"schema": 1}', "not a dump of a flight recorder"),
        ('{"schema": 1, "groups": [3]}', "not a dump of a flight recorder"),
        (head("[]", '"3 and more"'), "not a dump of a flight recorder: rank: got '3 and more'"),
        (
            head('[{"group": 0, "sequence": 1, "name": "isend", "state": "done", "scheduled_s": 0}]'),
            "got 'done'",
        ),
        (head('[{"group": 0, "sequence": 1, "name": "isend", "scheduled_s": 0}]'), "entries.0.state"),
        (
            head('[{"group": 0, "sequence": 1, "name": "isend", "state": "failed", "scheduled_s": "x"}]'),
            "entries.0.scheduled_s: got 'x', expected Input should be a valid number",
        ),
        (head("[]").replace("ended", "novel"), "no ended"),
        (head("[]").replace('"schema"', '"novel": 1, "schema"'), "novel: got 1"),
    ],
)
def test_what_is_no_dump_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rank-0.json"
    path.write_text(text)
    with pytest.raises(DumpError, match=rf"rank-0.json: .*{words}"):
        RankDump.read(path)


def test_memory_that_is_no_ring_is_refused() -> None:
    with pytest.raises(DumpError, match="expected a flight recorder"):
        read_ring(b"", "", 0.0)
    with pytest.raises(DumpError, match="magic"):
        read_ring(bytes(ring_bytes()), "", 0.0)
    with pytest.raises(DumpError, match="memory: got 10 bytes"):
        Recorder(bytearray(10), 0)
    memory = bytearray(ring_bytes())
    Recorder(memory, 0)
    with pytest.raises(DumpError, match="of a ring"):
        read_ring(memory[:-1], "", 0.0)
