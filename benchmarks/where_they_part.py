"""Of a run: where in a step the model's operations and those on packets first part, by how much, and beside what.

    .venv/bin/python benchmarks/where_they_part.py RUN VARIANT [--more-than 0.3] [--first 12] [--packets N]

RUN is a folder that `testbed run` made, VARIANT one of its. A collective, or a message, is taken from when the last of
its ranks (of a message: its sender) begins it to when the last has ended it; those are printed whose time differs by
more than so many per cent of the step, in the order in which they begin on packets, with what else goes through a link
of theirs in half of that time or more; then the sums of all, by what they are. The last trial's measured step is taken.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.measure.results.records import SAMPLES
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.routes import route_network
from testbed.prediction.step_prediction import MAX_PACKETS, predict_step
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Job, job_of
from testbed.workload.plan import GroupCollective, JobPlan, Message
from testbed.workload.plan_volume import group_traffic

Key = tuple[object, ...]
Spans = Mapping[tuple[int, int], tuple[float, float]]
"""By rank and index of the operation: from when to when, in seconds from the step's start."""


@dataclass(frozen=True)
class Together:
    """What ranks do together: the operation of each. parts: of the network, that its bytes go through."""

    name: str
    ranks: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    beginners: tuple[tuple[int, int], ...]
    parts: frozenset[str]

    def span(self, spans: Spans) -> tuple[float, float]:
        """From when it could go on to when it is over."""
        begun_s = max(spans[place][0] for place in self.beginners)
        return begun_s, max(spans[place][1] for place in self.places)


def main() -> None:
    """Print where they part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("variant")
    parser.add_argument("--more-than", type=float, default=0.3)
    parser.add_argument("--first", type=int, default=12)
    parser.add_argument("--packets", type=int, default=MAX_PACKETS, help="as `testbed predict` has it")
    options = parser.parse_args()
    scale = Scale(json.loads((options.run / "summary.json").read_text())["scale"]["size_scale"])
    calibration = find_calibration(VIRTUAL)
    scenario = load_scenario(options.run / "scenario.yaml").variant(options.variant)
    job = job_of(scenario, scale, calibration.link_engine)
    algorithm = scenario.algorithms[0]
    timeline = predict_step(job, algorithm, calibration, packets=options.packets)
    plan = job.workload.start.with_algorithm(algorithm)
    by_model = {
        (rank, index): span for rank, own in enumerate(timeline.spans) for index, span in enumerate(own)
    }
    on_packets, step_s = measured(options.run, options.variant)
    print(f"step: {step_s:.4f} s on packets, {timeline.step_time_s / step_s - 1:+.1%} by the model")
    print("\n".join(report(list(together(job, plan, algorithm)), on_packets, by_model, step_s, options)))


def measured(folder: Path, variant: str) -> tuple[dict[tuple[int, int], tuple[float, float]], float]:
    """Of the last trial's last step, what each rank's operations took, and the step."""
    steps: dict[tuple[int, int], list[dict[str, float | str]]] = defaultdict(list)
    with (folder / SAMPLES).open() as lines:
        for line in lines:
            sample = json.loads(line)
            if sample.get("variant", variant) == variant:
                steps[sample["trial"], sample["step"]].append(sample)
    last = steps[max(steps)]
    whole = [sample for sample in last if sample["operation"] == "step"]
    start_s = min(float(sample["start_s"]) for sample in whole)
    spans = {
        (int(sample["rank"]), int(sample["index"])): (
            float(sample["start_s"]) - start_s,
            float(sample["end_s"]) - start_s,
        )
        for sample in last
        if "index" in sample
    }
    return spans, max(float(sample["end_s"]) for sample in whole) - start_s


def together(job: Job, plan: JobPlan, algorithm: str) -> Iterator[Together]:
    """All collectives and messages of a plan."""
    network = route_network(job, algorithm, find_calibration(VIRTUAL))
    places: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for rank, operations in enumerate(plan.ranks):
        seen: Counter[Key] = Counter()
        for index, operation in enumerate(operations):
            if isinstance(operation, GroupCollective):
                key: Key = ("group", operation.group)
            elif isinstance(operation, Message):
                ends = (rank, operation.peer) if operation.sends else (operation.peer, rank)
                key = ("message", *ends, operation.tag)
            else:
                continue
            this = (*key, seen[key])
            places[this].append((rank, index))
            seen[key] += 1
    for key, own in places.items():
        rank, index = own[0]
        operation = plan.ranks[rank][index]
        if isinstance(operation, GroupCollective):
            members = plan.groups[operation.group][1]
            near = plan.locality_of(operation.group)
            pairs = group_traffic(operation, members, job.workload.itemsize, near, plan.tuning)
            beginners = own
        else:
            assert isinstance(operation, Message)
            members = (int(str(key[1])), int(str(key[2])))
            pairs = {members: operation.numel}
            beginners = [place for place in own if place[0] == members[0]]
        parts = {
            part
            for ends, size in pairs.items()
            if size
            for path in network.paths_of(ends, plan.dscp(operation))
            for part in path.parts
        }
        yield Together(operation.name, members, tuple(own), tuple(beginners), frozenset(parts))


def report(
    units: Sequence[Together],
    on_packets: Spans,
    by_model: Spans,
    step_s: float,
    options: argparse.Namespace,
) -> Iterator[str]:
    """The first that part, and the sums."""
    found = [unit for unit in units if all(place in on_packets for place in unit.places)]
    spans = {unit: (unit.span(on_packets), unit.span(by_model)) for unit in found}
    found.sort(key=lambda unit: spans[unit][0])
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    shown = 0
    yield "| what | ranks | began, ms | took, ms | by the model | beside |"
    yield "|---|---|---|---|---|---|"
    for unit in found:
        (begun_s, end_s), (model_begun_s, model_end_s) = spans[unit]
        took_s, model_s = end_s - begun_s, model_end_s - model_begun_s
        kind = re.sub(r"\d+", "", unit.name.split()[-1]) + f" of {len(unit.ranks)}"
        sums[kind] = [own + more for own, more in zip(sums[kind], (1, took_s, model_s), strict=True)]
        if abs(model_s - took_s) * 100 > options.more_than * step_s and shown < options.first:
            shown += 1
            beside = _beside(unit, found, spans)
            row = f"{begun_s * 1e3:.1f} | {took_s * 1e3:.2f} | {model_s * 1e3:.2f} | {beside}"
            yield f"| {unit.name} | {', '.join(map(str, unit.ranks))} | {row} |"
    yield ""
    yield "| what | how many | took, ms | by the model |"
    yield "|---|---|---|---|"
    for kind, (many, took_s, model_s) in sorted(sums.items(), key=lambda item: -item[1][1]):
        yield f"| {kind} | {many} | {took_s * 1e3:.1f} | {model_s * 1e3:.1f} |"


def _beside(
    unit: Together,
    others: Sequence[Together],
    spans: Mapping[Together, tuple[tuple[float, float], tuple[float, float]]],
) -> str:
    begun_s, end_s = spans[unit][0]
    found: Counter[str] = Counter()
    for other in others:
        (start_s, stop_s), _ = spans[other]
        shared_s = min(end_s, stop_s) - max(begun_s, start_s)
        if other is not unit and unit.parts & other.parts and shared_s * 2 >= end_s - begun_s:
            found[f"{other.name} of {len(other.ranks)}"] += 1
    return ", ".join(name if many == 1 else f"{many} x {name}" for name, many in found.items())


if __name__ == "__main__":
    main()
