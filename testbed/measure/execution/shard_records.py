"""The records that ranks and the controller wrote during a shard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.documents import rebuild
from testbed.measure.execution.assessment import link_key
from testbed.measure.execution.job_run import LinkSample
from testbed.measure.ranks.serving_rank import DISPATCHED_FILE, done_file
from testbed.measure.ranks.telemetry import operation_sample, step_sample
from testbed.net.fabric.network import Fabric
from testbed.spec.buildings import Host
from testbed.workload.dispatch import DispatchLog, ExecutedPlan
from testbed.workload.job.job import Job
from testbed.workload.plan import Message, Operation

RankRecord = dict[str, Any]


@dataclass(frozen=True)
class NetworkRecord:
    """The controller's final state and its events; rules carry counts of matched packets and (emulated) bytes."""

    policy: dict[str, Any]
    rules: list[RankRecord]
    events: Sequence[Mapping[str, Any]]
    restarts: int

    @classmethod
    def of(cls, fabric: Fabric, events: Sequence[Mapping[str, Any]]) -> NetworkRecord:
        """Query the controller of a running fabric."""
        assert fabric.controller is not None
        api = fabric.controller.api
        rules = [{"bridge": bridge, **rule} for bridge, own in api.rules().items() for rule in own]
        return cls(api.show(), rules, events, fabric.controller.restarts)

    @property
    def repairs(self) -> list[str]:
        """Descriptions of the rules that the controller had to restore."""
        found = [event for event in self.events if event["event"] == "repaired"]
        return [f"{event['bridge']}: {event['words']}" for event in found]


@dataclass
class RankRecords:
    """The records of all ranks, by kind."""

    samples: list[RankRecord] = field(default_factory=list)
    sockets: list[RankRecord] = field(default_factory=list)
    tcp: list[RankRecord] = field(default_factory=list)
    calibrations: list[RankRecord] = field(default_factory=list)
    bootstraps: list[RankRecord] = field(default_factory=list)

    def bootstrap(self) -> RankRecord:
        """Return bootstrap figures: the slowest rank's time, and messages and bytes of all ranks and of rank 0."""
        counts = ("messages_sent", "bytes_sent", "connections")
        return {
            "method": self.bootstraps[0]["method"],
            "time_s": max(entry["time_s"] for entry in self.bootstraps),
            **{name: sum(entry[name] for entry in self.bootstraps) for name in counts},
            "rank_0": {name: self.bootstraps[0][name] for name in counts},
        }


def read_ranks(folder: Path, ranks: int) -> RankRecords:
    """Read the records of all ranks, and remove the ranks' own files."""
    found = RankRecords()
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        if not path.exists():
            continue  # the rank was killed, and the other ranks continued
        steps: dict[int, list[RankRecord]] = {}
        finished: set[int] = set()
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
                if entry["step"] in finished:  # repeated after a restart from a checkpoint
                    finished.discard(entry["step"])
                    steps[entry["step"]] = []
                steps.setdefault(entry["step"], []).append(entry)
                if entry["operation"] == "step":
                    finished.add(entry["step"])
        found.samples += [entry for step in finished for entry in steps[step]]
        path.unlink()
    found.samples.sort(key=lambda sample: (sample["step"], sample["rank"], sample["start_s"]))
    found.tcp.sort(
        key=lambda reading: (reading["time_s"], reading["rank"], reading["peer"], reading["channel"])
    )
    return found


def fabric_record(shown: RankRecord, hosts: Sequence[Host]) -> RankRecord:
    """Return buildings, hosts and WAN links as `inspect` reads them back, with each host's rank; `hosts` is by rank."""
    ranks = {host.name: rank for rank, host in enumerate(hosts)}
    ranked = [{**host, "rank": ranks.get(host["name"])} for host in shown["hosts"]]
    return {**{key: shown[key] for key in ("buildings", "wan", "seeded")}, "hosts": ranked}


def shift_times(records: Iterable[Mapping[str, Any]], origin_s: float) -> Iterator[RankRecord]:
    """Yield the records with their times relative to the run's origin."""
    for record in records:
        times = {name: record[name] - origin_s for name in _TIMES if record.get(name) is not None}
        yield {**record, **times}


_TIMES = ("time_s", "start_s", "end_s", "last_byte_s")


def link_lines(samples: Sequence[LinkSample], origin_s: float) -> Iterator[RankRecord]:
    """Yield one record per reading and WAN direction; counters start at the first reading, after the probes."""
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
    """Return a serving job with the plan that its measured step executed, and remove the ranks' files of that plan.

    Samples of killed ranks are added to `records`, up to their last operation.

    Raises:
        ValueError: If the step did not end.
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
    _add_killed_ranks(records, ranks, done, job.workload.itemsize)
    plan = replace(job.workload.plan, ranks=ranks)
    start_s = min(sample["start_s"] for sample in records.samples if sample["operation"] == "step")
    dispatched = rebuild(DispatchLog, decided["dispatched"]).since(start_s)
    return job.as_executed(ExecutedPlan(plan, dispatched, answers))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    path.unlink()
    return found


def _done(path: Path, step: int) -> list[dict[str, Any]]:
    return sorted((line for line in _lines(path) if line["step"] == step), key=lambda line: line["index"])


def _last(path: Path, step: int) -> dict[str, Any]:
    for line in _lines(path):
        if line["step"] == step:
            return line
    raise ValueError(f"step {step}: got no decisions, expected a line in {path.name}")


def _placed(line: _LogRecord, places: Mapping[int, int]) -> Operation:
    """Return an operation with its dependencies renumbered for a plan that has only executed operations."""
    operation = Operation.from_document(line["operation"])
    return replace(operation, after=tuple(places[index] for index in operation.after))


def _add_killed_ranks(
    records: RankRecords,
    ranks: Sequence[Sequence[Operation]],
    done: Mapping[int, Sequence[_LogRecord]],
    itemsize: int,
) -> None:
    """Add samples of ranks that wrote none."""
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
