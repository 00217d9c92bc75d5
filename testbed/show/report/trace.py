"""Timeline and counters of a run in the Chrome trace format, for https://ui.perfetto.dev.

The format is "Trace Event Format" (Chromium project): complete events `ph: X` with `ts` and `dur` in microseconds, flow
events `ph: s` and `f` for messages, and counters `ph: C`. A process is a rank, a thread is a stream of operations.
Viewers require the events of one thread to nest, so concurrent collectives without their own streams are spread over as
many threads as needed. Perfetto uses whole nanoseconds and drops events that fail to nest by a single one, so both ends
of an event are rounded, not its length. It also draws an arrow from whichever end began first. A receive posted before
its send therefore has an inner event `arriving`, where the arrow ends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.measure.results.records import JsonObject, Sample, SocketReading, read_sockets
from testbed.measure.results.shards import SOCKETS
from testbed.plugins import short_name
from testbed.show.report.run_data import RECEIVE, WHOLE_STEP, RunData, is_communication
from testbed.show.report.svg import pack_rows
from testbed.show.report.utilisation import link_rates, utilisation_between

# Perfetto treats a thread with its process's number, or 0, as the process's main thread and merges both. So streams
# have numbers that no rank has.
STEP_STREAM = 100_000
COMPUTE_STREAM = STEP_STREAM + 1
FIRST_COMMUNICATION_STREAM = STEP_STREAM + 2


def trace_events(samples: Iterable[Sample]) -> list[JsonObject]:
    """Return the trace events of samples: names of processes and threads first, then one complete event per sample."""
    per_rank: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        per_rank[sample.rank].append(sample)
    events: list[JsonObject] = []
    ends: dict[tuple[Any, ...], list[list[JsonObject]]] = defaultdict(lambda: [[], []])
    for rank, own in sorted(per_rank.items()):
        communication = [s for s in own if is_communication(s.operation)]
        rows = _rows(communication)
        numbers = {row: FIRST_COMMUNICATION_STREAM + index for index, row in enumerate(sorted(set(rows)))}
        streams = {STEP_STREAM: "steps", COMPUTE_STREAM: "compute"}
        streams |= {number: row for row, number in numbers.items()}
        events.append(_naming("process_name", rank, 0, f"rank {rank}"))
        events.extend(_naming("thread_name", rank, stream, name) for stream, name in streams.items())
        events.extend(
            _complete(s, STEP_STREAM if s.operation == WHOLE_STEP else COMPUTE_STREAM)
            for s in own
            if not is_communication(s.operation)
        )
        for sample, row in sorted(zip(communication, rows, strict=True), key=lambda pair: pair[0].start_s):
            event = _complete(sample, numbers[row])
            events.append(event)
            if sample.message:
                key = sample.variant, sample.trial, sample.step, sample.message
                ends[key][sample.operation == RECEIVE].append(event)
    arrows = [pair for sends, receives in ends.values() for pair in zip(sends, receives, strict=False)]
    for number, (sent, received) in enumerate(arrows):
        into = received
        if received["ts"] < sent["ts"]:
            into = _arriving_part(received, sent["ts"])
            events.append(into)
        events.append(_arrow("s", number, sent))
        events.append(_arrow("f", number, into))
    return events


def _rows(samples: Sequence[Sample]) -> list[str]:
    """Return each sample's stream, or, without a stream, one of as many rows as needed."""
    loose = [index for index, sample in enumerate(samples) if not sample.stream]
    rows = pack_rows([(samples[index].start_s, samples[index].end_s) for index in loose])
    names = {index: f"communication {row:02}" for index, row in zip(loose, rows, strict=True)}
    return [sample.stream or names[index] for index, sample in enumerate(samples)]


def write_trace(data: RunData, path: Path) -> Path:
    """Write a run's trace with operations and counters, and return its path; raise BadResult if the run is broken."""
    events = [*trace_events(data.samples), *counter_events(data)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms"}
    # Perfetto does not decode escaped characters.
    path.write_text(json.dumps(trace, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
    return path


def _naming(kind: str, rank: int, stream: int, name: str) -> JsonObject:
    return {"ph": "M", "name": kind, "pid": rank, "tid": stream, "args": {"name": name}}


def _arriving_part(received: JsonObject, sent_us: float) -> JsonObject:
    """Return the part of a receive after its message was sent."""
    end = received["ts"] + received["dur"]
    start = min(sent_us, end)
    return {**received, "name": "arriving", "cat": "message", "ts": start, "dur": round(end - start, 3)}


def _arrow(phase: str, number: int, event: JsonObject) -> JsonObject:
    """Return one end of an arrow (a "flow") from a send to its arrival, bound to the event that starts there."""
    ends = {"name": "message", "cat": "message", "id": number, "pid": event["pid"], "tid": event["tid"]}
    return {"ph": phase, **ends, "ts": event["ts"], **({"bp": "e"} if phase == "f" else {})}


def _complete(sample: Sample, stream: int) -> JsonObject:
    start_us, end_us = round(sample.start_s * 1e6, 3), round(sample.end_s * 1e6, 3)
    args = {
        "variant": sample.variant,
        "trial": sample.trial,
        "step": sample.step,
        "bytes": round(sample.size_bytes),
    }
    return {
        "ph": "X",
        "name": sample.name or short_name(sample.operation),
        "cat": short_name(sample.operation),
        "pid": sample.rank,
        "tid": stream,
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "args": args | ({"message": sample.message} if sample.message else {}),
    }


Point = tuple[float, float]
"""A time in seconds, and the value from then on."""


def counter_events(data: RunData) -> list[JsonObject]:
    """Return utilisation, queue, drops and losses per WAN direction, and connections' windows; may raise BadResult."""
    if not data.samples:
        return []
    begin_s = min(sample.start_s for sample in data.samples)
    end_s = max(sample.end_s for sample in data.samples)
    after_ranks = max(sample.rank for sample in data.samples) + 1
    events: list[JsonObject] = []
    for process, (key, counters) in enumerate(data.links.items(), start=after_ranks):
        name = f"WAN {key.source} → {key.target}, plane {key.plane}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
        used = utilisation_between(counters, link_rates(data, key))
        tracks: dict[tuple[str, str], Iterable[Point]] = {
            ("utilisation", "%"): [(start, round(100 * share, 3)) for start, _, share in used],
            ("queue", "bytes"): zip(counters.times_s, map(round, counters.queue_bytes), strict=True),
            ("drops", "packets"): zip(counters.times_s, counters.drops, strict=True),
            ("losses", "packets"): zip(counters.times_s, counters.losses, strict=True),
        }
        for (track, unit), points in tracks.items():
            events.extend(_counters(process, track, unit, value_changes(points, begin_s, end_s)))
    for reading, points in window_points(read_sockets(data.run_dir / SOCKETS, data.scale)):
        name = f"window to rank {reading.peer}"
        name += f", channel {reading.channel}" if reading.channel else ""
        name += f", class {reading.dscp}" if reading.dscp else ""
        events.extend(_counters(reading.rank, name, "segments", value_changes(points, begin_s, end_s)))
    return events


def value_changes(points: Iterable[Point], begin_s: float, end_s: float) -> list[Point]:
    """Keep the points at which the value changes, from `begin_s` to `end_s`, starting with the value at `begin_s`."""
    found: list[Point] = []
    for moment_s, value in points:
        if moment_s <= begin_s:
            found = [(begin_s, value)]
        elif moment_s <= end_s and (not found or found[-1][1] != value):
            found.append((moment_s, value))
    return found


def window_points(readings: Iterable[SocketReading]) -> Iterator[tuple[SocketReading, list[Point]]]:
    """Yield, for each connection whose window changed, one of its readings, and its window in segments over time."""
    own: dict[tuple[int, ...], list[SocketReading]] = defaultdict(list)
    for reading in readings:
        own[reading.rank, reading.peer, reading.channel, reading.dscp].append(reading)
    for _, found in sorted(own.items()):
        if len({reading.window_segments for reading in found}) > 1:
            yield found[0], [(reading.time_s, reading.window_segments) for reading in found]


def _counters(process: int, name: str, unit: str, points: Iterable[Point]) -> Iterator[JsonObject]:
    """Yield counter events; viewers show name and unit together, as in "queue bytes"."""
    for moment_s, value in points:
        yield {
            "ph": "C",
            "name": name,
            "pid": process,
            "ts": round(moment_s * 1e6, 3),
            "args": {unit: value},
        }
