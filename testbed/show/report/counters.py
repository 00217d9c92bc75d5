"""Counters of a run for its trace: what WAN links carried, held and dropped, and the windows of ranks' connections.

Trace Event Format, events `ph: C`: a value that holds until the next one. A direction of a link is a process of its
own, after the ranks; a connection is a counter of its rank. Only what changes is written, from the first measured step
on: before it are probes and warm-ups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from testbed.measure.results.records import JsonObject, SocketReading, read_sockets
from testbed.measure.results.shards import SOCKETS
from testbed.show.report.data import RunData
from testbed.show.report.utilisation import link_rates, used_between

Point = tuple[float, float]
"""A moment in seconds, and the value from then on."""


def counter_events(data: RunData) -> list[JsonObject]:
    """Of each WAN direction utilisation, queue, drops, losses; of each connection its window. BadResult."""
    if not data.samples:
        return []
    begin_s = min(sample.start_s for sample in data.samples)
    end_s = max(sample.end_s for sample in data.samples)
    after_ranks = max(sample.rank for sample in data.samples) + 1
    events: list[JsonObject] = []
    for process, (key, counters) in enumerate(data.links.items(), start=after_ranks):
        name = f"WAN {key.source} → {key.target}, plane {key.plane}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
        used = used_between(counters, link_rates(data, key))
        tracks: dict[tuple[str, str], Iterable[Point]] = {
            ("utilisation", "%"): [(start, round(100 * share, 3)) for start, _, share in used],
            ("queue", "bytes"): zip(counters.times_s, map(round, counters.queue_bytes), strict=True),
            ("drops", "packets"): zip(counters.times_s, counters.drops, strict=True),
            ("losses", "packets"): zip(counters.times_s, counters.losses, strict=True),
        }
        for (track, unit), points in tracks.items():
            events.extend(_counters(process, track, unit, changes(points, begin_s, end_s)))
    for reading, points in window_points(read_sockets(data.run_dir / SOCKETS, data.scale)):
        name = f"window to rank {reading.peer}"
        name += f", channel {reading.channel}" if reading.channel else ""
        name += f", class {reading.dscp}" if reading.dscp else ""
        events.extend(_counters(reading.rank, name, "segments", changes(points, begin_s, end_s)))
    return events


def changes(points: Iterable[Point], begin_s: float, end_s: float) -> list[Point]:
    """Those of `points`, which are in order, whose value is new, from begin_s to end_s; at begin_s what held then."""
    found: list[Point] = []
    for moment_s, value in points:
        if moment_s <= begin_s:
            found = [(begin_s, value)]
        elif moment_s <= end_s and (not found or found[-1][1] != value):
            found.append((moment_s, value))
    return found


def window_points(readings: Iterable[SocketReading]) -> Iterator[tuple[SocketReading, list[Point]]]:
    """For each connection whose window ever changed a reading of it, and its window in segments along the run."""
    own: dict[tuple[int, ...], list[SocketReading]] = defaultdict(list)
    for reading in readings:
        own[reading.rank, reading.peer, reading.channel, reading.dscp].append(reading)
    for _, found in sorted(own.items()):
        if len({reading.window_segments for reading in found}) > 1:
            yield found[0], [(reading.time_s, reading.window_segments) for reading in found]


def _counters(process: int, name: str, unit: str, points: Iterable[Point]) -> Iterator[JsonObject]:
    """Viewers name a counter by both: "queue bytes"."""
    for moment_s, value in points:
        yield {
            "ph": "C",
            "name": name,
            "pid": process,
            "ts": round(moment_s * 1e6, 3),
            "args": {unit: value},
        }
