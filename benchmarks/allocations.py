"""What a scheduler's allocation costs collectives: 16 of the 48 hosts of topologies/training-region.yaml.

    .venv/bin/python benchmarks/allocations.py                      # by the model
    .venv/bin/python benchmarks/allocations.py --packets FOLDER     # by the virtual clock; gone on with
        [--only ROW ...] [--size-scale 64] [--queue SIZE] [--warmup 4] [--memory SIZE]

Each prints a table of docs/evidence/collectives.md. On packets the ports of switches and WAN links have queues that
hold what eight senders have under way: what pauses keep from being dropped in networks of RoCE.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import yaml

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


def deep(queue: str) -> dict[str, Any]:
    """The topology with ports that hold so much."""
    document: dict[str, Any] = yaml.safe_load(TOPOLOGY.read_text())
    buildings = document["buildings"].values()
    uplinks = [building["clos"][tier] for building in buildings for tier in ("leaf", "spine")]
    for way in (*(building["nic"] for building in buildings), *uplinks, *document["wan"]):
        way["queue"] = queue
    return document


def row_on_packets(name: str, allocation: dict[str, Any], options: argparse.Namespace) -> None:
    """Print it: of the first seed, with how far the model is off."""
    asked = scenario(allocation, workload(*COLLECTIVES[0]), SEEDS[0])
    asked |= {"scale": {"size_scale": options.size_scale}, "topology": deep(options.queue)}
    asked |= {"preset": "ncclx", "warmup": options.warmup}  # TCP's windows open in the warm-up
    asked["variants"] = {"-".join(one).replace("_", "-"): {"workload": workload(*one)} for one in COLLECTIVES}
    where = options.packets / name.replace(" ", "-").replace(",", "").replace(";", "")
    ran = where.exists()
    result = testbed.Result.open(where) if ran else testbed.run(asked, memory=options.memory, output=where)
    cells = []
    for one in result.variants:
        assert one.predicted is not None
        cells.append(f"{1e3 * one.step_time_s.median:.1f} ms ({one.predicted.error:+.1%})")
    print(f"| {name} | {' | '.join(cells)} | {result.status} |", flush=True)


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--size-scale", type=float, default=64, help="of packets")
    parser.add_argument("--queue", default="1 GB", metavar="SIZE", help="that ports hold, on packets")
    parser.add_argument("--warmup", type=int, default=4, help="steps of packets ahead of the one that counts")
    parser.add_argument(
        "--memory", metavar="SIZE", help="that each guest may use, in place of what it is expected to"
    )
    options = parser.parse_args()
    more = " verdict |" if options.packets else ""
    print("| allocation | " + " | ".join(" ".join(one) for one in COLLECTIVES) + " |" + more)
    print("|" + "---|" * (6 if options.packets else 5))
    for name, allocation in ALLOCATIONS.items():
        for label, order in ((name, "near"), (f"{name}; ranks scattered", "scattered")):
            own = {**allocation, "order": order}
            if options.only and label not in options.only:
                continue
            if options.packets:
                row_on_packets(label, own, options)
            else:
                row(label, own)


if __name__ == "__main__":
    main()
