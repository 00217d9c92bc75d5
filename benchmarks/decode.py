"""Decoding with experts: twelve cells against two all-gathers and an all-to-all, what a peer costs, where time goes.

    .venv/bin/python benchmarks/decode.py                  # by the model
    .venv/bin/testbed run scenarios/decode.yaml --clock virtual -o /tmp/decode
    .venv/bin/python benchmarks/decode.py /tmp/decode      # of that run: p50 and p99 of a token, and its parts

Racks of eight hosts with an accelerator each in one zone, latencies as in topologies/training-region.yaml, nothing
oversubscribed. A token's time is from one combine's end to the next one's, on the last rank; p50 and p99 are over
tokens, each with experts of its own.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from testbed.config import load_scenario, preset_transport
from testbed.job.job import job_of
from testbed.model import simulate
from testbed.model.calibration import VIRTUAL, find_calibration
from testbed.model.predicting import routed
from testbed.results.records import SAMPLES, Sample, read_samples
from testbed.scale import Scale

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
    plan = job.workload.plan.using("ring")
    spans = simulate(plan, routed(job, "ring", calibration), job.workload.itemsize, software).spans
    tokens, layers = options.get("tokens", 1), options.get("layers", 1)
    each = len(spans[0]) // (tokens * layers)
    ends = [max(rank[(number + 1) * each * layers - 1][1] for rank in spans) for number in range(tokens)]
    return [end - before for before, end in zip([0.0, *ends], ends, strict=False)]


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


def kind_of(sample: Sample) -> str:
    """Of an operation of the workload: dispatch, combine and so on, as its name begins."""
    if sample.operation == "all_gather":
        return "metadata"
    return {"counts read": "synchronisation"}.get(name := sample.name.split(" of ")[0], name)


def tokens_of(samples: Sequence[Sample]) -> list[float]:
    """Of one variant's step: each token's time, on the last rank."""
    steps = {(one.trial, one.step) for one in samples}
    found = []
    for trial, step in sorted(steps):
        own = [one for one in samples if (one.trial, one.step) == (trial, step)]
        ends: dict[int, float] = {}
        for one in own:
            if kind_of(one) == "combine":
                token = int(one.name.split()[3].rstrip(","))
                ends[token] = max(ends.get(token, 0.0), one.end_s)
        began_s = min(one.start_s for one in own)
        found += [
            end - before for before, end in pairwise([began_s, *(ends[token] for token in sorted(ends))])
        ]
    return found


def parts(samples: Sequence[Sample]) -> dict[str, float]:
    """Of one variant: seconds of a rank's step by what it does, in the mean over ranks."""
    ranks = {one.rank for one in samples}
    steps = {(one.trial, one.step) for one in samples}
    found: dict[str, float] = {}
    for one in samples:
        kind = kind_of(one)
        found[kind] = found.get(kind, 0.0) + one.duration_s
    return {kind: seconds / len(ranks) / len(steps) for kind, seconds in found.items()}


def run_table(folder: Path) -> list[str]:
    """Of a run of scenarios/decode.yaml: tokens' times, and dispatch and combine as control, put and wait.

    put: a rank's rows at its card's rate. control: what dispatch and combine take longer than those of `cached`, where
    nothing but rows travels. wait: the rest, on the way and for others.
    """
    samples = read_samples(folder / SAMPLES, Scale())
    by_variant: dict[str, list[Sample]] = {}
    for one in samples:
        by_variant.setdefault(one.variant, []).append(one)
    spent = {name: parts(own) for name, own in by_variant.items()}
    least_s = spent["cached"]["dispatch"] + spent["cached"]["combine"]
    lines = [
        "| variant | p50 | p99 | counts gathered | counts read | control | put | wait |",
        "|---|" + "---|" * 7,
    ]
    for name, own in by_variant.items():
        tokens, kinds = np.array(tokens_of(own)), spent[name]
        rounds_s = kinds["dispatch"] + kinds["combine"]
        whole = [one.size_bytes for one in own if one.operation == "step"]  # of a rank, in a step
        put_s = sum(whole) / len(whole) * 8 / RATE_BPS
        shares = [rounds_s - least_s, put_s, least_s - put_s]
        split = [f"{share / rounds_s:.0%}" for share in shares]
        cells = [f"{np.percentile(tokens, part) * 1e6:.0f} us" for part in (50, 99)]
        cells += [
            f"{kinds.get(kind, 0.0) / len(tokens) * 1e6:.0f} us" for kind in ("metadata", "synchronisation")
        ]
        lines.append(f"| {name} | {' | '.join([*cells, *split])} |")
    return lines


def main() -> None:
    """Say the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--tokens", type=int, default=20)
    options = parser.parse_args()
    if options.run is not None:
        print("\n".join(run_table(options.run)))
        return
    print(per_peer())
    cells(options.tokens)


if __name__ == "__main__":
    main()
