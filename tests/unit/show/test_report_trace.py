from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.comm.collectives import COLLECTIVES
from testbed.measure.results.records import Sample, read_samples
from testbed.show.report.run_data import is_communication, load_run
from testbed.show.report.svg import pack_rows
from testbed.show.report.trace import (
    COMPUTE_STREAM,
    FIRST_COMMUNICATION_STREAM,
    STEP_STREAM,
    counter_events,
    trace_events,
    value_changes,
    write_trace,
)
from testbed.spec.scale import Scale
from testbed.workload.send_tokens import TOKEN
from tests.unit.show.report_run import BUCKETS, SyntheticRun

INTERVALS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 30)).map(lambda pair: (float(pair[0]), float(sum(pair)))),
    max_size=30,
)


def sample(operation: str, start_s: float, end_s: float, rank: int = 0, name: str = "") -> Sample:
    return Sample("ring", 2, 1, rank, operation, name, start_s, end_s, 400.0)


def test_event_has_microseconds_rank_and_stream() -> None:
    events = trace_events([sample("forward", 1.5, 1.75, rank=3), sample("step", 1.5, 2.0, rank=3)])
    complete = [event for event in events if event["ph"] == "X"]
    assert complete[0] == {
        "ph": "X",
        "name": "forward",
        "cat": "forward",
        "pid": 3,
        "tid": COMPUTE_STREAM,
        "ts": 1_500_000.0,
        "dur": 250_000.0,
        "args": {"variant": "ring", "trial": 2, "step": 1, "bytes": 400},
    }
    assert complete[1]["tid"] == STEP_STREAM
    names = {(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"}
    assert names == {("process_name", "rank 3"), ("thread_name", "steps"), ("thread_name", "compute")}


def test_whole_run_round_trips_through_the_file(tmp_path: Path) -> None:
    run = SyntheticRun(trials=2)
    data = load_run(run.write(tmp_path))
    trace = json.loads(write_trace(data, tmp_path / "trace.json").read_text())
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    # forward, wait, optimizer, step; a backward and an all-reduce per bucket.
    assert len(complete) == 2 * 2 * run.ranks * (4 + 2 * BUCKETS)
    assert {event["pid"] for event in complete} == set(range(run.ranks))


def test_all_reduces_in_flight_together_have_streams_of_their_own(tmp_path: Path) -> None:
    samples = read_samples(SyntheticRun(trials=1).write(tmp_path) / "samples.jsonl", Scale())
    streams: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in trace_events(samples):
        if event["ph"] == "X" and event["cat"] == "all_reduce":
            streams[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(streams) > 8, "the synthetic run has overlapping all-reduces"
    for spans in streams.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 0.002


def test_operations_of_a_plan_have_their_streams_rows() -> None:
    def on(stream: str, start_s: float) -> Sample:
        return sample("send", start_s, start_s + 1.0)._replace(stream=stream)

    events = trace_events(
        [on("SEND_F 2", 0.0), on("SEND_B 0", 0.5), on("SEND_F 2", 1.0), sample("recv", 0.0, 9.0)]
    )
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    rows = [(names[event["tid"]], event["ts"]) for event in events if event["ph"] == "X"]
    assert sorted(rows) == [
        ("SEND_B 0", 5e5),
        ("SEND_F 2", 0.0),
        ("SEND_F 2", 1e6),
        ("communication 00", 0.0),
    ]


def test_collectives_of_the_registry_and_of_files_are_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(
        map(is_communication, (*COLLECTIVES, "/home/me/mine.py:neighbour_exchange", "send", "recv", TOKEN))
    )
    assert not any(map(is_communication, ("forward", "wait", "step", "installed_one")))
    monkeypatch.setitem(COLLECTIVES._known, "installed_one", COLLECTIVES["all_gather"])
    assert is_communication("installed_one")
    events = trace_events([sample("/home/me/mine.py:neighbour_exchange", 0.0, 1.0)])
    (complete,) = (event for event in events if event["ph"] == "X")
    assert complete["name"] == complete["cat"] == "mine.py:neighbour_exchange"
    assert complete["tid"] == FIRST_COMMUNICATION_STREAM


def test_neighbours_meet_exactly_in_whole_nanoseconds() -> None:
    # each length rounded by itself would end the first a nanosecond after the second begins
    first, second = sample("backward", 1e-3, 2.0005e-6 + 1e-3), sample("backward", 2.0005e-6 + 1e-3, 1.1e-3)
    one, other = (event for event in trace_events([first, second]) if event["ph"] == "X")
    assert round(1000 * (one["ts"] + one["dur"])) == round(1000 * other["ts"])


def test_an_arrow_ends_in_what_began_after_its_send() -> None:
    early = sample("recv", 1.0, 5.0, rank=1)._replace(message="0>1/7")
    events = trace_events([sample("send", 3.0, 3.5)._replace(message="0>1/7"), early])
    arriving = next(event for event in events if event["name"] == "arriving")
    assert (arriving["pid"], arriving["ts"], arriving["dur"]) == (1, 3e6, 2e6)
    arrow = [(event["ph"], event["pid"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrow == [("s", 0, 3e6), ("f", 1, 3e6)]
    late = sample("recv", 3.2, 5.0, rank=1)._replace(message="0>1/7")
    events = trace_events([sample("send", 3.0, 3.5)._replace(message="0>1/7"), late])
    assert [(event["ph"], event["ts"]) for event in events if event["ph"] in "sf"] == [
        ("s", 3e6),
        ("f", 3.2e6),
    ]
    assert not [event for event in events if event["name"] == "arriving"]


def test_counters_hold_what_changes_during_the_steps() -> None:
    points = [(0.0, 0.0), (1.0, 5.0), (2.5, 5.0), (3.0, 6.0), (4.0, 6.0), (9.0, 7.0)]
    assert value_changes(points, 2.0, 8.0) == [(2.0, 5.0), (3.0, 6.0)]
    assert value_changes(points, 3.0, 9.0) == [(3.0, 6.0), (9.0, 7.0)]
    assert value_changes([], 0.0, 1.0) == []


def test_links_have_processes_of_their_own_and_connections_their_ranks(tmp_path: Path) -> None:
    run = SyntheticRun(trials=1)
    folder = run.write(tmp_path)
    connection = {
        "rank": 2,
        "peer": 5,
        "dscp": 0,
        "channel": 0,
        "rtt_s": 0.005,
        "retransmits": 0,
        "bytes_acked": 1,
    }
    windows = [(3.1, 10), (3.2, 20), (3.3, 20), (3.4, 14)]
    lines = [{**connection, "time_s": when, "congestion_window_segments": size} for when, size in windows]
    steady = [{**line, "peer": 6, "congestion_window_segments": 10} for line in lines]
    (folder / "sockets.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines + steady))
    data = load_run(folder)
    events = counter_events(data)
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names[run.ranks] == "WAN east → west, plane 0"
    assert set(names) == {run.ranks + index for index in range(4)}
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters if event["pid"] >= run.ranks} == {
        "utilisation",
        "queue",
        "drops",
        "losses",
    }
    begin_us = min(one.start_s for one in data.samples) * 1e6
    assert min(event["ts"] for event in counters) >= round(begin_us, 3)
    window = [(event["ts"], event["args"]) for event in counters if event["pid"] == 2]
    assert window == [(3.1e6, {"segments": 10}), (3.2e6, {"segments": 20}), (3.4e6, {"segments": 14})]
    assert not [event for event in counters if event["name"] == "window to rank 6"]


@given(INTERVALS)
def test_lanes_never_overlap_and_are_as_few_as_possible(intervals: list[tuple[float, float]]) -> None:
    rows = pack_rows(intervals)
    for i, first in enumerate(intervals):
        for j, second in enumerate(intervals[:i]):
            if rows[i] == rows[j]:
                assert first[1] <= second[0] or second[1] <= first[0]
    in_flight = [sum(start <= moment < end for start, end in intervals) for moment, _ in intervals]
    assert len(set(rows)) == max(in_flight, default=0)


def test_dilated_times_and_scaled_bytes_come_back_real(tmp_path: Path) -> None:
    record = {"variant": "ring", "trial": 0, "step": 0, "rank": 0, "operation": "step", "name": "step"}
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({**record, "start_s": 2.0, "end_s": 4.0, "bytes": 10}) + "\n")
    (read,) = read_samples(path, Scale(size_scale=100, time_dilation=2))
    assert (read.start_s, read.end_s, read.size_bytes) == (1.0, 2.0, 1000.0)
    assert Scale(100, 2).real_bps(5) == 1000
