"""What steps used of the WAN's links, by counters that were read at the steps' edges. Pure: no clock, no files."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.results.records import COUNTERS, LinkKey
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology

Record = Mapping[str, Any]
Span = tuple[float, float]
"""When a step began and ended, in the records' own time."""


@dataclass(frozen=True)
class StepTraffic:
    """What one direction of a WAN link carried, lost, dropped and marked in one step; emulated bytes, packets.

    Everything between two readings: the last one that was taken before the step began, or as it did, and the first one
    taken when it had ended. Nothing that crossed during the step is missing; what crossed in `beyond_s` beside it is
    counted, too. Under the virtual clock that is 0. packets: what came past the queue's end, lost on the fibre or not.
    """

    bytes: int
    packets: int
    drops: int
    losses: int
    cut_losses: int
    marks: int
    queue_peak_bytes: float
    beyond_s: float


class LinkReadings:
    """The readings of one direction of a WAN link, as `links.jsonl` has them."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._records: list[Record] = []
        self._edges: list[int] = []  # which of them were taken at a step's edge
        self._edge_times_s: list[float] = []

    def add(self, record: Record) -> None:
        """Note a reading that was taken later than all before."""
        if record.get("edge"):
            self._edges.append(len(self._records))
            self._edge_times_s.append(record["time_s"])
        self._times_s.append(record["time_s"])
        self._records.append(record)

    def during(self, step: Span) -> StepTraffic:
        """What crossed in a step."""
        start_s, end_s = step
        first, last = self._first(start_s), self._last(end_s)
        before, after = self._records[first], self._records[last]
        within = range(bisect_left(self._times_s, start_s), bisect_right(self._times_s, end_s))
        return StepTraffic(
            **{name: after[name] - before[name] for name in COUNTERS},
            queue_peak_bytes=max((self._records[index]["queue_bytes"] for index in within), default=0),
            beyond_s=max(0.0, start_s - before["time_s"]) + max(0.0, after["time_s"] - end_s),
        )

    def _first(self, start_s: float) -> int:
        """The last reading that was taken by then; the very first one if none was."""
        return max(0, bisect_right(self._times_s, start_s) - 1)

    def _last(self, end_s: float) -> int:
        """The first reading that was begun after that; the very last one if none was.

        One that goes by the clock may have been begun before: where there is one of an edge, that is taken.
        """
        edge = bisect_left(self._edge_times_s, end_s)
        if edge < len(self._edges):
            return self._edges[edge]
        return min(len(self._times_s) - 1, bisect_left(self._times_s, end_s))


def by_link(records: Iterable[Record]) -> dict[LinkKey, LinkReadings]:
    """The readings of each direction of a WAN link; records: as `links.jsonl` has them, in its order."""
    found: dict[LinkKey, LinkReadings] = {}
    for record in records:
        found.setdefault(LinkKey.of(record), LinkReadings()).add(record)
    return found


def wan_use(
    topology: Topology,
    readings: Mapping[LinkKey, LinkReadings],
    steps: Sequence[Span],
    scale: Scale,
    whole: Collection[int],
) -> list[dict[str, Any]]:
    """Return what steps used of every WAN direction, as `testbed.measure.results.result.LinkUse` has it, in real units.

    Bytes and utilisation are medians over those steps, by their place, that are `whole`; utilisation is bytes over rate
    x step time. Drops, losses and marks are sums over all steps.
    """
    rows = []
    for link in topology.wan:
        for direction in ("a_to_b", "b_to_a"):
            rate_bps = getattr(link, direction).rate_bps
            own = readings[LinkKey(link.a, link.b, link.plane, direction)]
            crossed = [own.during(step) for step in steps]
            shares = [
                count.bytes * 8 / (rate_bps * (end_s - start_s))
                for count, (start_s, end_s) in zip(crossed, steps, strict=True)
            ]
            packets = ("drops", "losses", "cut_losses", "marks")
            rows.append(
                {
                    "a": link.a,
                    "b": link.b,
                    "plane": link.plane,
                    "direction": direction,
                    "rate_bps": scale.real_bps(rate_bps),
                    "bytes": round(
                        scale.real_bytes(statistics.median(crossed[step].bytes for step in whole))
                    ),
                    "utilisation": statistics.median(shares[step] for step in whole),
                    "queue_peak_bytes": round(
                        scale.real_bytes(max(count.queue_peak_bytes for count in crossed))
                    ),
                    **{name: sum(getattr(count, name) for count in crossed) for name in packets},
                    "beyond_s": scale.real_s(max(count.beyond_s for count in crossed)),
                    "steps": [
                        {
                            "bytes": round(scale.real_bytes(count.bytes)),
                            "utilisation": share,
                            **{name: getattr(count, name) for name in ("packets", *packets)},
                        }
                        for count, share in zip(crossed, shares, strict=True)
                    ],
                }
            )
    return rows


def link_ends(row: Record) -> tuple[str, str]:
    """From which building to which a direction of a link goes."""
    return (row["a"], row["b"]) if row["direction"] == "a_to_b" else (row["b"], row["a"])


def jain_index(shares: Sequence[float]) -> float:
    """How evenly something is spread: 1 if all have the same, 1/n if one has all; 1 for nothing.

    Jain, Chiu and Hawe 1984, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def plane_balance(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Jain's index of the utilisation of parallel planes, for each pair of buildings that has several, by direction."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault(link_ends(row), []).append(row["utilisation"])
    return [
        {"from": here, "to": there, "planes": len(shares), "jain_index": jain_index(shares)}
        for (here, there), shares in groups.items()
        if len(shares) > 1
    ]
