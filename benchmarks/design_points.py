"""Explores all design points, confirms what it finds under the virtual clock, prints what docs/design-points.md has.

    .venv/bin/python benchmarks/design_points.py FOLDER [--only NAME ...] [--jobs 2] [--table]

Each scenario of scenarios/explore goes into a folder of its own in FOLDER; one that is confirmed there already is not
run again. --table: nothing is run, the table alone is printed of what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.explorer.confirming import kendall_tau
from testbed.report.compare import speedup_interval
from testbed.report.figures import time_text

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "explore"
BASELINES = ("production", "atlas", "crosspipe", "arnold")
SINGLE = "only "


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    names = [file.stem for file in sorted(SCENARIOS.glob("*.yaml"))]
    points = []
    for name in names:
        if options.only and name not in options.only:
            continue
        folder = options.folder / name
        if not options.table and not (folder / "confirmed/summary.json").exists():
            command = [sys.executable, "-m", "testbed", "explore", str(SCENARIOS / f"{name}.yaml")]
            subprocess.run([*command, "-o", str(folder), "--confirm", "--jobs", options.jobs], check=False)
        if (folder / "confirmed/summary.json").exists():
            points.append((name, _compared(folder)))
    print("\n".join(_table(points)))


def _compared(folder: Path) -> dict[str, dict[str, Any]]:
    """What was measured, by what was compared."""
    compared = json.loads((folder / "exploration.json").read_text())["compared"]
    variants = json.loads((folder / "confirmed/summary.json").read_text())["variants"]
    measured = {one["name"]: one for one in variants}
    return {entry["name"]: measured[entry["variant"]] for entry in compared if entry["variant"] in measured}


def _table(points: Sequence[tuple[str, dict[str, dict[str, Any]]]]) -> Iterator[str]:
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
    pairs: list[list[tuple[float, float]]] = []
    for point, compared in points:
        trusted = {name: one for name, one in compared.items() if one["verdict"]["status"] != "untrusted"}
        best = min((one for own, one in trusted.items() if own.startswith("best ")), key=_median_s)
        base = min((trusted[own] for own in BASELINES if own in trusted), key=_median_s)
        alone = [own for own in trusted if own.startswith(SINGLE)]
        single = min(alone, key=lambda own: _median_s(trusted[own]), default=None)
        cells = [
            time_text(_median_s(trusted["production"])),
            f"{time_text(_median_s(base))} ({base['name']})",
            time_text(_median_s(best)),
            _faster(best, trusted["production"]),
            _faster(best, base),
            "" if single is None else f"{single}, {_faster(trusted[single], trusted['production'])}",
        ]
        yield f"| `{point}` | {' | '.join(cells)} |"
        runs = {one["name"]: one for one in trusted.values()}  # what is the same configuration was run once
        pairs.append([(one["predicted"]["step_time_s"], _median_s(one)) for one in runs.values()])
    every = [pair for own in pairs for pair in own]
    if every:
        errors = sorted(abs(predicted / measured - 1) for predicted, measured in every)
        taus = [f"{kendall_tau(own):.2f}" for own in pairs]
        yield ""
        yield (
            f"{len(every)} configurations: the model's error is {statistics.median(errors):.1%} in the median, "
            f"{errors[-1]:.1%} at the worst; Kendall's tau {kendall_tau(every):.2f} over all, "
            f"{', '.join(taus)} by point."
        )


def _median_s(variant: dict[str, Any]) -> float:
    return float(variant["step_time_s"]["median"])


def _faster(quick: dict[str, Any], slow: dict[str, Any]) -> str:
    found = f"{_median_s(slow) / _median_s(quick):.2f}x"
    interval = speedup_interval(quick["step_time_s"]["samples"], slow["step_time_s"]["samples"])
    return found if interval is None else f"{found} ({interval[0]:.2f} to {interval[1]:.2f})"


if __name__ == "__main__":
    main()
