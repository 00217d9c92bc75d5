"""Jobs as if somebody had recorded them: a step of ranks in a mesh of replicas, pipeline stages and shards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint

REPLICATE, PIPELINE, SHARD = "replicate", "pipeline", "shard"


def recorded(
    replicas: int, stages: int, shards: int, *, gathered: int = 10**7, reduced: int = 10**6
) -> JobTrace:
    """Ranks in the order of the mesh, replicas outermost.

    Each gathers what its shard group has (`gathered` elements), computes, hands an activation on, and reduces.
    """
    mesh = list(itertools.product(range(replicas), range(stages), range(shards)))

    def members(**fixed: int) -> tuple[int, ...]:
        names = ("r", "p", "s")
        return tuple(
            rank
            for rank, place in enumerate(mesh)
            if all(place[names.index(name)] == number for name, number in fixed.items())
        )

    groups = {f"{SHARD} {r}.{p}": members(r=r, p=p) for r, p, _ in mesh}
    groups |= {f"{REPLICATE} {p}.{s}": members(p=p, s=s) for _, p, s in mesh}

    def own(place: tuple[int, int, int]) -> tuple[Node, ...]:
        r, p, s = place
        nodes: list[Node] = [
            Collective(
                "weights",
                "shard",
                group=f"{SHARD} {r}.{p}",
                collective="all_gather",
                numel=gathered // shards * shards,
                dtype="bfloat16",
                kind=SHARD,
            )
        ]
        if p:
            before = mesh.index((r, p - 1, s))
            nodes.append(PointToPoint("input", "in", peer=before, numel=10**5, kind=PIPELINE))
        nodes.append(Compute("forward", after=tuple(range(len(nodes))), duration_s=0.01, kind="forward"))
        done = len(nodes) - 1
        if p < stages - 1:
            after = mesh.index((r, p + 1, s))
            nodes.append(
                PointToPoint("output", "out", (done,), peer=after, numel=10**5, sends=True, kind=PIPELINE)
            )
        nodes.append(
            Collective(
                "gradients", "replicate", (done,), group=f"{REPLICATE} {p}.{s}", numel=reduced, kind=REPLICATE
            )
        )
        return tuple(nodes)

    return JobTrace(tuple(map(own, mesh)), groups, origin="train.py")


def asked(folder: Path, trace: JobTrace, buildings: int = 2, **changes: Any) -> Scenario:
    """A scenario of a trace in buildings of as many hosts each, 1 ms from one to the next, all joined."""
    trace.write(folder / "job.json.gz")
    hosts = len(trace.ranks) // buildings
    names = ["east", "west", "north", "south"][:buildings]
    document = {
        "name": "mine",
        "topology": {
            "name": "campus",
            "buildings": {name: {"hosts": hosts, "nic": {"rate": "100 Gbit/s"}} for name in names},
            "wan": [
                {"a": a, "b": b, "rate": "25 Gbit/s", "delay": "1 ms"}
                for a, b in itertools.combinations(names, 2)
            ],
        },
        "policy": "shortest",
        "scale": {"size_scale": 100},
        **changes,
        "workload": {"trace": "job.json.gz", **changes.get("workload", {})},
    }
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(document))
    return load_scenario(file)
