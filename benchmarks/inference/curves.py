"""Latency against load of a node's partitions: `python benchmarks/inference/curves.py FOLDER [--packets RUNS]`.

Writes `load.csv`, `load.svg` and `load.md` into the folder: each setup of scenarios/inference/partitions.yaml at shares
of its capacity, and the most load within the objective. By the model, where the most is found between two loads by
halving; with --packets on packets (`load-packets`), the model beside: each load a run under the virtual clock in the
folder RUNS, where what is there is not run again, and one more at the most load by the model.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from measuring import SCENARIOS, measured, predicted

from testbed.show.report.serving import load_chart
from testbed.show.report.svg import svg_document
from testbed.spec.scenario import load_scenario

SCENARIO = "partitions.yaml"
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
SHARES_ON_PACKETS = (0.6, 0.9)
HALVINGS = 4
COLUMNS = ["setup", "by", "per_s", "p50", "p99", "p999", "p99_model", "within"]
COLUMNS += ["batching_s", "queue_s", "transfer_s", "compute_s", "bytes_exact", "verdict"]

Served = dict[str, Any]
"""As results' `Serving` has it, and the verdict."""


def by_model(requests: int, setup: str, rate_per_s: float) -> Served:
    """What the model says of a setup at a load."""
    changes = {"workload.inference.rate": rate_per_s, "workload.inference.requests": requests}
    return {**predicted(SCENARIO, setup, changes), "verdict": "model"}


def on_packets(runs: Path, requests: int, setup: str, rate_per_s: float) -> Served:
    """What a run says of it."""
    changes = {"workload.inference.rate": rate_per_s, "workload.inference.requests": requests}
    found = measured(runs, f"{setup}-{rate_per_s:g}-{requests}", SCENARIO, setup, changes)
    assert found.serving is not None
    return {**found.serving.document(), "verdict": found.verdict.status}


def holds(serving: Served) -> bool:
    """Whether the objective is met at a load that can go on."""
    met: bool = serving["within"] >= serving["objective_share"]
    return met and serving["offered_per_s"] <= serving["capacity_per_s"]


def most_within(serve: Callable[[float], Served], tried: Sequence[Served]) -> float:
    """Requests per second: between the highest load that holds and the next, by halving."""
    good = max((one["offered_per_s"] for one in tried if holds(one)), default=0.0)
    bad = min([one["offered_per_s"] for one in tried if not holds(one)], default=tried[-1]["capacity_per_s"])
    for _ in range(HALVINGS):
        if bad <= good:
            break
        middle = serve((good + bad) / 2)
        if holds(middle):
            good = max(good, middle["offered_per_s"])
        else:
            bad = middle["offered_per_s"]
    return good


def row(setup: str, one: Served) -> list[object]:
    """Of the table of all loads."""
    late, said = one["latency"], one["predicted"] or {}
    exact = all(link["bytes_expected"] == link["bytes_observed"] for link in one["links"])
    latencies = [f"{late[name]:.6g}" for name in ("p50", "p99", "p999")]
    parts = [f"{seconds:.6g}" for seconds in one["p99_parts"].values()]
    model = f"{said['p99']:.6g}" if said else ""
    by = "model" if one["verdict"] == "model" else "packets"
    return [
        setup,
        by,
        round(one["offered_per_s"]),
        *latencies,
        model,
        one["within"],
        *parts,
        exact,
        one["verdict"],
    ]


def main() -> None:
    """All setups."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packets", type=Path, metavar="RUNS")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--setups", nargs="+", help="these alone")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    variants, rows, most = [], [], []
    for setup in options.setups or load_scenario(SCENARIOS / SCENARIO).variant_names:
        model = partial(by_model, options.requests, setup)
        full = model(1e7)  # batches are full
        capacity = full["capacity_per_s"]
        rates = [round(share * capacity) for share in SHARES]
        tried = [model(rate) for rate in rates]
        found = most_within(model, tried)
        shown = tried
        if options.packets:
            packets = partial(on_packets, options.packets, options.requests, setup)
            near = [round(found)] if found else []
            rates = [round(share * capacity) for share in SHARES_ON_PACKETS]
            shown = [packets(rate) for rate in sorted({*rates, *near})]
        for one in shown:
            rows.append(row(setup, one))
            name = f"{setup}-{round(one['offered_per_s'])}"
            variants.append({"name": name, "serving": one, "verdict": {"status": one["verdict"]}})
        held = max((one["offered_per_s"] for one in shown if holds(one)), default=0.0)
        energy, cost = tried[3]["energy_j"], tried[3]["cost_usd"]
        most.append([setup, capacity, full["limited_by"], found, held, energy, cost])
        print(most[-1], flush=True)
    stem = "load-packets" if options.packets else "load"
    with (options.folder / f"{stem}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    chart = load_chart(variants)
    assert chart is not None
    style = files("testbed.show.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
    (options.folder / f"{stem}.svg").write_text(svg_document(ElementTree.fromstring(chart), style))
    lines = [
        "| setup | full at | limited by | most within, by the model | of those tried | J | $ a million |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {s} | {c:,.0f}/s | {b} | {m:,.0f}/s | {h:,.0f}/s | {e:.3f} | {d:.3f} |"
        for s, c, b, m, h, e, d in most
    ]
    (options.folder / f"{stem}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
