"""What a run's parts have written down, as it stands in the files of a run directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.measure.execution.assessment import link_key
from testbed.measure.execution.job_run import LinkSample
from testbed.net.fabric.network import Fabric
from testbed.spec.buildings import Host

Record = dict[str, Any]


@dataclass(frozen=True)
class NetworkRecord:
    """What the controller had to say in the end: the policy, all rules with their counts; and its events."""

    policy: dict[str, Any]
    bridges: dict[str, list[Record]]
    events: Sequence[Mapping[str, Any]]
    restarts: int

    @classmethod
    def of(cls, fabric: Fabric, events: Sequence[Mapping[str, Any]]) -> NetworkRecord:
        """Ask the controller of a fabric that is up."""
        assert fabric.controller is not None
        api = fabric.controller.api
        return cls(api.show(), api.rules(), events, fabric.controller.restarts)

    @property
    def repairs(self) -> list[str]:
        """What the controller found changed by somebody else, in its words."""
        found = [event for event in self.events if event["event"] == "repaired"]
        return [f"{event['bridge']}: {event['words']}" for event in found]

    def rule_lines(self) -> Iterator[Record]:
        """One record a rule, with the packets and (emulated) bytes that it took."""
        for bridge, rules in self.bridges.items():
            for rule in rules:
                yield {"bridge": bridge, **rule}


@dataclass
class RankRecords:
    """What all ranks have written down, by kind."""

    samples: list[Record] = field(default_factory=list)
    sockets: list[Record] = field(default_factory=list)
    tcp: list[Record] = field(default_factory=list)
    calibrations: list[Record] = field(default_factory=list)
    bootstraps: list[Record] = field(default_factory=list)

    def bootstrap(self) -> Record:
        """How the ranks found each other: the slowest one's time, messages and bytes of all, and those of rank 0."""
        counts = ("messages_sent", "bytes_sent", "connections")
        return {
            "method": self.bootstraps[0]["method"],
            "time_s": max(entry["time_s"] for entry in self.bootstraps),
            **{name: sum(entry[name] for entry in self.bootstraps) for name in counts},
            "rank_0": {name: self.bootstraps[0][name] for name in counts},
        }


def read_ranks(folder: Path, ranks: int) -> RankRecords:
    """All ranks' records; the ranks' own files are merged away."""
    found = RankRecords()
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        if not path.exists():
            continue  # it was killed, and the others went on
        steps: dict[int, list[Record]] = {}
        over: set[int] = set()
        for line in path.read_text().splitlines():
            if not line.endswith("}"):
                continue  # the rank was killed while it wrote
            entry = json.loads(line)
            if entry["operation"] == "sockets":
                found.sockets += [{"rank": rank, **item} for item in entry["sockets"]]
                found.tcp += entry["readings"]
            elif entry["operation"] == "calibration":
                found.calibrations.append(entry)
            elif entry["operation"] == "bootstrap":
                found.bootstraps.append(entry)
            else:
                if entry["step"] in over:  # done once more, from a checkpoint on
                    over.discard(entry["step"])
                    steps[entry["step"]] = []
                steps.setdefault(entry["step"], []).append(entry)
                if entry["operation"] == "step":
                    over.add(entry["step"])
        found.samples += [entry for step in over for entry in steps[step]]
        path.unlink()
    found.samples.sort(key=lambda sample: (sample["step"], sample["rank"], sample["start_s"]))
    found.tcp.sort(
        key=lambda reading: (reading["time_s"], reading["rank"], reading["peer"], reading["channel"])
    )
    return found


def fabric_record(shown: Record, hosts: Sequence[Host]) -> Record:
    """Return buildings, hosts and WAN links as `inspect` shows them, and which rank each host has.

    hosts: of the ranks, in their order.
    """
    ranks = {host.name: rank for rank, host in enumerate(hosts)}
    ranked = [{**host, "rank": ranks.get(host["name"])} for host in shown["hosts"]]
    return {**{key: shown[key] for key in ("buildings", "wan", "seeded")}, "hosts": ranked}


def shifted(records: Iterable[Mapping[str, Any]], origin_s: float) -> Iterator[Record]:
    """The same records with the times that they have counted from the run's origin."""
    for record in records:
        times = {name: record[name] - origin_s for name in _TIMES if record.get(name) is not None}
        yield {**record, **times}


_TIMES = ("time_s", "start_s", "end_s", "last_byte_s")


def link_lines(samples: Sequence[LinkSample], origin_s: float) -> Iterator[Record]:
    """One record per reading and WAN direction; counters count from the first reading, after the probes."""
    for sample in samples:
        for counters in sample.counters.wan:
            key = link_key(counters)
            first, account = samples[0].account.directions[key], sample.account.directions[key]
            packets = account.in_packets - account.dropped
            yield {
                "time_s": sample.time_s - origin_s,
                "a": counters.a,
                "b": counters.b,
                "plane": counters.plane,
                "direction": counters.direction,
                "bytes": account.sent_bytes - first.sent_bytes,
                "packets": packets - (first.in_packets - first.dropped),
                "drops": account.dropped - first.dropped,
                "losses": account.lost - first.lost,
                "cut_losses": account.cut - first.cut,
                "marks": account.marked - first.marked,
                "queue_bytes": account.queue_bytes,
                **({"edge": sample.edge} if sample.edge else {}),
            }
