"""Link figures of `summary.json`, computed from counters: utilisation, pauses, dropped packets. Pure functions."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from pydantic import Field

from testbed.measure.fidelity.link_invariants import DroppingPort
from testbed.measure.result_model import ResultModel
from testbed.measure.results.records import COUNTERS, LinkKey
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology


class LinkStep(ResultModel):
    """Traffic of one direction of a WAN link in one step."""

    bytes: int = Field(description="On the wire, headers included.")
    utilisation: float = Field(description="Share of the rate, over the whole step.")
    packets: int = Field(description="Packets put on the wire.")
    drops: int = Field(description="Packets dropped by the full queue.")
    losses: int = Field(description="Packets lost at random on the fibre.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked with ECN.")


class LinkUse(ResultModel):
    """Usage of one direction of a WAN link: medians per step for bytes and utilisation, totals for packet counts.

    Steps in which a replica was missing or catching up are left out of the medians; `steps` lists all.

    Counters are read at the start and at the end of each step. On the real clock, a reading is a few milliseconds early
    or late. Traffic during these `beyond_s` is also counted, so bytes are at most rate x beyond_s too high. Under the
    virtual clock they are exact.
    """

    a: str
    b: str
    plane: int
    direction: Literal["a_to_b", "b_to_a"]
    rate_bps: float
    bytes: int = Field(description="On the wire, headers included, per step.")
    utilisation: float = Field(description="Share of the rate, over the whole step.")
    queue_peak_bytes: int = Field(description="Longest queue in any reading.")
    drops: int = Field(description="Packets dropped by the full queue.")
    losses: int = Field(description="Packets lost at random on the fibre.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked with ECN.")
    beyond_s: float = Field(
        description="Time between the readings and the step's edges, start and end added: the largest of all steps."
    )
    steps: tuple[LinkStep, ...] = Field(description="Every step, in trial order.")


class PlaneBalance(ResultModel):
    """The balance of traffic over the parallel planes between two buildings."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    planes: int
    jain_index: float = Field(
        description="Jain's fairness index of the utilisation: 1 if all planes are used alike, 1/n if only one is used."
    )


def merge_dropping_ports(shards: Sequence[Iterable[DroppingPort]]) -> tuple[DroppingPort, ...]:
    """Merge the ports of several shards: sum the drops of each port and sort the worst first."""
    found: dict[str, DroppingPort] = {}
    for port in (port for ports in shards for port in ports):
        before = found.get(port.place)
        drops = port.drops + (before.drops if before else 0)
        found[port.place] = port.model_copy(update={"drops": drops})
    return tuple(sorted(found.values(), key=lambda port: -port.drops))


class PausedLink(ResultModel):
    """One direction of a link in a network with pause frames, over the whole run but without the initial probes."""

    link: str
    direction: Literal["a_to_b", "b_to_a"]
    pauses: int = Field(description="Pause frames sent by the switch at the receiving end.")
    paused_share: float = Field(description="Share of the time for which the sender was paused.")
    buffer_bytes: int = Field(
        description="Ingress buffer of the receiving switch for this link; 0 if it never pauses."
    )
    buffer_peak_bytes: int = Field(description="Highest buffer occupancy since the network was built.")
    dropped: int = Field(description="Frames dropped by the full buffer.")


def merge_paused_links(shards: Sequence[Iterable[PausedLink]]) -> tuple[PausedLink, ...]:
    """Merge the links of several shards: sum counts, average shares, and keep the largest buffer occupancy."""
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
TIME_S = itemgetter("time_s")
Span = tuple[float, float]
"""Start and end of a step, on the clock of the records."""


@dataclass(frozen=True)
class StepTraffic:
    """Traffic of one direction of a WAN link in one step, in emulated bytes and packets.

    It is the difference of two readings: the last one at or before the step's start and the first one after its end. So
    it counts all traffic of the step, plus traffic during `beyond_s` outside it, which is 0 under the virtual clock.
    `packets` counts all packets that left the queue, whether lost on the fibre or not.
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
    """The readings of one direction of a WAN link, in the format of `links.jsonl` and in time order."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._edges: list[Record] = []  # readings at the start or end of a step

    def add(self, record: Record) -> None:
        """Append a reading. Readings must be added in time order."""
        self._records.append(record)
        if record.get("edge"):
            self._edges.append(record)

    def during(self, step: Span) -> StepTraffic:
        """Return the traffic of one step."""
        start_s, end_s = step
        records = self._records
        before = records[max(0, bisect_right(records, start_s, key=TIME_S) - 1)]
        # a periodic reading after the end may have begun before it, so a reading at a step's edge is preferred
        edges = self._edges[bisect_left(self._edges, end_s, key=TIME_S) :]
        last = bisect_left(records, end_s, key=TIME_S)
        after = edges[0] if edges else records[min(len(records) - 1, last)]
        within = records[bisect_left(records, start_s, key=TIME_S) : bisect_right(records, end_s, key=TIME_S)]
        return StepTraffic(
            **{name: after[name] - before[name] for name in COUNTERS},
            queue_peak_bytes=max((record["queue_bytes"] for record in within), default=0),
            beyond_s=max(0.0, start_s - before["time_s"]) + max(0.0, after["time_s"] - end_s),
        )


def group_by_link(records: Iterable[Record]) -> dict[LinkKey, LinkReadings]:
    """Group the records of `links.jsonl`, in file order, by direction of a WAN link."""
    found: dict[LinkKey, LinkReadings] = {}
    for record in records:
        found.setdefault(LinkKey.of(record), LinkReadings()).add(record)
    return found


def summarise_wan_links(
    topology: Topology,
    readings: Mapping[LinkKey, LinkReadings],
    steps: Sequence[Span],
    scale: Scale,
    whole: Collection[int],
) -> list[dict[str, Any]]:
    """Return the use of every WAN direction in real units, as fields of `LinkUse`.

    Bytes and utilisation (bytes over rate x step time) are medians over the steps with an index in `whole`. Drops,
    losses and marks are sums over all steps.
    """
    rows = []
    for link in topology.wan:
        for direction in ("a_to_b", "b_to_a"):
            rate_bps = getattr(link, direction).rate_bps
            link_readings = readings[LinkKey(link.a, link.b, link.plane, direction)]
            traffic = [link_readings.during(step) for step in steps]
            shares = [
                one.bytes * 8 / (rate_bps * (end_s - start_s))
                for one, (start_s, end_s) in zip(traffic, steps, strict=True)
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
                        scale.real_bytes(statistics.median(traffic[step].bytes for step in whole))
                    ),
                    "utilisation": statistics.median(shares[step] for step in whole),
                    "queue_peak_bytes": round(scale.real_bytes(max(one.queue_peak_bytes for one in traffic))),
                    **{name: sum(getattr(one, name) for one in traffic) for name in packets},
                    "beyond_s": scale.real_s(max(one.beyond_s for one in traffic)),
                    "steps": [
                        {
                            "bytes": round(scale.real_bytes(one.bytes)),
                            "utilisation": share,
                            **{name: getattr(one, name) for name in ("packets", *packets)},
                        }
                        for one, share in zip(traffic, shares, strict=True)
                    ],
                }
            )
    return rows


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal (or all zero), 1/n if one of n shares is everything.

    Jain, Chiu and Hawe 1984, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def plane_balance(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Return Jain's index of the planes' utilisation, for each direction between buildings with several planes."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        link = LinkKey.of(row)
        groups.setdefault((link.source, link.target), []).append(row["utilisation"])
    return [
        {"from": source, "to": target, "planes": len(shares), "jain_index": jain_index(shares)}
        for (source, target), shares in groups.items()
        if len(shares) > 1
    ]
