"""Explore all design points, confirm the best under the virtual clock, print docs/evidence/design-points.md's table.

    .venv/bin/python benchmarks/design_points.py FOLDER [--only NAME ...] [--jobs N] [--table] [--model] [--whole]

Each scenario of scenarios/explore goes into a folder of its own in FOLDER; what is there already is not run again. All
that is compared runs for one trial; for two more, with seeds of their own, what the speed-ups are of: `production`,
the quickest baselines, the best (under loss, all); where three cannot tell the best from the quickest baseline, these
two for six more. --table: nothing is run, only the table printed of what is there. --model: nothing is measured, the
table is what the model says, of all baselines as given and tuned, and how long the search took. --whole: of all that
there is to choose, not of the scenario's own space alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cli.experiments.confirmation import kendall_tau
from testbed.cli.experiments.explore import RESULT
from testbed.measure.results.shards import SEED_STEP
from testbed.show.report.variant_text import speedup_interval
from testbed.spec.catalogue import baselines
from testbed.spec.scenario import load_scenario
from testbed.spec.units import time_text

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "explore"
UNTRUSTED = 3  # the exit status of a run whose figures are not to be trusted; the table leaves them out
NEAR = 1.01  # baselines that are so much slower than the quickest may change places with it in other trials
FIRST, REPEATED, SETTLED, SUMMARY = "confirmed", "repeated", "settled", "summary.json"
TOOK = "search_s"  # the file with the seconds that a search took


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    names = [file.stem for file in sorted(SCENARIOS.glob("*.yaml"))]
    points = []
    for name in names:
        if options.only and name not in options.only:
            continue
        folder = options.folder / name
        if options.model:
            if not (folder / RESULT).exists() and not options.table:
                _explore(name, folder, whole=options.whole)
            continue
        if not options.table:
            _run_missing(name, folder, options.jobs, whole=options.whole)
        if (folder / FIRST / SUMMARY).exists():
            points.append((name, _compared(folder)))
    explored = [name for name in names if (options.folder / name / RESULT).exists()]
    if options.model:
        print("\n".join(_modelled(options.folder, explored)))
    else:
        print("\n".join(_table(points)))


def _modelled(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Predicted step times: of each baseline tuned, in brackets as given; what the best gains over them."""
    every = {name: json.loads((folder / name / RESULT).read_text()) for name in names}
    documents = {
        name: one for name, one in every.items() if one["work"]
    }  # of recorded jobs there is no planner
    found = [one["compared"] for one in documents.values()]
    there = {one["of"] for compared in found for one in compared if one["kind"] == "baseline"}
    bases = [base for base in baselines() if base in there]
    gains = ("over production", "over production tuned", "over the best baseline, as given", "tuned")
    heads = (*bases, "one dimension alone", "best", "computing alone", *gains, "search")
    yield f"| design point | {' | '.join(heads)} |"
    yield f"|---{'|---' * len(heads)}|"
    for name, document in documents.items():
        compared = document["compared"]
        best_s = min(entry["step_time_s"] for entry in compared if entry["kind"] == "best")

        def times(tuned: bool, entries: Sequence[dict[str, Any]] = compared) -> dict[str, float]:
            some = [one for one in entries if one["kind"] == "baseline" and one["tuned"] is tuned]
            return {one["of"]: one["step_time_s"] for one in some}

        given, tuned = times(False), times(True)
        explore = load_scenario(SCENARIOS / f"{name}.yaml", []).explore
        cells = [
            f"{time_text(tuned[base]) if base in tuned else 'none fits'}"
            f" ({time_text(given[base]) if base in given else 'does not fit'})"
            if explore is not None and base in explore.baselines
            else ""
            for base in bases
        ]
        over = [some.get(bases[0]) for some in (given, tuned)]
        over += [min(some.values(), default=None) for some in (given, tuned)]
        cells.append(_single(compared))
        cells += [time_text(best_s), time_text(document["work"]["computing_s"])]
        cells += ["" if other is None else f"{other / best_s:.2f}x" for other in over]
        took = folder / name / TOOK
        cells.append(f"{float(took.read_text()):.0f} s" if took.exists() else "")
        yield f"| `{name}` | {' | '.join(cells)} |"


def _single(compared: Sequence[dict[str, Any]]) -> str:
    """The quickest that changes one dimension alone and its degrees; in brackets with the scenario's."""
    some = [one for one in compared if one["kind"] == "single"]
    quickest = [
        min((one for one in some if one["tuned"] is tuned), key=lambda one: one["step_time_s"], default=None)
        for tuned in (True, False)
    ]
    tuned, given = (
        one and f"{one['of'].removeprefix('only ')} {time_text(one['step_time_s'])}" for one in quickest
    )
    return f"{tuned} ({given})" if tuned and given else tuned or given or ""


def _explore(name: str, folder: Path, *, whole: bool) -> None:
    began_s = time.monotonic()
    more = ["--set", "explore.whole=true"] if whole else []
    _testbed("explore", str(SCENARIOS / f"{name}.yaml"), *more, "-o", str(folder))
    (folder / TOOK).write_text(f"{time.monotonic() - began_s:.1f}\n")


def _run_missing(name: str, folder: Path, jobs: str | None, *, whole: bool) -> None:
    def measure(file: Path, trials: int, output: str) -> None:
        if not (folder / output / SUMMARY).exists():
            command = ["run", str(file), "--clock", "virtual", "--trials", str(trials)]
            _testbed(*command, *(["--jobs", jobs] if jobs else []), "-o", str(folder / output))

    if not (folder / "confirm.yaml").exists():
        _explore(name, folder, whole=whole)
    measure(folder / "confirm.yaml", 1, FIRST)
    compared = _compared(folder)
    _, quickest, _ = told = _told(compared)
    near = [one for one in compared if one.kind == "baseline" and one.step_s <= NEAR * quickest.step_s]
    repeat = load_scenario(folder / "confirm.yaml", [])
    confirmed = repeat.variants
    assert confirmed is not None

    def again(chosen: set[str], done: int, trials: int, output: str) -> None:
        variants = {own: changes for own, changes in confirmed.items() if own in chosen}
        changes = {"variants": variants, "seed": repeat.seed + done * SEED_STEP}
        (folder / f"{output}.yaml").write_text(repeat.model_copy(update=changes).to_yaml())
        measure(folder / f"{output}.yaml", trials, output)

    chosen = {measured.variant for measured in (*told, *near)}
    if repeat.topology.resolve().lossy or len(chosen) < 2:  # as many as a scenario with variants needs
        chosen = set(confirmed)
    again(chosen, 1, 2, REPEATED)
    _, base, best = _told(_compared(folder))
    interval = _interval(best, base)
    if interval is not None and interval[0] < 1:
        again({base.variant, best.variant}, 3, 6, SETTLED)


def _testbed(*arguments: str) -> None:
    status = subprocess.run([sys.executable, "-m", "testbed", *arguments], check=False).returncode
    if status not in (0, UNTRUSTED):
        sys.exit(status)


@dataclass(frozen=True)
class Measured:
    """What is compared. samples: seconds of each trial; predicted_s: what the model says of the first ones."""

    name: str
    kind: str
    variant: str
    samples: Sequence[float]
    predicted_s: Sequence[float]

    @property
    def step_s(self) -> float:
        """The median, to the digits that are told: of what takes the same the first is chosen."""
        return float(f"{statistics.median(self.samples):.4g}")

    @property
    def means(self) -> tuple[float, float]:
        """What was predicted and what was measured, seconds, of the trials that the model was asked of."""
        return statistics.mean(self.predicted_s), statistics.mean(self.samples[: len(self.predicted_s)])

    @property
    def error(self) -> float:
        """The model's."""
        predicted_s, measured_s = self.means
        return predicted_s / measured_s - 1


def _compared(folder: Path) -> list[Measured]:
    """What was measured and is to be trusted, once for each that is compared."""
    compared = json.loads((folder / RESULT).read_text())["compared"]
    found: dict[str, tuple[list[float], list[float]]] = {}
    for output in (FIRST, REPEATED, SETTLED):
        if not (folder / output / SUMMARY).exists():
            continue
        for one in json.loads((folder / output / SUMMARY).read_text())["variants"]:
            if one["verdict"]["status"] != "untrusted":
                samples, predicted_s = found.setdefault(one["name"], ([], []))
                measured_s = one["step_time_s"]["samples"]
                samples += measured_s
                if len(measured_s) <= 2:  # that of several trials is their median, which of two is the mean
                    predicted_s += [one["predicted"]["step_time_s"]] * len(measured_s)
    return [
        Measured(entry["name"], entry["kind"], entry["variant"], *found[entry["variant"]])
        for entry in compared
        if entry["variant"] in found
    ]


def _told(compared: Sequence[Measured]) -> tuple[Measured, Measured, Measured]:
    """Of what the table tells: the first baseline, the quickest of them, tuned or not, the best of all.

    Once some were repeated the quickest is one of these.
    """
    bases, best = ([one for one in compared if one.kind == kind] for kind in ("baseline", "best"))
    quickest, joint = (min(some, key=lambda one: (-len(one.samples), one.step_s)) for some in (bases, best))
    return bases[0], quickest, joint


def _table(points: Sequence[tuple[str, Sequence[Measured]]]) -> Iterator[str]:
    heads = (
        "production",
        "best baseline",
        "best",
        "over production",
        "over the best baseline",
        "one dimension alone",
    )
    yield f"| design point | {' | '.join(heads)} |"
    yield f"|---{'|---' * len(heads)}|"
    runs: dict[str, list[Measured]] = {}
    for point, compared in points:
        production, base, best = _told(compared)
        alone = [one for one in compared if one.kind == "single"]
        single = min(alone, key=lambda one: one.step_s, default=None)
        cells = [
            time_text(production.step_s),
            f"{time_text(base.step_s)} ({base.name})",
            time_text(best.step_s),
            _faster(best, production),
            _faster(best, base),
            "" if single is None else f"{single.name}, {_ratio(single, production):.2f}x",
        ]
        yield f"| `{point}` | {' | '.join(cells)} |"
        # what differs by name alone counts once: that with most trials
        by_trials = sorted(compared, key=lambda one: len(one.samples))
        runs[point] = list({f"{measured.samples[0]:.6g}": measured for measured in by_trials}.values())
    lossy = [
        point for point in runs if load_scenario(SCENARIOS / f"{point}.yaml", []).topology.resolve().lossy
    ]
    clean = [point for point in runs if point not in lossy]
    for words, some in (("without losses", clean), ("with losses", lossy)):
        every = [measured for point in some for measured in runs[point]]
        if len(every) > 1:
            errors = sorted(abs(measured.error) for measured in every)
            taus = [f"{_tau(runs[point]):.2f} {point}" for point in some]
            yield ""
            yield (
                f"{len(every)} configurations {words}: the model's error is {statistics.median(errors):.1%} in the "
                f"median, {errors[-1]:.1%} at the worst; Kendall's tau {_tau(every):.2f} over all, {', '.join(taus)}."
            )


def _tau(some: Sequence[Measured]) -> float:
    return kendall_tau([one.means for one in some])


def _ratio(quick: Measured, slow: Measured) -> float:
    return slow.step_s / quick.step_s


def _faster(quick: Measured, slow: Measured) -> str:
    found = f"{_ratio(quick, slow):.2f}x"
    interval = _interval(quick, slow)
    return found if interval is None else f"{found} ({interval[0]:.2f} to {interval[1]:.2f})"


def _interval(quick: Measured, slow: Measured) -> tuple[float, float] | None:
    """Over the trials that both have."""
    pairs = min(len(quick.samples), len(slow.samples))
    return speedup_interval(quick.samples[:pairs], slow.samples[:pairs])


if __name__ == "__main__":
    main()
