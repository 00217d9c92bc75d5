"""One variant of a run, measured again from its raw files, in figures of the modelled network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.oracle.arithmetic import median
from tests.oracle.flops import StepOfTraining, has_unlike_hosts, step_of
from tests.oracle.quantities import quantity
from tests.oracle.raw import RawRun, Record, Step, get

Link = tuple[str, str, int, str]
"""Its ends, its plane, and its direction."""


COUNTERS = ("bytes", "packets", "drops", "losses", "cut_losses", "marks")


@dataclass(frozen=True)
class LinkUse:
    """One direction of a WAN link, of the modelled network: what it carried in each step, what became of packets.

    each: by counter, of all steps in their order; bytes are real ones. beyond_s: how far readings were from edges.
    whole: places of the steps that medians are of.
    """

    rate_bps: float
    times_s: Sequence[float]
    each: Mapping[str, Sequence[float]]
    queue_peak_bytes: float
    beyond_s: float
    whole: Sequence[int]

    @cached_property
    def shares(self) -> list[float]:
        """Of the rate, in each step."""
        return [
            8 * size / (self.rate_bps * time_s)
            for size, time_s in zip(self.each["bytes"], self.times_s, strict=True)
        ]

    @cached_property
    def bytes(self) -> float:
        """Of a whole step, the median."""
        return median([self.each["bytes"][step] for step in self.whole])

    @cached_property
    def utilisation(self) -> float:
        """Of a whole step, the median."""
        return median([self.shares[step] for step in self.whole])

    def packets(self, cause: str) -> int:
        """Dropped, lost or marked ones in all steps."""
        return int(sum(self.each[cause]))


class MeasuredVariant:
    """What a variant's steps took and moved."""

    def __init__(self, run: RawRun, name: str) -> None:
        self.run, self.name = run, name
        self.steps = run.steps(name)
        self.settings = run.settings(name)
        hosts = {host["rank"]: host for host in run.manifest["fabric"]["hosts"] if host["rank"] is not None}
        self.ranks = len(hosts)
        self.hosts = [str(hosts[rank]["name"]) for rank in range(self.ranks)]
        self.buildings = [str(hosts[rank]["building"]) for rank in range(self.ranks)]

    @cached_property
    def times_s(self) -> list[float]:
        return [self.run.seconds(step.time_s) for step in self.steps]

    @cached_property
    def parts(self) -> list[Record]:
        """Networks that the variant was measured in, one after the other: from which trial on, by which seed."""
        clock, seed = self.run.manifest["clock"], self.run.scenario["seed"]
        own = [one for one in clock.get("parts", ()) if one["variant"] in (self.name, None)]
        return own or [{"first_trial": 0, "seed": seed}]

    def seed(self, step: Step) -> int:
        """Of the network that a step was measured in."""
        trial = step.parts[0]["trial"]
        return int([one["seed"] for one in self.parts if one["first_trial"] <= trial][-1])

    @cached_property
    def whole_steps(self) -> list[Step]:
        """Those in which all took part and nothing was made up for; all, where there are none."""
        whole = [step for step in self.steps if len(step.parts) == self.ranks and not step.disturbed]
        return whole or self.steps

    @property
    def middle(self) -> Step:
        """The step of median duration; of two in the middle the shorter one."""
        ordered = sorted(self.whole_steps, key=lambda step: step.time_s)
        return ordered[(len(ordered) - 1) // 2]

    @cached_property
    def compute_s(self) -> float:
        """Of the rank that computes most, the median over steps."""
        return median([self.run.seconds(max(step.computing_s.values())) for step in self.steps])

    @cached_property
    def exposed_s(self) -> float:
        """What of a step is not the computing of the rank that computes most, the median over steps."""
        return median([self.run.seconds(step.time_s - max(step.computing_s.values())) for step in self.steps])

    def moved(self, step: Step) -> tuple[float, float]:
        """Payload bytes that ranks sent inside buildings and between them."""
        inside = across = 0
        for (here, there), count in step.sent.items():
            if self.buildings[here] == self.buildings[there]:
                inside += count
            else:
                across += count
        return self.run.bytes(inside), self.run.bytes(across)

    @cached_property
    def links(self) -> dict[Link, LinkUse]:
        """Use of each direction of the WAN links that this variant's topology has."""
        found = {}
        for link, readings in self.run.links.items():
            if link not in self.rates:  # other variants may have other networks
                continue
            around = [_around(readings, step) for step in self.steps]
            each = {
                name: [float(after[name] - before[name]) for before, after in around] for name in COUNTERS
            }
            each["bytes"] = [self.run.bytes(size) for size in each["bytes"]]
            queue = [
                float(entry["queue_bytes"])
                for entry in readings
                for step in self.steps
                if step.start_s <= entry["time_s"] <= step.end_s
            ]
            beyond_s = [
                max(0.0, step.start_s - before["time_s"]) + max(0.0, after["time_s"] - step.end_s)
                for step, (before, after) in zip(self.steps, around, strict=True)
            ]
            found[link] = LinkUse(
                self.rates[link],
                self.times_s,
                each,
                self.run.bytes(max(queue, default=0.0)),
                self.run.seconds(max(beyond_s)),
                [place for place, step in enumerate(self.steps) if step in self.whole_steps],
            )
        return found

    @cached_property
    def rates(self) -> dict[Link, float]:
        """What the scenario says that each direction carries, bit/s."""
        found: dict[Link, float] = {}
        planes: dict[tuple[str, str], int] = defaultdict(int)
        for entry in get(self.settings, "topology.wan", []):
            for _ in range(entry.get("planes") or 1):
                plane = planes[entry["a"], entry["b"]]
                planes[entry["a"], entry["b"]] += 1
                for direction in ("a_to_b", "b_to_a"):
                    rate = (entry.get(direction) or {}).get("rate") or entry["rate"]
                    found[entry["a"], entry["b"], plane, direction] = quantity(rate)
        return found

    @cached_property
    def busiest_card(self) -> tuple[str, float] | None:
        """Which host's card, and in which direction, has most payload for its rate; None where cards differ."""
        if has_unlike_hosts(self.settings):
            return None
        best = ("", 0.0)
        for rank, (host, building) in enumerate(zip(self.hosts, self.buildings, strict=True)):
            rate = get(self.settings, f"topology.buildings.{building}.nic.rate")
            if rate is None:
                return None
            for way, word in ((0, "sending"), (1, "receiving")):
                shares = [
                    self.run.bytes(sum(count for ends, count in step.sent.items() if ends[way] == rank))
                    * 8
                    / (quantity(rate) * self.run.seconds(step.time_s))
                    for step in self.whole_steps
                ]
                if median(shares) > best[1]:
                    best = (f"NIC of {host}, {word}", median(shares))
        return best

    @cached_property
    def committed(self) -> list[float]:
        """The share of each step's sequences that the replicas in it had: of all where they do not come and go."""
        asked = get(self.settings, "workload.schedule.microbatches_per_replica", "even")
        if get(self.settings, "workload.parallelism.faults") is None:
            return [1.0 for _ in self.steps]
        if asked == "even":
            return [len(step.parts) / self.ranks for step in self.steps]
        each = [float(count) for count in asked] if isinstance(asked, list) else []
        return [sum(each[one] for one in step.parts[0]["replicas"]) / sum(each) for step in self.steps]

    @property
    def done_steps(self) -> float:
        """Whole steps' worth of what was committed."""
        return sum(self.committed)

    @cached_property
    def training(self) -> StepOfTraining | None:
        return step_of(self.settings, self.ranks)

    # connections between buildings

    @cached_property
    def sockets(self) -> dict[tuple[str, str], list[list[Record]]]:
        """Readings of each connection, by the buildings that it goes from and to."""
        connections: dict[tuple[int, ...], list[Record]] = defaultdict(list)
        for entry in self.run.sockets:
            if entry.get("variant", self.name) == self.name:
                key = tuple(entry[name] for name in ("rank", "peer", "dscp", "channel"))
                connections[key].append(entry)
        found: dict[tuple[str, str], list[list[Record]]] = defaultdict(list)
        for (rank, peer, *_), readings in connections.items():
            ends = self.buildings[rank], self.buildings[peer]
            if ends[0] != ends[1]:
                found[ends].append(readings)
        return dict(found)

    def round_trips_s(self, ends: tuple[str, str]) -> list[float]:
        """Of all readings during steps."""
        return [
            self.run.seconds(entry["rtt_s"])
            for readings in self.sockets[ends]
            for step in self.steps
            for entry in readings
            if step.start_s < entry["time_s"] <= step.end_s and entry["rtt_s"]
        ]

    def counted(self, ends: tuple[str, str], counter: str) -> int | None:
        """By how much a counter of all these connections grew during steps; None where none has it."""
        grown = [
            value for readings in self.sockets[ends] for value in _growths(readings, self.steps, counter)
        ]
        return sum(grown) if grown else None


def _around(readings: Sequence[Record], step: Step) -> tuple[Record, Record]:
    """The last reading until a step began, and the first one that was taken as, or after, it ended.

    A reading at a step's edge was begun when that was over; others may have been begun before it.
    """
    before = readings[0]
    for entry in readings:
        if entry["time_s"] > step.start_s:
            break
        before = entry
    later = [entry for entry in readings if entry["time_s"] >= step.end_s]
    edges = [entry for entry in later if entry.get("edge")]
    return before, (edges or later or readings[-1:])[0]


def _growths(readings: Sequence[Mapping[str, float]], steps: Sequence[Step], counter: str) -> Iterator[int]:
    """Of one connection in each step, between the last reading until its start and the last one until its end.

    A connection that was made anew meanwhile has acknowledged less than before, and counts from its first reading.
    """
    for step in steps:
        until = [entry for entry in readings if entry["time_s"] <= step.end_s]
        if not until or counter not in until[-1]:
            continue
        before = [entry for entry in until if entry["time_s"] <= step.start_s]
        first: Mapping[str, float] = before[-1] if before else {}
        if first and until[-1].get("bytes_acked", 0) < first.get("bytes_acked", 0):
            first = until[len(before)]
        yield int(until[-1][counter] - first.get(counter, 0))
