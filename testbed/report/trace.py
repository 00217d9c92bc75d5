"""Timeline of a run in the Chrome trace format, for https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Chromium project), complete events `ph: X` with `ts` and `dur` in microseconds.
A process is a rank, a thread is a stream of operations. Viewers need the events of one thread to nest, so
collectives that are in flight together are spread over as many communication streams as there are at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed.report.data import COMMUNICATION, WHOLE_STEP, JsonObject, Sample

STEP_STREAM = 0
COMPUTE_STREAM = 1
FIRST_COMMUNICATION_STREAM = 2


def pack_lanes(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The lane of each `(start, end)` so that no two intervals of a lane overlap; as few lanes as possible.

    Intervals are taken by their start; lanes count from 0 and the result has the order of `intervals`.
    """
    lanes = [0] * len(intervals)
    lane_ends: list[float] = []
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        lane = next((i for i, busy_until in enumerate(lane_ends) if busy_until <= start), len(lane_ends))
        if lane == len(lane_ends):
            lane_ends.append(end)
        lane_ends[lane] = end
        lanes[index] = lane
    return lanes


def trace_events(samples: Iterable[Sample]) -> list[JsonObject]:
    """Trace events for `samples`: names of processes and threads first, then one complete event a sample."""
    per_rank: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        per_rank[sample.rank].append(sample)
    events: list[JsonObject] = []
    for rank, own in sorted(per_rank.items()):
        communication = [s for s in own if s.operation in COMMUNICATION]
        lanes = pack_lanes([(s.start_s, s.end_s) for s in communication])
        streams = {STEP_STREAM: "steps", COMPUTE_STREAM: "compute"}
        streams |= {FIRST_COMMUNICATION_STREAM + lane: f"communication {lane}" for lane in sorted(set(lanes))}
        events.append(_naming("process_name", rank, 0, f"rank {rank}"))
        events.extend(_naming("thread_name", rank, stream, name) for stream, name in streams.items())
        events.extend(
            _complete(s, STEP_STREAM if s.operation == WHOLE_STEP else COMPUTE_STREAM)
            for s in own
            if s.operation not in COMMUNICATION
        )
        events.extend(
            _complete(s, FIRST_COMMUNICATION_STREAM + lane)
            for s, lane in zip(communication, lanes, strict=True)
        )
    return events


def write_trace(samples: Iterable[Sample], path: Path) -> Path:
    """Writes the trace of `samples` to `path`, and returns it."""
    trace = {"traceEvents": trace_events(samples), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")
    return path


def _naming(kind: str, rank: int, stream: int, name: str) -> JsonObject:
    return {"ph": "M", "name": kind, "pid": rank, "tid": stream, "args": {"name": name}}


def _complete(sample: Sample, stream: int) -> JsonObject:
    return {
        "ph": "X",
        "name": sample.name or sample.operation,
        "cat": sample.operation,
        "pid": sample.rank,
        "tid": stream,
        "ts": round(sample.start_s * 1e6, 3),
        "dur": round(sample.duration_s * 1e6, 3),
        "args": {
            "variant": sample.variant,
            "trial": sample.trial,
            "step": sample.step,
            "bytes": round(sample.size_bytes),
        },
    }
