"""What a scheduler's allocation costs collectives: 16 of the 48 hosts of topologies/training-region.yaml, by the model.

    .venv/bin/python benchmarks/allocations.py

Prints a table of docs/collectives.md.
"""

from __future__ import annotations

import statistics
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


def step_s(allocation: dict[str, Any], collective: str, algorithm: str, seed: int) -> float:
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
    return testbed.predict(scenario)["ring"].step_time_s


def row(name: str, allocation: dict[str, Any]) -> None:
    """Print it: median over seeds where others' hosts are drawn."""
    seeds = SEEDS if allocation.get("busy") else SEEDS[:1]
    times = (
        statistics.median(step_s(allocation, *collective, seed) for seed in seeds)
        for collective in COLLECTIVES
    )
    print(f"| {name} | " + " | ".join(f"{1e3 * one:.1f} ms" for one in times) + " |", flush=True)


def main() -> None:
    """Print."""
    print("| allocation | " + " | ".join(" ".join(one) for one in COLLECTIVES) + " |\n|" + "---|" * 5)
    for name, allocation in ALLOCATIONS.items():
        row(name, allocation)
        row(f"{name}; ranks scattered", {**allocation, "order": "scattered"})


if __name__ == "__main__":
    main()
