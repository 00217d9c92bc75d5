"""Records that ranks and the network wrote during a shard, read back from its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.measure.execution.assessment import link_key
from testbed.measure.execution.job_run import LinkSample
from testbed.measure.ranks.serving_rank import DISPATCHED_FILE, done_file
from testbed.measure.ranks.telemetry import operation_sample, step_sample
from testbed.net.fabric.network import Fabric
from testbed.spec.buildings import Host
from testbed.workload.dispatch import DispatchLog, ExecutedPlan
from testbed.workload.job.job import Job
from testbed.workload.plan import Message, Operation, operation_from_document

RankRecord = dict[str, Any]


@dataclass(frozen=True)
class NetworkRecord:
    """What the controller had to say in the end: the policy, all rules with their counts; and its events."""

    policy: dict[str, Any]
    bridges: dict[str, list[RankRecord]]
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

    def rule_lines(self) -> Iterator[RankRecord]:
        """One record a rule, with the packets and (emulated) bytes that it took."""
        for bridge, rules in self.bridges.items():
            for rule in rules:
                yield {"bridge": bridge, **rule}


@dataclass
class RankRecords:
    """What all ranks have written down, by kind."""

    samples: list[RankRecord] = field(default_factory=list)
    sockets: list[RankRecord] = field(default_factory=list)
    tcp: list[RankRecord] = field(default_factory=list)
    calibrations: list[RankRecord] = field(default_factory=list)
    bootstraps: list[RankRecord] = field(default_factory=list)

    def bootstrap(self) -> RankRecord:
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
        steps: dict[int, list[RankRecord]] = {}
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


def fabric_record(shown: RankRecord, hosts: Sequence[Host]) -> RankRecord:
    """Return buildings, hosts and WAN links as `inspect` shows them, and which rank each host has.

    hosts: of the ranks, in their order.
    """
    ranks = {host.name: rank for rank, host in enumerate(hosts)}
    ranked = [{**host, "rank": ranks.get(host["name"])} for host in shown["hosts"]]
    return {**{key: shown[key] for key in ("buildings", "wan", "seeded")}, "hosts": ranked}


def shifted(records: Iterable[Mapping[str, Any]], origin_s: float) -> Iterator[RankRecord]:
    """The same records with the times that they have counted from the run's origin."""
    for record in records:
        times = {name: record[name] - origin_s for name in _TIMES if record.get(name) is not None}
        yield {**record, **times}


_TIMES = ("time_s", "start_s", "end_s", "last_byte_s")


def link_lines(samples: Sequence[LinkSample], origin_s: float) -> Iterator[RankRecord]:
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


_LogRecord = Mapping[str, Any]


def resolve_served_job(job: Job, folder: Path, records: RankRecords) -> Job:
    """The job with what its one measured step came to; the files are merged away. ValueError where it did not end.

    Of ranks that were killed the samples are put in, of what they had done until then.
    """
    if job.workload.dispatching is None:
        return job
    step = max(sample["step"] for sample in records.samples)
    done = {rank: _done(folder / done_file(rank), step) for rank in range(len(job.hosts))}
    decided = _last(folder / DISPATCHED_FILE, step)
    places = {rank: {line["index"]: place for place, line in enumerate(own)} for rank, own in done.items()}
    ranks = tuple(tuple(_placed(line, places[rank]) for line in own) for rank, own in done.items())
    entry = places[job.workload.dispatching.entry]
    answers = {
        int(number): tuple(entry[mark] for mark in marks)
        for number, marks in decided["answers"].items()
        if all(mark in entry for mark in marks)
    }
    _put_in_killed(records, ranks, done, job.workload.itemsize)
    plan = replace(job.workload.plan, ranks=ranks)
    start_s = min(sample["start_s"] for sample in records.samples if sample["operation"] == "step")
    dispatched = DispatchLog.from_document(decided["dispatched"]).since(start_s)
    return job.as_executed(ExecutedPlan(plan, dispatched, answers))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    path.unlink()
    return found


def _done(path: Path, step: int) -> list[dict[str, Any]]:
    """A rank's operations of a step, in the order of its plan."""
    return sorted((line for line in _lines(path) if line["step"] == step), key=lambda line: line["index"])


def _last(path: Path, step: int) -> dict[str, Any]:
    for line in _lines(path):
        if line["step"] == step:
            return line
    raise ValueError(f"step {step}: nothing that was decided of it, expected a line in {path.name}")


def _placed(line: _LogRecord, places: Mapping[int, int]) -> Operation:
    """An operation, behind others as they stand in a plan without what was not done."""
    operation = operation_from_document(line["operation"])
    return replace(operation, after=tuple(places[index] for index in operation.after))


def _put_in_killed(
    records: RankRecords,
    ranks: Sequence[Sequence[Operation]],
    done: Mapping[int, Sequence[_LogRecord]],
    itemsize: int,
) -> None:
    """Samples of those that have none."""
    steps = {sample["rank"]: sample for sample in records.samples if sample["operation"] == "step"}
    if len(steps) == len(ranks):
        return
    other = next(iter(steps.values()))
    head = {name: other[name] for name in ("variant", "trial", "step")}
    seen = {"traffic": None, "looks_s": other["looks_s"]}
    for rank in sorted(set(range(len(ranks))) - set(steps)):
        own, sent = {**head, "rank": rank}, Counter[int]()
        for place, (operation, line) in enumerate(zip(ranks[rank], done[rank], strict=True)):
            if isinstance(operation, Message) and operation.sends:
                sent[operation.peer] += operation.numel * itemsize
            span = line["start_s"], line["end_s"]
            records.samples.append(operation_sample(own, operation, place, span, itemsize))
        last_s = max((line["end_s"] for line in done[rank]), default=other["start_s"])
        span = other["start_s"], last_s
        records.samples.append(step_sample(own, other["name"], span, sent, (0, 0), seen))
    records.samples.sort(key=lambda sample: (sample["step"], sample["rank"], sample["start_s"]))
