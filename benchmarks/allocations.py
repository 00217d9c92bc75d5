"""What a scheduler's allocation costs collectives: 16 of the 48 hosts of topologies/training-region.yaml.

    .venv/bin/python benchmarks/allocations.py                      # by the model
    .venv/bin/python benchmarks/allocations.py --packets FOLDER     # by the virtual clock; gone on with

Each prints a table of docs/collectives.md.
"""

from __future__ import annotations

import argparse
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


def scenario(allocation: dict[str, Any], workload: dict[str, Any], seed: int) -> dict[str, Any]:
    """Collectives of 16 ranks."""
    return {
        "name": "allocation",
        "topology": str(TOPOLOGY),
        "ranks": RANKS,
        "allocation": allocation,
        "workload": workload,
        "policy": "ecmp",
        "seed": seed,
        "trials": 1,
        "scale": {"size_scale": 16},
    }


def workload(collective: str, algorithm: str) -> dict[str, Any]:
    """One of them."""
    return {"collectives": [{"collective": collective, "size": SIZE, "algorithm": algorithm}]}


def step_s(allocation: dict[str, Any], collective: str, algorithm: str, seed: int) -> float:
    """Of one collective, by the model."""
    loaded = testbed.load(scenario(allocation, workload(collective, algorithm), seed))
    return testbed.predict(loaded)["ring"].step_time_s


def row(name: str, allocation: dict[str, Any]) -> None:
    """Print it: median over seeds where others' hosts are drawn."""
    seeds = SEEDS if allocation.get("busy") else SEEDS[:1]
    times = (
        statistics.median(step_s(allocation, *collective, seed) for seed in seeds)
        for collective in COLLECTIVES
    )
    print(f"| {name} | " + " | ".join(f"{1e3 * one:.1f} ms" for one in times) + " |", flush=True)


def row_on_packets(name: str, allocation: dict[str, Any], folder: Path) -> None:
    """Print it: of the first seed, with how far the model is off."""
    # a direct all-to-all of more keeps a guest's memory full of what its connections hold
    asked = scenario(allocation, workload(*COLLECTIVES[0]), SEEDS[0]) | {"scale": {"size_scale": 64}}
    asked |= {"preset": "ncclx", "warmup": 10}  # TCP's windows open in the warm-up
    asked["variants"] = {"-".join(one).replace("_", "-"): {"workload": workload(*one)} for one in COLLECTIVES}
    where = folder / name.replace(" ", "-").replace(",", "").replace(";", "")
    result = testbed.Result.open(where) if where.exists() else testbed.run(asked, output=where)
    cells = []
    for one in result.variants:
        assert one.predicted is not None
        cells.append(f"{1e3 * one.step_time_s.median:.1f} ms ({one.predicted.error:+.1%})")
    print(f"| {name} | {' | '.join(cells)} | {result.status} |", flush=True)


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=Path, metavar="FOLDER")
    folder = parser.parse_args().packets
    more = " verdict |" if folder else ""
    print("| allocation | " + " | ".join(" ".join(one) for one in COLLECTIVES) + " |" + more)
    print("|" + "---|" * (6 if folder else 5))
    for name, allocation in ALLOCATIONS.items():
        for label, order in ((name, "near"), (f"{name}; ranks scattered", "scattered")):
            own = {**allocation, "order": order}
            if folder:
                row_on_packets(label, own, folder)
            else:
                row(label, own)


if __name__ == "__main__":
    main()
