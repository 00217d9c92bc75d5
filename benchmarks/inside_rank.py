"""The inside of ranks by a formula against the same accelerators as ranks of their own, on emulated nodes.

    .venv/bin/python benchmarks/inside_rank.py [--run FOLDER [--memory SIZE]] [--only NAME ...]

64 H100 in two buildings of four nodes. By formula: eight ranks of eight accelerators, `within_rank`, a card of
3.2 Tbit/s for each. Emulated: 64 ranks; a node is a leaf switch, whose ports are as quick as NVLink (3.6 Tbit/s), with
a card of 400 Gbit/s for each accelerator that leads out of it (eight spines). Software costs what NCCL's model has for
a hop in a node, longer hops take their delay on leaves' uplinks. By the model at real sizes, message by message; with
--run a job of one block and one microbatch, on packets under the virtual clock, too, one run in FOLDER for each that is
not there yet. Prints a table of docs/evidence/training.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import testbed
from testbed.measure.results.result import Result
from testbed.prediction.simulation import simulate
from testbed.spec.scale import Scale
from testbed.workload.job.job import job_of

HOP_S, FAR_HOP_S, LAUNCH = 3.4e-6, 9.6e-6, "8.4 us"
NODES, EACH = 4, 8
DENSE = {"dim": 4096, "n_layers": 2, "n_heads": 32, "n_kv_heads": 8, "ffn_dim": 14336, "vocab_size": 32000}
EXPERTS = {**DENSE, "dim": 2048, "ffn_dim": 5632, "n_kv_heads": 4, "experts": 8, "experts_per_token": 2}
OF_NODES = {"hierarchy": "leaves"}
SHARDS = {"collectives": {"data_parallel_shard": "hierarchical"}, **OF_NODES}
# model; degrees; what the emulated way needs so that arrays go as by formula; all-reduces of either way
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, Any], tuple[str, str]]] = {
    "ring": (DENSE, {"replicate": 8, "tensor": 8}, {}, ("ring", "ring")),
    "ring, pipeline": (DENSE, {"replicate": 4, "pipeline": 2, "tensor": 8}, {}, ("ring", "ring")),
    "hierarchical over buildings": (
        DENSE,
        {"replicate": 8, "tensor": 8},
        {},
        ("hierarchical", "hierarchical"),
    ),
    "hierarchical over nodes": (DENSE, {"replicate": 64}, OF_NODES, ("ring", "hierarchical")),
    "shards over nodes": (DENSE, {"shard": 64}, SHARDS, ("ring", "ring")),
    "experts in nodes": (EXPERTS, {"shard": 64, "expert": 8}, SHARDS, ("ring", "ring")),
}
SMALL = {  # what 64 ranks send in a minute of a core
    "workload.model.n_layers": 1,
    "workload.model.vocab_size": 8000,
    "workload.sequence_length": 4096,
    "workload.schedule.microbatches": 1,
    "transport.congestion_control": "reno",
}
NAMES = {
    "replicate": "data_parallel_replicate_degree",
    "shard": "data_parallel_shard_degree",
    "pipeline": "pipeline_parallel_degree",
    "tensor": "tensor_parallel_degree",
    "expert": "expert_parallel_degree",
}


def scenario(name: str, emulated: bool, size_scale: float) -> testbed.Scenario:
    """One of the two ways of a variant."""
    model, degrees, own, algorithms = VARIANTS[name]
    parallelism: dict[str, Any] = {NAMES[key]: degree for key, degree in degrees.items()}
    building: dict[str, Any]
    if emulated:
        uplink = {
            "oversubscription": "1:9",
            "delay": f"{(FAR_HOP_S - HOP_S) / 2 * 1e6:g} us",
            "queue": "8 GB",
        }
        building = {
            "hosts": NODES * EACH,
            "nic": {"rate": "3.6 Tbit/s", "queue": "8 GB"},
            "clos": {"leaves": NODES, "spines": EACH, "leaf": uplink, "spine": {"queue": "8 GB"}},
        }
        parallelism |= own
        per_message_s = HOP_S / 2
    else:
        building = {"hosts": NODES, "nic": {"rate": "3.2 Tbit/s", "queue": "8 GB"}}
        # between ranks each block goes once to each other rank, as `hierarchical` has it go between nodes
        direct = {"collectives": {"data_parallel_shard": "direct"}} if "shard" in degrees else {}
        parallelism |= {"accelerators_per_rank": EACH, "within_rank": {}, **direct}
        per_message_s = FAR_HOP_S / 2
    cost = {"per_message": f"{per_message_s * 1e6:g} us", "per_gigabyte": "0.001 us", "launch": LAUNCH}
    return testbed.load(
        {
            "name": "inside-rank",
            "topology": {
                "name": "two-buildings-of-four-nodes",
                "buildings": {"east": building, "west": building},
                "wan": [
                    {"a": "east", "b": "west", "rate": "12.8 Tbit/s", "delay": "100 us", "queue": "8 GB"}
                ],
            },
            "workload": {
                "model": model,
                "accelerator": "h100",
                # of all that a rank's accelerators have of their own
                "bucket_cap": f"{25 if emulated else 25 * degrees.get('tensor', 1)} MiB",
                "sequence_length": 8192,
                "parallelism": parallelism,
                "schedule": {"microbatches": 2},
            },
            "transport": {"congestion_control": "bbr", "software_cost": cost},
            "algorithms": [algorithms[emulated]],
            "trials": 1,
            "warmup": 1,
            "scale": {"size_scale": size_scale},
        }
    )


def predicted_s(own: testbed.Scenario) -> float:
    """Of a step at its real size, with every message played: these are more than `testbed predict` plays one by one."""
    training = job_of(own, Scale()).workload.training
    assert training is not None
    plan = training.plan.with_algorithm(own.algorithms[0])
    at_once = own.transport.congestion_control != "bbr"  # which paces
    network = replace(training.network, sends_at_once=at_once)
    return simulate(plan, network, training.itemsize, training.software).step_time_s


def measured(own: testbed.Scenario, folder: Path, memory: str | None) -> tuple[float, str]:
    """On packets, once: seconds of a step; for people, with how far the model of that scale is off, and the verdict."""
    result = Result.open(folder) if folder.exists() else testbed.run(own, memory=memory, output=folder)
    [variant] = result.variants
    assert variant.predicted is not None
    told = [f"{variant.predicted.error:+.1%}", *([] if result.status == "trusted" else [result.status])]
    took_s = variant.step_time_s.median
    return took_s, f"{1e3 * took_s:.2f} ms ({', '.join(told)})"


def main() -> None:
    """A row for each variant: by formula, emulated, how far apart; by the model and on packets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="on packets, too")
    parser.add_argument(
        "--memory", metavar="SIZE", help="that each guest may use, in place of what it is expected to"
    )
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--size-scale", type=float, help="default: 16 with tensor parallel ranks, 64 without")
    options = parser.parse_args()
    print("| 64 accelerators | model: by formula | emulated | | packets: by formula | emulated | |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in options.only:
        # partial sums are small messages, for which frames have to be short; parameters are many bytes
        size_scale = options.size_scale or (16 if "tensor" in VARIANTS[name][1] else 64)
        ways = [scenario(name, emulated, size_scale) for emulated in (False, True)]
        if options.run:
            ways = [own.changed(SMALL, name) for own in ways]
        predicted = [predicted_s(own) for own in ways]
        cells = [f"{1e3 * took:.2f} ms" for took in predicted] + [f"{predicted[0] / predicted[1] - 1:+.1%}"]
        if options.run:
            folders = [options.run / f"{name.replace(' ', '-')}-{way}" for way in ("formula", "emulated")]
            found = [measured(*one, options.memory) for one in zip(ways, folders, strict=True)]
            cells += [told for _, told in found]
            cells.append(f"{found[0][0] / found[1][0] - 1:+.1%}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
