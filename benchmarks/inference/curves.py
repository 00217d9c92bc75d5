"""Latency against load of a node's partitions, by the model: `python benchmarks/inference/curves.py FOLDER`.

Writes `load.csv`, `load.svg` and `load.md` into the folder: each setup of scenarios/inference/partitions.yaml at shares
of its capacity, and the most load within the objective, found between two loads by halving.
"""

from __future__ import annotations

import argparse
import csv
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from testbed.config import load_scenario
from testbed.model.calibration import VIRTUAL, find_calibration
from testbed.model.predictions import predict_all
from testbed.report.requests import load_chart
from testbed.report.svg import standalone
from testbed.scale import Scale

SCENARIO = Path(__file__).parents[2] / "scenarios/inference/partitions.yaml"
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
HALVINGS = 4


def served(setup: str, rate_per_s: float, requests: int) -> dict[str, Any]:
    """What the model says of a setup at a load."""
    scenario = load_scenario(SCENARIO, [f"workload.inference.requests={requests}"])
    assert scenario.variants is not None
    scenario = scenario.changed({**scenario.variants[setup], "workload.inference.rate": rate_per_s}, setup)
    (found,) = predict_all(scenario, find_calibration(VIRTUAL), Scale()).values()
    assert found.serving is not None
    return dict(found.serving)


def holds(serving: dict[str, Any]) -> bool:
    """Whether the objective is met at a load that can go on."""
    met: bool = serving["within"] >= serving["objective_share"]
    return met and serving["offered_per_s"] <= serving["capacity_per_s"]


def most_within(setup: str, tried: list[dict[str, Any]], requests: int) -> float:
    """Requests per second: between the highest load that holds and the next, by halving."""
    good = max((one["offered_per_s"] for one in tried if holds(one)), default=0.0)
    bad = min([one["offered_per_s"] for one in tried if not holds(one)], default=tried[-1]["capacity_per_s"])
    for _ in range(HALVINGS):
        if bad <= good:
            break
        middle = served(setup, (good + bad) / 2, requests)
        if holds(middle):
            good = max(good, middle["offered_per_s"])
        else:
            bad = middle["offered_per_s"]
    return good


def main() -> None:
    """All setups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    variants, rows, most = [], [], []
    for setup in load_scenario(SCENARIO).variant_names:
        full = served(setup, 1e7, 240)  # batches are full
        capacity = full["capacity_per_s"]
        tried = [served(setup, round(share * capacity), options.requests) for share in SHARES]
        for share, one in zip(SHARES, tried, strict=True):
            latency, parts = one["latency"], one["p99_parts"]
            rows.append(
                [setup, share, round(one["offered_per_s"]), *latency.values(), one["within"], *parts.values()]
            )
            name = f"{setup}-{round(one['offered_per_s'])}"
            variants.append({"name": name, "serving": one, "verdict": {"status": "trusted"}})
        found = most_within(setup, tried, options.requests)
        most.append([setup, capacity, full["limited_by"], found, tried[3]["energy_j"], tried[3]["cost_usd"]])
        print(most[-1], flush=True)
    with (options.folder / "load.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        parts = ("batching_s", "queue_s", "transfer_s", "compute_s")
        writer.writerow(["setup", "share", "per_s", "mean", "p50", "p99", "p999", "max", "within", *parts])
        writer.writerows(rows)
    chart = load_chart(variants)
    assert chart is not None
    style = files("testbed.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
    (options.folder / "load.svg").write_text(standalone(ElementTree.fromstring(chart), style))
    lines = [
        "| setup | full at | limited by | most within the objective | J | $ a million |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {s} | {c:,.0f}/s | {b} | {m:,.0f}/s | {e:.3f} | {d:.3f} |" for s, c, b, m, e, d in most]
    (options.folder / "load.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
