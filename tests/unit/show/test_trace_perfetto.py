"""`trace.json` as Perfetto has it: asked by SQL, of its own trace processor."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.show.report.run_data import load_run
from testbed.show.report.trace import write_trace
from tests.perfetto import rows, trace_processor
from tests.unit.show.report_run import BUCKETS, SyntheticRun

LEFT_OUT = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
COUNTERS = """
    select process.name as process, track.name as track, count(*) as points, min(value) as least, max(value) as most
    from counter join process_counter_track track on counter.track_id = track.id join process using (upid)
    group by 1, 2"""
STREAMS = """
    include perfetto module slices.with_context;
    select pid, group_concat(thread_name || '=' || n) as names
    from (select pid, thread_name, count(*) as n from thread_slice group by 1, 2) group by 1"""
ARROWS = """
    include perfetto module slices.with_context;
    select sent.name as sent, came.name as came, sender.pid as sender, receiver.pid as receiver,
        sent.ts as sent_ns, came.ts as came_ns
    from flow join thread_slice sent on sent.id = slice_out join thread_slice came on came.id = slice_in
    join process sender on sender.upid = sent.upid join process receiver on receiver.upid = came.upid
    order by sent.ts"""


def test_perfetto_reads_all_of_a_run(tmp_path: Path) -> None:
    run = SyntheticRun(trials=1, exposed_s={"ring": 0.4})
    folder = run.write(tmp_path / "run")
    # rank 0 sends twice to rank 5, which waited for the first, and came late to the second
    ends = [
        ("send", 0, 3.10, 3.12, 1),
        ("recv", 5, 3.05, 3.20, 1),
        ("send", 0, 3.30, 3.35, 2),
        ("recv", 5, 3.32, 3.45, 2),
    ]
    with (folder / "samples.jsonl").open("a") as file:
        for operation, rank, start_s, end_s, tag in ends:
            record = {"variant": "ring", "trial": 0, "step": 0, "rank": rank, "operation": operation}
            record |= {"name": operation, "start_s": start_s, "end_s": end_s, "bytes": 10}
            file.write(json.dumps({**record, "message": f"0>5/{tag}", "stream": operation}) + "\n")
    connection = {"rank": 0, "peer": 5, "dscp": 0, "channel": 1, "rtt_s": 0.005, "retransmits": 0}
    (folder / "sockets.jsonl").write_text(
        "".join(
            json.dumps({**connection, "time_s": when_s, "congestion_window_segments": window}) + "\n"
            for when_s, window in [(3.1, 10), (3.2, 40), (3.3, 20)]
        )
    )
    data = load_run(folder)
    trace = write_trace(data, tmp_path / "trace.json")
    with trace_processor(trace, tmp_path / "s") as perfetto:
        assert rows(perfetto, LEFT_OUT) == []
        (slices,) = rows(perfetto, "select count(*) from slice")
        assert slices == (run.ranks * (4 + 2 * BUCKETS) + len(ends) + 1,)  # and one part `arriving`
        (longest,) = rows(
            perfetto, "select max(dur) from slice where name in ('ring', 'hierarchical', 'step')"
        )
        assert abs(longest[0] - 1e9 * max(s.duration_s for s in data.samples if s.operation == "step")) <= 1
        streams = rows(perfetto, STREAMS)
        whole = {rank: names for rank, names in streams if "steps=1" in names.split(",")}
        assert set(whole) == set(range(run.ranks))  # each rank's step on a thread of its own
        assert all(f"compute={3 + BUCKETS}" in names.split(",") for names in whole.values())
        counters = {row[:2]: row[2:] for row in rows(perfetto, COUNTERS)}
        assert counters["rank 0", "window to rank 5, channel 1 segments"] == (3, 10, 40)
        link = "WAN east → west, plane 0"
        assert {name for process, name in counters if process == link} == {
            "utilisation %",
            "queue bytes",
            "drops packets",
            "losses packets",
        }
        assert counters[link, "utilisation %"][2] > 0
        arrows = rows(perfetto, ARROWS)
        assert [arrow[:4] for arrow in arrows] == [("send", "arriving", 0, 5), ("send", "recv", 0, 5)]
        assert [arrow[4:] for arrow in arrows] == [
            (3_100_000_000, 3_100_000_000),
            (3_300_000_000, 3_320_000_000),
        ]


def test_a_nanosecond_that_overlaps_is_told(tmp_path: Path) -> None:
    """What the whole run is held against above can be seen to fail."""
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 1}
    events = [{**event, "ts": 1.0, "dur": 2.001}, {**event, "ts": 3.0, "dur": 5.0}]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    with trace_processor(trace, tmp_path / "s") as perfetto:
        assert [name for name, _ in rows(perfetto, LEFT_OUT)] == ["slice_drop_overlapping_complete_event"]
