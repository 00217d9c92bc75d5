"""Decoding with experts, by the model: twelve cells against two all-gathers and an all-to-all, and what a peer costs.

    .venv/bin/python benchmarks/decode.py

Racks of eight hosts with an accelerator each in one zone, latencies as in topologies/training-region.yaml, nothing
oversubscribed. A token's time is from one combine's end to the next one's, on the last rank; p50 and p99 are over
tokens, each with experts of its own.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.config import load_scenario
from testbed.job.job import job_of
from testbed.model import simulate
from testbed.model.calibration import VIRTUAL, find_calibration
from testbed.model.predicting import routed
from testbed.scale import Scale

ROW = "14 KiB"  # of a token: 7168 numbers of 2 bytes, as of DeepSeek-V3
CELLS = list(itertools.product((1, 4), (128, 256), (4, 8, 16)))  # experts per token, batch, hosts
DIRECT = {"preset": "ncclx"}
CACHED = {"preset": "ncclx", "transport.protocol": "eager"}  # buffers are known: nothing is announced
COPIED = {"preset": "nccl"}


@dataclass(frozen=True)
class Way:
    """How counts and buffers are told: options of the workload, and changes of the scenario."""

    options: Mapping[str, str]
    changes: Mapping[str, str]


WAYS = {
    "baseline": Way({"metadata": "gathered"}, COPIED),
    "eager": Way({"metadata": "eager"}, DIRECT),
    "graph_padded": Way({"metadata": "graph_padded"}, DIRECT),
    "resident, exchange": Way({"metadata": "resident"}, DIRECT),
    "resident, cached": Way({"metadata": "resident", "handles": "cached"}, CACHED),
}


def scenario(ranks: int, options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding on so many hosts."""
    racks = max(1, ranks // 8)
    clos: dict[str, Any] = {"leaves": racks, "spines": 4}
    clos["leaf"] = {"oversubscription": "1:1", "delay": "30 us"}
    topology = {
        "name": "decode",
        "mtu": 9000,
        "buildings": {"hall": {"hosts": ranks, "nic": {"rate": "400 Gbit/s", "delay": "5 us"}, "clos": clos}},
    }
    workload = {"plan": "decode", "options": {"row": ROW, **options}}
    return {"name": "decode", "topology": topology, "workload": workload, **changes}


def token_times(ranks: int, way: Way, **options: Any) -> list[float]:
    """By the model, of each token."""
    changes = {path: value for path, value in way.changes.items() if path == "preset"}
    overrides = [f"{path}={value}" for path, value in way.changes.items() if path != "preset"]
    loaded = load_scenario(scenario(ranks, {**options, **way.options}, changes), overrides)
    job = job_of(loaded, Scale())
    calibration = find_calibration(VIRTUAL)
    software = calibration.software(loaded.transport, Scale())
    plan = job.workload.plan.using("ring")
    spans = simulate(plan, routed(job, "ring", calibration), job.workload.itemsize, software).spans
    tokens, layers = options.get("tokens", 1), options.get("layers", 1)
    each = len(spans[0]) // (tokens * layers)
    ends = [max(rank[(number + 1) * each * layers - 1][1] for rank in spans) for number in range(tokens)]
    return [end - before for before, end in zip([0.0, *ends], ends, strict=False)]


def cells(tokens: int) -> list[str]:
    """The table, in Markdown."""
    lines = ["| experts | batch | hosts | " + " | ".join(f"{name}, p50 (p99)" for name in WAYS) + " | gain |"]
    lines.append("|---|" * 1 + "---|" * (3 + len(WAYS)))
    for experts_per_token, batch, hosts in CELLS:
        found = {
            name: np.array(
                token_times(hosts, way, batch=batch, experts_per_token=experts_per_token, tokens=tokens)
            )
            for name, way in WAYS.items()
        }
        medians = {name: float(np.median(own)) for name, own in found.items()}
        shown = [
            f"{medians[name] * 1e6:.0f} ({np.percentile(own, 99) * 1e6:.0f}) us"
            for name, own in found.items()
        ]
        gain = 1 - medians["resident, cached"] / medians["baseline"]
        lines.append(f"| {experts_per_token} | {batch} | {hosts} | {' | '.join(shown)} | {gain:.0%} |")
        print(lines[-1], flush=True)
    return lines


def per_peer() -> str:
    """T = Tc (N - 1) + S / BW: what is found of Tc, beside what software costs at both ends of a message."""
    options = {"batch": 128, "experts_per_token": 1, "experts": 128, "row": "64 B", "compute": "0 s"}
    sizes = (8, 16, 32, 64, 128)
    times = [token_times(ranks, WAYS["resident, cached"], **options)[0] / 2 for ranks in sizes]
    slope, rest = np.polyfit([ranks - 1 for ranks in sizes], times, 1)
    software = load_scenario(scenario(8, {}, CACHED)).transport.software_cost
    return (
        f"each peer costs {slope * 1e6:.3f} us, {2 * software.per_message_s * 1e6:g} us by its messages; "
        f"beside that {rest * 1e6:.1f} us"
    )


def main() -> None:
    """Say the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20)
    options = parser.parse_args()
    print(per_peer())
    print("\n".join(cells(options.tokens)))


if __name__ == "__main__":
    main()
