"""Is the model right about what nobody held it against? Configurations drawn at random, on packets.

    .venv/bin/python benchmarks/held_out.py FOLDER [--only NAME ...] [--each 10] [--seed 1] [--trials N] [--steps N]
        [--packets N] [--in-a-row] [--jobs N] [--table]

At each point of benchmarks/held_out ten configurations are drawn: from what a search goes over by itself
(`explore: {}`), or from the file's own `draw`. What does not fit is drawn again, and so is what takes more than four
times as long as the quickest of forty. They run under the virtual clock, in a folder of FOLDER; what is there already
is not run again. --trials: configurations with BBR on clean networks run again, with so many trials, in NAME-bbr.
--steps: those on networks that lose packets, and collectives by themselves, whose steps are short, run each in a
network of its own with so many steps, in NAME-steps; the table has these in place of others. --packets: as `testbed
predict` has it. The model's errors, as it is today, are those of step times, of all that is not untrusted: the mean of
trials where packets are lost, or BBR has fewer than ten, else their median; each trial is held against the prediction
with its ports. --in-a-row: where packets are lost, and the model plays them, it takes as many steps one after the
other as were measured, on as many networks, at least 36 in all, and their mean is told; else, as `testbed predict` has
it, the drawn step that is nearest to the mean. Calibration's probes are of other networks and send nothing but messages
there and back.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from testbed.cli.experiments.confirmation import kendall_tau
from testbed.measure.results.shards import split_into_shards
from testbed.prediction.calibration import find_calibration
from testbed.prediction.search.default_space import usual_space
from testbed.prediction.search.evaluation import (
    MICROBATCHES,
    Evaluation,
    apply_changes,
    check_degrees,
    evaluate,
)
from testbed.prediction.search.space import Space
from testbed.prediction.step_prediction import MAX_PACKETS, predict_variants, prepare_step
from testbed.show.report.variant_text import half_width
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import job_of

POINTS = Path(__file__).with_name("held_out")
AMONG, SLOWEST, DRAWS = 40, 4.0, 200_000
LEAST_STEPS = 10  # of BBR, whose median is told as that of others
LEAST_DRAWN = 36  # steps, where packets are lost
UNTRUSTED = 3  # the exit status of a run of which some figures are not to be trusted
Changes = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """What the model said of a configuration, and what packets did; seconds. lossy: of a network that loses packets.

    half_s: to either side of what was measured the mean is, with 95 % confidence; 0 for one trial.
    """

    name: str
    predicted_s: float
    measured_s: float
    half_s: float
    lossy: bool
    verdict: str

    @property
    def error(self) -> float:
        """As a part of what was measured."""
        return self.predicted_s / self.measured_s - 1


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--packets", type=int, default=MAX_PACKETS)
    parser.add_argument("--in-a-row", action="store_true")
    parser.add_argument("--jobs")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    points = {}
    for file in sorted(POINTS.glob("*.yaml")):
        if options.only and file.stem not in options.only:
            continue
        folder = options.folder / file.stem
        more = ["--jobs", options.jobs] if options.jobs else []
        if not options.table:
            _run_missing(folder, file, options, more)
        found = {
            pair.name: pair
            for own in _folders(folder)
            for pair in measured(own, options.packets, in_a_row=options.in_a_row)
        }
        if found:
            points[file.stem] = list(found.values())
    print("\n".join(table(points)))


def draw(file: Path, count: int, seed: int) -> Scenario:
    """The point's scenario with so many configurations as variants."""
    document = yaml.safe_load(file.read_text())
    declared = document.pop("draw", None)
    if isinstance(document["topology"], str):
        document["topology"] = str(file.parent / document["topology"])
    base = load_scenario(document)
    values = declared if declared is not None else usual_space(base)
    space, random = Space(values, {}), Random(f"{seed} {base.name}")
    found: dict[str, tuple[Changes, float]] = {}
    for _ in range(DRAWS):
        changes = dict(space.numbered(random.randrange(space.size)).changes)
        took = fitting(base, changes)
        if took is not None:
            found.setdefault(*took)
        if len(found) == AMONG:
            break
    quickest_s = min(step_s for _, step_s in found.values())
    chosen = [changes for changes, step_s in found.values() if step_s <= SLOWEST * quickest_s][:count]
    variants = {f"c{number:02}": changes for number, changes in enumerate(chosen, start=1)}
    return Scenario.model_validate(base.model_copy(update={"variants": variants}).to_data())


def fitting(base: Scenario, changes: Changes) -> tuple[str, tuple[Changes, float]] | None:
    """What makes it another than others, the changes and the predicted step; None for what does not fit together."""
    try:
        if base.workload.parallelism is not None:
            if check_degrees(base, changes) is not None:
                return None
            changed = apply_changes(base, changes)
            assert changed.workload.schedule is not None
            changes = {**changes, MICROBATCHES: changed.workload.schedule.microbatches}
            tried = evaluate(base, Space({}, changes).numbered(0))
            return (
                (changed.to_yaml(), (changes, tried.step_time_s)) if isinstance(tried, Evaluation) else None
            )
        changed = base.changed(changes, "a configuration")
        (predicted,) = predict_variants(changed, find_calibration("virtual"), Scale()).values()
    except ConfigError:
        return None
    return changed.to_yaml(), (changes, predicted.step_time_s)


def _run_missing(folder: Path, file: Path, options: argparse.Namespace, more: Sequence[str]) -> None:
    """What a point is to have and has not."""
    drawn = folder.with_name(f"{file.stem}.yaml")
    if not drawn.exists():
        drawn.parent.mkdir(parents=True, exist_ok=True)
        drawn.write_text(draw(file, options.each, options.seed).to_yaml())
    scenario = load_scenario(drawn)
    assert scenario.variants is not None
    lossy = scenario.topology.resolve().lossy
    if options.steps and (lossy or scenario.workload.collectives):
        for name in scenario.variant_names:
            own = folder.with_name(f"{folder.name}-steps") / f"{name}.yaml"
            own.parent.mkdir(exist_ok=True)
            own.write_text(scenario.variant(name).to_yaml())
            _run(own, own.with_suffix(""), [*more, "--trials", str(options.steps)])
        return
    _run(drawn, folder, more)
    if options.trials and not lossy:
        paced = [
            name
            for name in scenario.variant_names
            if scenario.variant(name).transport.congestion_control == "bbr"
        ]
        if paced:
            variants = {name: scenario.variants[name] for name in paced}
            own = folder.with_name(f"{folder.name}-bbr.yaml")
            own.write_text(scenario.model_copy(update={"variants": variants}).to_yaml())
            _run(own, own.with_suffix(""), [*more, "--trials", str(options.trials)])


def _run(scenario: Path, folder: Path, more: Sequence[str]) -> None:
    if not (folder / "summary.json").exists():
        _testbed("run", str(scenario), "--clock", "virtual", "-o", str(folder), *more)


def _folders(folder: Path) -> list[Path]:
    """Of a point, those with runs; later ones in place of those before."""
    steps = sorted(folder.with_name(f"{folder.name}-steps").glob("c*"))
    every = [folder, folder.with_name(f"{folder.name}-bbr"), *steps]
    return [own for own in every if (own / "summary.json").exists()]


def measured(folder: Path, packets: int = MAX_PACKETS, *, in_a_row: bool = False) -> Iterator[Pair]:
    """Of a run, all variants; what the model says of them today. packets: that it plays at the most."""
    summary = json.loads((folder / "summary.json").read_text())
    scenario = load_scenario(folder / "scenario.yaml")
    lossy = scenario.topology.resolve().lossy
    scale = Scale(summary["scale"]["size_scale"])
    predicted = means_in_a_row(scenario, scale, packets) if in_a_row and lossy else {}
    if any(entry["name"] not in predicted for entry in summary["variants"]):
        predicted = predictions(scenario, scale, packets) | predicted
    for entry in summary["variants"]:
        samples, name = entry["step_time_s"]["samples"], entry["name"]
        own = scenario if scenario.variants is None else scenario.variant(name)
        mean = lossy or (own.transport.congestion_control == "bbr" and len(samples) < LEAST_STEPS)
        took_s = statistics.fmean(samples) if mean else statistics.median(samples)
        half_s = half_width(samples) if len(samples) > 1 else 0.0
        named = folder.name if scenario.variants is None else name
        yield Pair(named, predicted[name], took_s, half_s, lossy, entry["verdict"]["status"])


def predictions(scenario: Scenario, scale: Scale, packets: int) -> dict[str, float]:
    """By variant, seconds: the mean over the seeds with which a run's parts begin, as ports and paths go by them."""
    seeds = {shard.seed for shard in split_into_shards(scenario)}
    every = [
        predict_variants(
            scenario.model_copy(update={"seed": seed}), find_calibration("virtual"), scale, packets
        )
        for seed in seeds
    ]
    return {name: statistics.fmean(one[name].step_time_s for one in every) for name in every[0]}


def means_in_a_row(scenario: Scenario, scale: Scale, packets: int) -> dict[str, float]:
    """By variant, seconds: of a run's steps, as the model plays them one after the other; none of those it cannot."""
    shards, found = split_into_shards(scenario), dict[str, list[float]]()
    networks = math.ceil(LEAST_DRAWN / sum(shard.trials for shard in shards) * len(scenario.variant_names))
    for shard in shards:
        job = job_of(shard.scenario(scenario), scale)
        step = prepare_step(job, job.scenario.algorithms[0], find_calibration("virtual"), packets=packets)
        if step.network.packets:
            name = shard.variant or scenario.variant_names[0]
            found.setdefault(name, []).extend(step.step_times(networks, shard.trials))
    return {name: statistics.fmean(steps_s) for name, steps_s in found.items()}


def table(points: dict[str, list[Pair]]) -> Iterator[str]:
    """By point, then over all clean ones and all that lose packets."""
    yield "| point | configurations | trusted | median error | worst | tau |"
    yield "|---|---|---|---|---|---|"
    together: dict[str, list[Pair]] = {"all clean": [], "all lossy": []}
    for name, pairs in points.items():
        yield _row(name, pairs)
        for pair in pairs:
            together["all lossy" if pair.lossy else "all clean"].append(pair)
    for name, pairs in together.items():
        yield _row(name, pairs)
    yield _row("all", [pair for pairs in together.values() for pair in pairs])


def _row(name: str, pairs: Sequence[Pair]) -> str:
    good = [pair for pair in pairs if pair.verdict != "untrusted"]
    if len(good) < 2:
        return f"| {name} | {len(pairs)} | {len(good)} | | | |"
    errors = [abs(pair.error) for pair in good]
    worst = max(good, key=lambda pair: abs(pair.error))
    sure = f" within {worst.half_s / worst.measured_s:.1%}" if worst.half_s else ""
    tau = kendall_tau([(pair.predicted_s, pair.measured_s) for pair in good])
    return (
        f"| {name} | {len(pairs)} | {len(good)} | {statistics.median(errors):.1%} "
        f"| {worst.error:+.1%} ({worst.name}{sure}) | {tau:.2f} |"
    )


def _testbed(*arguments: str) -> None:
    done = subprocess.run([str(Path(sys.executable).with_name("testbed")), *arguments], check=False)
    if done.returncode not in (0, UNTRUSTED):
        print(f"not run: {' '.join(arguments)}", file=sys.stderr)


if __name__ == "__main__":
    main()
