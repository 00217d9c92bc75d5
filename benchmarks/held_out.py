"""Is the model right about what nobody held it against? Configurations drawn at random, on packets.

    .venv/bin/python benchmarks/held_out.py FOLDER [--only NAME ...] [--each 10] [--seed 1] [--jobs N] [--table]

At each point of benchmarks/held_out ten configurations are drawn: from what a search goes over by itself
(`explore: {}`), or from the file's own `draw`. What does not fit is drawn again, and so is what takes more than four
times as long as the quickest of forty. They run under the virtual clock, in a folder of FOLDER; what is there already
is not run again. The model's errors, as it is today, are those of step times, the median over trials of clean networks
and the mean where packets are lost, of all that is not untrusted. Calibration's probes are of other networks and send
nothing but messages there and back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from testbed.config import ConfigError, Scenario, load_scenario
from testbed.explorer.confirming import kendall_tau
from testbed.explorer.evaluation import MICROBATCHES, Evaluation, configured, evaluate, wrong_degrees
from testbed.explorer.space import Space
from testbed.explorer.usual import usual_space
from testbed.model.calibration import find_calibration
from testbed.model.predictions import predict_all
from testbed.scale import Scale

POINTS = Path(__file__).with_name("held_out")
AMONG, SLOWEST, DRAWS = 40, 4.0, 200_000
UNTRUSTED = 3  # the exit status of a run of which some figures are not to be trusted
Changes = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """What the model said of a configuration, and what packets did; seconds. lossy: of a network that loses packets."""

    name: str
    predicted_s: float
    measured_s: float
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
    parser.add_argument("--jobs")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    points = {}
    for file in sorted(POINTS.glob("*.yaml")):
        if options.only and file.stem not in options.only:
            continue
        folder = options.folder / file.stem
        if not options.table and not (folder / "summary.json").exists():
            drawn = options.folder / f"{file.stem}.yaml"
            if not drawn.exists():
                options.folder.mkdir(parents=True, exist_ok=True)
                drawn.write_text(draw(file, options.each, options.seed).to_yaml())
            command = ["run", str(drawn), "--clock", "virtual", "-o", str(folder)]
            _testbed(*command, *(["--jobs", options.jobs] if options.jobs else []))
        if (folder / "summary.json").exists():
            points[file.stem] = list(measured(folder))
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
            if wrong_degrees(base, changes) is not None:
                return None
            changed = configured(base, changes)
            assert changed.workload.schedule is not None
            changes = {**changes, MICROBATCHES: changed.workload.schedule.microbatches}
            tried = evaluate(base, Space({}, changes).numbered(0))
            return (
                (changed.to_yaml(), (changes, tried.step_time_s)) if isinstance(tried, Evaluation) else None
            )
        changed = base.changed(changes, "a configuration")
        (predicted,) = predict_all(changed, find_calibration("virtual"), Scale()).values()
    except ConfigError:
        return None
    return changed.to_yaml(), (changes, predicted.step_time_s)


def measured(folder: Path) -> Iterator[Pair]:
    """Of a run, all variants; what the model says of them today."""
    summary = json.loads((folder / "summary.json").read_text())
    scenario = load_scenario(folder / "scenario.yaml")
    predicted = predict_all(scenario, find_calibration("virtual"), Scale(summary["scale"]["size_scale"]))
    lossy = scenario.topology.resolve().lossy
    for entry in summary["variants"]:
        step = entry["step_time_s"]
        took_s = statistics.fmean(step["samples"]) if lossy else step["median"]
        name, verdict = entry["name"], entry["verdict"]["status"]
        yield Pair(name, predicted[name].step_time_s, took_s, lossy, verdict)


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
    tau = kendall_tau([(pair.predicted_s, pair.measured_s) for pair in good])
    return (
        f"| {name} | {len(pairs)} | {len(good)} | {statistics.median(errors):.1%} "
        f"| {worst.error:+.1%} ({worst.name}) | {tau:.2f} |"
    )


def _testbed(*arguments: str) -> None:
    done = subprocess.run([str(Path(sys.executable).with_name("testbed")), *arguments], check=False)
    if done.returncode not in (0, UNTRUSTED):
        print(f"not run: {' '.join(arguments)}", file=sys.stderr)


if __name__ == "__main__":
    main()
