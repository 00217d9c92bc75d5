"""What planning with a slow building gains against ignoring it.

    .venv/bin/python benchmarks/straggling.py [--slowdowns 1.05,1.1,1.2,1.5] [--run FOLDER]

scenarios/unlike-buildings.yaml with H100 in both buildings, of which one computes slower by a factor: shared out as if
they were alike, and by speed, where each building has a replica and where the pipeline goes across. By the model; with
--run on packets under the virtual clock, one run in FOLDER for each slowdown that is not there yet. Prints a table of
docs/evidence/training.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import testbed
from testbed.measure.results.result import Result

SCENARIO = Path(__file__).parents[1] / "scenarios" / "unlike-buildings.yaml"
WAYS = {"replicas": "replicas-by-speed", "pipeline": "pipeline-by-speed"}


def scenario(slowdown: float, ways: Sequence[str]) -> testbed.Scenario:
    """The second building slower by this factor; the job spread in these ways."""
    slow = [{"building": "west", "slowdown": slowdown}] if slowdown > 1 else []
    own = testbed.load(
        SCENARIO,
        {"topology.buildings.west.accelerator": "h100", "workload.parallelism.stragglers": slow},
    )
    assert own.variants is not None
    names = [name for way in ways for name in (way, WAYS[way])]
    return own.model_copy(update={"variants": {name: own.variants[name] for name in names}})


def measured(own: testbed.Scenario, folder: Path) -> dict[str, float]:
    """On packets: seconds of a step by variant. SystemExit where any is not trusted."""
    result = Result.open(folder) if folder.exists() else testbed.run(own, output=folder)
    if result.status != "trusted":
        raise SystemExit(f"{folder}: the run is {result.status}")
    return {variant.name: variant.step_time_s.median for variant in result.variants}


def main() -> None:
    """A row for each slowdown and way to spread the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--slowdowns", default="1.05,1.1,1.2,1.5")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="on packets")
    options = parser.parse_args()
    print("| | slower by | nobody slow | ignored | planned with | of what it costs is won back | |")
    print("|---|---|---|---|---|---|---|")
    usual = {name: one.step_time_s for name, one in testbed.predict(scenario(1.0, options.ways)).items()}
    for slowdown in map(float, options.slowdowns.split(",")):
        own = scenario(slowdown, options.ways)
        if options.run:
            took_s = measured(own, options.run / f"slower-{slowdown:g}")
        else:
            took_s = {name: one.step_time_s for name, one in testbed.predict(own).items()}
        for ignored, planned in ((way, WAYS[way]) for way in options.ways):
            before_s, after_s = took_s[ignored], took_s[planned]
            won = (before_s - after_s) / (before_s - usual[ignored])
            times = f"{usual[ignored]:.3f} s | {before_s:.3f} s | {after_s:.3f} s"
            cells = f"{slowdown - 1:.0%} | {times} | {won:.0%} | {before_s / after_s:.3f}x"
            print(f"| {ignored} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
