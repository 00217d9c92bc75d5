"""What `summary.json` says of links: use, pauses, dropped packets, from their counters. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.records import COUNTERS, LinkKey
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology


class LinkStep(ResultModel):
    """What one direction of a WAN link carried in one step, and what became of its packets on the way."""

    bytes: int = Field(description="On the wire, headers included.")
    utilisation: float = Field(description="Of the rate, over the whole step.")
    packets: int = Field(description="That were put on the wire.")
    drops: int = Field(description="Packets for which its queue had no room.")
    losses: int = Field(description="Packets that its fibre lost at random.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked by ECN.")


class LinkUse(ResultModel):
    """One direction of a WAN link: what of it the steps used (medians), its longest queue, packets over all steps.

    Steps that lacked replicas, or in which one caught up, are left out of the medians; `steps` has all.

    Counters are read as each step begins and as it ends. By the real clock a reading is a few milliseconds off: what
    crosses in `beyond_s` is counted, too, so bytes are at most rate x beyond_s too many. Under the virtual clock they
    are exact.
    """

    a: str
    b: str
    plane: int
    direction: Literal["a_to_b", "b_to_a"]
    rate_bps: float
    bytes: int = Field(description="On the wire, headers included, per step.")
    utilisation: float = Field(description="Of the rate, over the whole step.")
    queue_peak_bytes: int = Field(description="The longest that a reading found.")
    drops: int = Field(description="Packets for which its queue had no room.")
    losses: int = Field(description="Packets that its fibre lost at random.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked by ECN.")
    beyond_s: float = Field(
        description="How long before a step's start and after its end the readings were, both together, at most."
    )
    steps: tuple[LinkStep, ...] = Field(description="Each step, in the order of the trials.")


class PlaneBalance(ResultModel):
    """How evenly the planes between two buildings were used: Jain's index, 1 if all alike, 1/n if one alone."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    planes: int
    jain_index: float


class DroppingPort(ResultModel):
    """A port inside a building, or a host's card, whose queue dropped packets while steps were measured."""

    place: str
    queue_bytes: int
    given: bool = Field(description="Whether the topology gives the queue's size; else it is the default.")
    drops: int = Field(description="Packets, over all steps; of a card over the whole run.")


def merge_dropping_ports(shards: Sequence[Iterable[DroppingPort]]) -> tuple[DroppingPort, ...]:
    """Of several shards: counts together, the worst first."""
    found: dict[str, DroppingPort] = {}
    for port in (port for ports in shards for port in ports):
        before = found.get(port.place)
        drops = port.drops + (before.drops if before else 0)
        found[port.place] = port.model_copy(update={"drops": drops})
    return tuple(sorted(found.values(), key=lambda port: -port.drops))


class PausedLink(ResultModel):
    """One direction of a link of a network that pauses, over a whole run, probes before it left out; sizes in bytes."""

    link: str
    direction: Literal["a_to_b", "b_to_a"]
    pauses: int = Field(description="That the switch at its far end sent.")
    paused_share: float = Field(description="Of the time, for which its sender had to stand.")
    buffer_bytes: int = Field(description="What that switch may hold of what comes; 0 where it never pauses.")
    buffer_peak_bytes: int = Field(description="What it held at most, since the network was built.")
    dropped: int = Field(description="Frames for which that was not enough.")


def merge_paused_links(shards: Sequence[Iterable[PausedLink]]) -> tuple[PausedLink, ...]:
    """Of several shards: counts together, the mean of shares, the fullest buffer."""
    found = []
    for rows in zip(*shards, strict=True):
        together = {
            "pauses": sum(row.pauses for row in rows),
            "paused_share": sum(row.paused_share for row in rows) / len(rows),
            "buffer_peak_bytes": max(row.buffer_peak_bytes for row in rows),
            "dropped": sum(row.dropped for row in rows),
        }
        found.append(rows[0].model_copy(update=together))
    return tuple(found)


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
