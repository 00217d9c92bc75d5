"""Replicas die at 200 random moments on an emulated network: does the job go on, are sums right, how long is a stall?

    .venv/bin/python benchmarks/kill_moments.py FOLDER [--runs 20] [--table]

Each run is scenarios/faults/replica-loss.yaml with non-blocking catch-up, replicas of two ranks and ten deaths, six
steps apart: of a rank, or of its machine without a word, drawn by its seed, as is the moment within the step. Runs
go under the virtual clock; what is in FOLDER already is not run again. Fails where an invariant does not hold (sums are
as they should be, among others) or a stall was longer than the time to detect and one step. --table: nothing is run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from testbed.spec.scenario import load_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "faults" / "replica-loss.yaml"
DEATHS, APART_STEPS, STEP_S = 10, 6, 1.3
RANKS, HOSTS_PER_BUILDING = 8, 2
BUILDINGS = ("north", "east", "south", "west")
DETECT_S = 0.5  # the scenario's
AWAY = "3 s"


def main() -> int:
    """Run what is missing, print the table; 1 where something did not go as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        for seed in range(options.runs):
            _run(options.folder, seed)
    return _print(options.folder)


def _events(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"kills/{seed}")
    found = []
    for number in range(DEATHS):
        rank = chance.randrange(RANKS)
        host = f"{BUILDINGS[rank // HOSTS_PER_BUILDING]}{rank % HOSTS_PER_BUILDING + 1}"
        action, target = chance.choice((("rank_kill", rank), ("host_kill", host)))
        at = f"{1e3 * chance.uniform(0, STEP_S):.3f} ms"
        step = 1 + APART_STEPS * number
        found.append({"action": action, "target": target, "step": step, "at": at, "for": AWAY})
    return found


def _run(folder: Path, seed: int) -> None:
    run = folder / f"kills-{seed}"
    if run.exists():
        return
    settings = {
        "workload.parallelism.faults.catch_up": "non_blocking",
        "workload.parallelism.data_parallel_shard_degree": HOSTS_PER_BUILDING,
        "ranks": RANKS,
        **{f"topology.buildings.{building}.hosts": HOSTS_PER_BUILDING for building in BUILDINGS},
        "events": _events(seed),
        "trials": 1 + APART_STEPS * DEATHS,
        "seed": seed + 1,
    }
    scenario = load_scenario(SCENARIO).changed(settings, run.name)
    file = folder / f"{run.name}.yaml"
    file.write_text(scenario.to_yaml())
    command = [sys.executable, "-m", "testbed", "run", str(file), "--clock", "virtual", "--jobs", "1"]
    done = subprocess.run([*command, "-o", str(run)], capture_output=True, text=True, check=False)
    print(f"{run.name}: status {done.returncode}{done.stderr[-400:]}", file=sys.stderr, flush=True)


def _print(folder: Path) -> int:
    """The table, by kind of death."""
    stalls: dict[str, list[float]] = {"rank": [], "host": []}
    detections: dict[str, list[float]] = {"rank": [], "host": []}
    period_s, late = 0.0, []
    for run in sorted(folder.glob("kills-*/summary.json")):
        (variant,) = json.loads(run.read_text())["variants"]
        replication = variant["replication"]
        period_s = max(period_s, replication["period_s"])
        if broken := [own["name"] for own in variant["verdict"]["invariants"] if own["ok"] is False]:
            late.append(f"{run.parent.name}: {', '.join(broken)}")
        events = _events(int(run.parent.name.rpartition("-")[2]))
        if len(replication["losses"]) != len(events):
            late.append(f"{run.parent.name}: {len(replication['losses'])} losses of {len(events)}")
        for event, loss in zip(events, replication["losses"], strict=False):
            what = event["action"].partition("_")[0]
            stalls[what].append(loss["stall_s"])
            detections[what].append(loss["detected_s"])
            if loss["stall_s"] > DETECT_S + period_s:
                late.append(f"{run.parent.name}: {event}: stall of {loss['stall_s']:.3f} s")
    print("| what dies | deaths | known after | stall, median | longest |\n|---|---|---|---|---|")
    for what, own in stalls.items():
        if own:
            known, median = max(detections[what]), statistics.median(own)
            print(f"| a {what} | {len(own)} | {known:.3f} s | {median:.3f} s | {max(own):.3f} s |")
    print(f"\na step takes {period_s:.3f} s; not as promised: {len(late)}")
    print("\n".join(late))
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
