"""What ranks that served requests have done and decided, read back from what they wrote down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.measure.execution.records import RankRecords
from testbed.measure.ranks.samples import operation_sample, step_sample
from testbed.measure.ranks.serving_executor import DISPATCHED_FILE, done_file
from testbed.workload.dispatch import Carried, Dispatched
from testbed.workload.job.job import Job
from testbed.workload.plan import Message, Operation, operation_of

Record = Mapping[str, Any]


def as_carried(job: Job, folder: Path, records: RankRecords) -> Job:
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
    dispatched = Dispatched.from_document(decided["dispatched"]).since(start_s)
    return job.as_carried(Carried(plan, dispatched, answers))


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


def _placed(line: Record, places: Mapping[int, int]) -> Operation:
    """An operation, behind others as they stand in a plan without what was not done."""
    operation = operation_of(line["operation"])
    return replace(operation, after=tuple(places[index] for index in operation.after))


def _put_in_killed(
    records: RankRecords,
    ranks: Sequence[Sequence[Operation]],
    done: Mapping[int, Sequence[Record]],
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
