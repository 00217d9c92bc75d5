"""Decoding with experts: twelve cells against two all-gathers and an all-to-all, what a peer costs, where time goes.

    .venv/bin/python benchmarks/decode.py                         # by the model; 128 ranks take a quarter of an hour
    .venv/bin/python benchmarks/decode.py --packets FOLDER        # baseline and cached of the twelve cells

Racks of eight hosts with an accelerator each in one zone, latencies as in topologies/training-region.yaml, nothing
oversubscribed. A token's time is from one combine's end to the next one's, on the last rank; p50 and p99 are over
tokens, each with experts of its own.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import testbed
from testbed.measure.results.serving_result import Decoding
from testbed.measure.results.serving_summary import token_times as times_of
from testbed.measure.results.serving_summary import tokens_of
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.routes import route_network
from testbed.prediction.simulation import simulate
from testbed.spec.overrides import preset_transport
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.spec.units import parse_size
from testbed.workload.job.job import job_of

ROW = "14 KiB"  # of a token: 7168 numbers of 2 bytes, as of DeepSeek-V3
CELLS = list(itertools.product((1, 4), (128, 256), (4, 8, 16)))  # experts per token, batch, hosts
RATE_BPS = 400e9
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
    plan = job.workload.plan.with_algorithm("ring")
    spans = simulate(plan, route_network(job, "ring", calibration), job.workload.itemsize, software).spans
    return times_of(tokens_of(plan), spans)


def cells(tokens: int) -> None:
    """The table, in Markdown, line by line as it comes."""
    lines = [
        "| experts per token | batch | hosts | "
        + " | ".join(f"{name}, p50 (p99)" for name in WAYS)
        + " | gain |"
    ]
    lines.append("|---|" + "---|" * (3 + len(WAYS)))
    print("\n".join(lines), flush=True)
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
        print(f"| {experts_per_token} | {batch} | {hosts} | {' | '.join(shown)} | {gain:.0%} |", flush=True)


def per_peer() -> str:
    """T = Tc (N - 1) + S / BW: what is found of Tc, beside what software costs at both ends of a message."""
    # so many experts that every rank has rows for every other one
    options = {"batch": 128, "experts_per_token": 16, "experts": 128, "row": "64 B", "compute": "0 s"}
    sizes = (16, 32, 64)  # of more, what is received waits for what is sent, too
    times = [token_times(ranks, WAYS["resident, cached"], **options)[0] / 2 for ranks in sizes]
    slope, rest = np.polyfit([ranks - 1 for ranks in sizes], times, 1)
    cost_s = preset_transport("ncclx").software_cost.per_message_s
    return (
        f"each peer costs {slope * 1e6:.3f} us, {cost_s * 1e6:g} us by its message; "
        f"beside that {rest * 1e6:.1f} us"
    )


def on_packets(folder: Path, tokens: int) -> None:
    """The cells as runs by the virtual clock, in a folder that is gone on with; the table line by line."""
    lines = [
        "| experts per token | batch | hosts | baseline, p50 (p99) | the model | cached, p50 (p99) | the model "
        "| gain | verdict |",
        "|---|" + "---|" * 8,
    ]
    print("\n".join(lines), flush=True)
    for experts_per_token, batch, hosts in CELLS:
        options = {"batch": batch, "experts_per_token": experts_per_token, "tokens": tokens}
        asked = scenario(hosts, options, {})
        asked["variants"] = {
            name: {
                **WAYS[way].changes,
                **{f"workload.options.{key}": value for key, value in WAYS[way].options.items()},
            }
            for name, way in (("baseline", "baseline"), ("cached", "resident, cached"))
        }
        asked |= {"trials": 1, "warmup": 10, "scale": {"size_scale": 1}}  # TCP's windows open in the warm-up
        where = folder / f"{experts_per_token}-{batch}-{hosts}"
        result = testbed.Result.open(where) if where.exists() else testbed.run(asked, output=where)
        baseline, cached = (variant.decoding for variant in result.variants)
        assert baseline is not None
        assert cached is not None
        cells = [_measured(baseline), _said(baseline), _measured(cached), _said(cached)]
        gain = 1 - cached.token_s.p50 / baseline.token_s.p50
        head = f"| {experts_per_token} | {batch} | {hosts} | {' | '.join(cells)}"
        print(f"{head} | {gain:.0%} | {result.status} |", flush=True)


def _measured(found: Decoding) -> str:
    return f"{found.token_s.p50 * 1e6:.0f} ({found.token_s.p99 * 1e6:.0f}) us"


def _said(found: Decoding) -> str:
    return "" if found.predicted is None else f"{found.predicted.p50 / found.token_s.p50 - 1:+.1%}"


def split_at(hosts: int, megabytes: float, skew: float = 0.0) -> str:
    """By the model, of dispatch and combine where a rank sends so much: control, put and wait, exchanged and cached.

    skew: of experts, one on each rank; what a rank gets differs by it, what it sends does not.

    put: a rank's rows at its card's rate. control: what is longer than with cached handles. wait: the rest.
    """
    batch = round(megabytes * 1e6 / parse_size(ROW) / 4)
    options = {
        "batch": batch,
        "experts_per_token": 4,
        "experts": hosts,
        "compute": "0 s",
        "routing_skew": skew,
    }
    exchanged, cached = (
        token_times(hosts, WAYS[way], **options)[0] for way in ("resident, exchange", "resident, cached")
    )
    put_s = 2 * megabytes * 1e6 * 8 / RATE_BPS  # there and back
    words = []
    for name, whole_s in (("exchange", exchanged), ("cached", cached)):
        shares = [(whole_s - cached) / whole_s, put_s / whole_s, (cached - put_s) / whole_s]
        words.append(f"{name}: control {shares[0]:.0%}, put {shares[1]:.0%}, wait {shares[2]:.0%}")
    return f"{hosts} ranks, {megabytes:g} MB, routing_skew {skew:g}: {'; '.join(words)}"


def main() -> None:
    """Say the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=Path, metavar="FOLDER")
    parser.add_argument("--tokens", type=int, default=20)
    options = parser.parse_args()
    if options.packets is not None:
        on_packets(options.packets, options.tokens)
        return
    print(per_peer())
    for skew in (0.0, 0.25):
        print(split_at(128, 8.0, skew), flush=True)
    cells(options.tokens)


if __name__ == "__main__":
    main()
