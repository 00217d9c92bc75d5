"""What a scheduler's allocation costs collectives: 16 of the 48 hosts of topologies/training-region.yaml, by the model.

    .venv/bin/python benchmarks/allocations.py [--run]

With --run on emulated links under the virtual clock, too, those of RUN. Prints a table of docs/collectives.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import testbed

TOPOLOGY = Path(__file__).parents[1] / "topologies" / "training-region.yaml"
RANKS, SIZE, SEEDS = 16, "512 MB", (1, 2, 3, 4, 5)
COLLECTIVES = (
    ("all_gather", "ring"),
    ("all_gather", "near_first"),
    ("all_gather", "far_first"),
    ("all_to_all", "direct"),
)
ALLOCATIONS: dict[str, dict[str, Any]] = {
    "one building, whole racks": {"per_rack": 4, "per_building": 16},
    "two buildings, whole racks of one zone": {"per_rack": 4, "per_zone": 8, "per_building": 8},
    "two buildings, whole racks of two zones": {"per_rack": 4, "per_zone": 4, "per_building": 8},
    "two buildings, half racks": {"per_rack": 2, "per_zone": 4, "per_building": 8},
    "half the hosts busy": {"busy": 0.5},
    "half the racks busy": {"busy": 0.5, "busy_unit": "racks"},
}
RUN = ("two buildings, whole racks of one zone",)


def step_s(
    allocation: dict[str, Any], collective: str, algorithm: str, seed: int, run: bool = False
) -> float:
    """Of one collective of 16 ranks."""
    scenario = testbed.load(
        {
            "name": "allocation",
            "topology": str(TOPOLOGY),
            "ranks": RANKS,
            "allocation": allocation,
            "workload": {"collectives": [{"collective": collective, "size": SIZE, "algorithm": algorithm}]},
            "policy": "ecmp",
            "seed": seed,
            "trials": 1,
            "scale": {"size_scale": 16},
        }
    )
    if not run:
        return testbed.predict(scenario)["ring"].step_time_s
    with tempfile.TemporaryDirectory() as folder:
        result = testbed.run(scenario, output=Path(folder) / "run")
    if result.status != "trusted":
        raise SystemExit(f"{allocation}: the run is {result.status}")
    return result.variants[0].step_time_s.median


def row(name: str, allocation: dict[str, Any], run: bool = False) -> None:
    """Print it: median over seeds where others' hosts are drawn."""
    seeds = SEEDS if allocation.get("busy") else SEEDS[:1]
    times = (
        statistics.median(step_s(allocation, *collective, seed, run) for seed in seeds)
        for collective in COLLECTIVES
    )
    print(f"| {name} | " + " | ".join(f"{1e3 * one:.1f} ms" for one in times) + " |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="on emulated links, too")
    run = parser.parse_args().run
    print("| allocation | " + " | ".join(" ".join(one) for one in COLLECTIVES) + " |\n|" + "---|" * 5)
    for name, allocation in ALLOCATIONS.items():
        row(name, allocation)
        row(f"{name}; ranks scattered", {**allocation, "order": "scattered"})
        if run and name in RUN:
            row(f"{name}, measured", allocation, True)


if __name__ == "__main__":
    main()
