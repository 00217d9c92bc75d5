"""Export of a job and its network to ASTRA-sim: traces, analytical network, system, memory, and a start script.

ASTRA-sim's analytical network has dimensions. The export uses one for a building's ranks around a switch, and one for
buildings with dedicated links. If links differ, a dimension has the values of the slowest one. Everything that is left
out is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import BadInput
from testbed.show.exchange.chakra import ExportedJob
from testbed.show.exchange.topology_export import shortest_s
from testbed.spec.buildings import Building
from testbed.spec.catalogue import accelerators
from testbed.spec.topology import Topology
from testbed.workload.traces.chakra import write_job
from testbed.workload.traces.chakra.folder import NAME
from testbed.workload.traces.chakra.groups import NETWORK_FILE
from testbed.workload.traces.trace import Collective, PointToPoint

SYSTEM_FILE, MEMORY_FILE, START_FILE = "system.json", "memory.json", "run.sh"
GIGABYTE = 2**30  # ASTRA-sim's unit of bandwidth
IMPLEMENTATIONS = {"halving_doubling": "halvingDoubling", "direct": "direct"}
"""ASTRA-sim's implementation per dimension, one after the other, by our algorithm; a ring for others."""
USUAL = "h100"  # memory bandwidth of jobs without an accelerator; irrelevant if traces have durations
NOT_CARRIED_OUT = ("reduce", "gather", "scatter", "barrier")
REPLAYED = ("broadcast",)

# ASTRA-sim's congestion-aware network has only one dimension
START = """#!/bin/sh
# ASTRA_SIM: the program AstraSim_Analytical_Congestion_Unaware, as built from its source
set -eu
here=$(dirname "$(realpath "$0")")
exec "${{ASTRA_SIM:?the path of AstraSim_Analytical_Congestion_Unaware}}" \\
    --workload-configuration="$here/{name}" \\
    --comm-group-configuration="$here/comm_group.json" \\
    --system-configuration="$here/{system}" \\
    --remote-memory-configuration="$here/{memory}" \\
    --network-configuration="$here/{network}" "$@"
"""


@dataclass(frozen=True)
class Dimension:
    """A dimension of ASTRA-sim's network: Switch, Ring or FullyConnected, with a rate in bytes per second per rank."""

    topology: str
    count: int
    rate: float
    latency_s: float


def export_astra_sim(job: ExportedJob, folder: Path) -> tuple[list[Path], list[str]]:
    """Write all files; return them and what they omit; raise BadInput if ranks per building are unequal."""
    written = write_job(job.trace, folder, NAME, job.times)
    topology = job.scenario.topology.resolve()
    dimensions, notes = dimensions_of(topology, job.workload.buildings)
    files = {
        NETWORK_FILE: yaml.safe_dump(_network(dimensions), sort_keys=False),
        SYSTEM_FILE: json.dumps(_system(job, len(dimensions)), indent=1) + "\n",
        MEMORY_FILE: json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=1) + "\n",
        START_FILE: START.format(name=NAME, system=SYSTEM_FILE, memory=MEMORY_FILE, network=NETWORK_FILE),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        written.append(folder / name)
    (folder / START_FILE).chmod(0o755)
    return written, [*notes, *_job_notes(job, [one.count for one in dimensions])]


def dimensions_of(topology: Topology, buildings: Sequence[int]) -> tuple[list[Dimension], list[str]]:
    """Return the dimensions for ranks in these buildings, and a description of what they leave out."""
    used = list(dict.fromkeys(buildings))
    counts = {index: buildings.count(index) for index in used}
    ranks_per_building = counts[used[0]]
    if len(set(counts.values())) > 1 or list(buildings) != [
        index for index in used for _ in range(ranks_per_building)
    ]:
        got = ", ".join(f"{count} in {topology.buildings[index].name}" for index, count in counts.items())
        expected = "as many, one after the other, in each building: its network has dimensions"
        raise BadInput(where="ranks for ASTRA-sim", got=got, expected=expected)
    there = [topology.buildings[index] for index in used]
    notes: list[str] = []
    found = []
    if ranks_per_building > 1:
        found.append(_building_dimension(there, ranks_per_building, notes))
    if len(there) > 1:
        found.append(_wan_dimension(topology, there, ranks_per_building, notes))
    if not found:
        raise BadInput(where="ranks for ASTRA-sim", got="one", expected="two or more")
    return found, notes


def _building_dimension(
    buildings: Sequence[Building], ranks_per_building: int, notes: list[str]
) -> Dimension:
    nics = [host.nic for building in buildings for host in building.hosts]
    if len({(nic.rate_bps, nic.delay_s) for nic in nics}) > 1:
        notes.append("hosts' NICs differ: the slowest rate and the longest delay apply to all")
    if any(building.clos is not None for building in buildings):
        notes.append("tiers of switches inside buildings: replaced by one switch")
    rate = min(nic.rate_bps for nic in nics) / 8
    return Dimension("Switch", ranks_per_building, rate, max(nic.delay_s for nic in nics))


def _wan_dimension(
    topology: Topology, buildings: Sequence[Building], ranks_per_building: int, notes: list[str]
) -> Dimension:
    """Return the dimension in which each rank has a dedicated link: its part of its building's links."""
    names = [building.name for building in buildings]
    rates: dict[frozenset[str], float] = {}
    for link in topology.wan:
        pair = frozenset((link.a, link.b))
        rates[pair] = rates.get(pair, 0.0) + min(way.rate_bps for _, _, way in link.directions)
    pairs = [frozenset((a, b)) for place, a in enumerate(names) for b in names[place + 1 :]]
    ring_pairs = [frozenset(ends) for ends in zip(names, [*names[1:], names[0]], strict=True)]
    is_ring = len(names) > 3 and set(rates) == set(ring_pairs)
    linked = ring_pairs if is_ring else [pair for pair in pairs if pair in rates]
    if not is_ring and len(linked) < len(pairs):
        notes.append("building pairs without a link get one, as long as their shortest path")
    delays = [shortest_s(topology)[a, b] for a, b in map(sorted, linked if is_ring else pairs)]
    found = [rates[pair] for pair in linked] or list(rates.values())
    if len(set(found)) > 1 or len(set(delays)) > 1:
        notes.append("links between buildings differ: the slowest rate and the longest delay apply to all")
    if any(way.mean_loss or way.jitter_s for way in topology.wan_directions):
        notes.append("loss and jitter of links")
    notes.append("links shared by a building's ranks: each rank has a fixed part, even if others are idle")
    nics = [host.nic for building in buildings for host in building.hosts]
    nic_s = max(nic.delay_s for nic in nics)
    rate = min(min(found) / ranks_per_building, *(nic.rate_bps for nic in nics)) / 8
    return Dimension("Ring" if is_ring else "FullyConnected", len(names), rate, max(delays) + 2 * nic_s)


def _network(dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """Return the network's YAML content, in GB/s and nanoseconds per link; a path through a switch has two links."""
    return {
        "topology": [one.topology for one in dimensions],
        "npus_count": [one.count for one in dimensions],
        "bandwidth": [one.rate / GIGABYTE for one in dimensions],
        "latency": [one.latency_s * 1e9 for one in dimensions],
    }


def _system(job: ExportedJob, dimensions: int) -> dict[str, Any]:
    of_all = [IMPLEMENTATIONS.get(job.algorithm, "ring")] * dimensions
    accelerator = accelerators().get(job.trace.accelerator or USUAL, {})
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{
            f"{name}-implementation": ["direct"] * dimensions if name == "all-to-all" else of_all
            for name in names
        },
        "collective-optimization": "localBWAware",
        "local-mem-bw": accelerator.get("memory_bandwidth", 0) / 1e9,
        "boost-mode": 0,
        "roofline-enabled": 0,
    }


def _job_notes(job: ExportedJob, counts: Sequence[int]) -> Iterator[str]:
    yield from job.lost()
    if len(counts) > 1:
        if job.algorithm not in ("hierarchical", *IMPLEMENTATIONS):
            yield f"{job.algorithm}: collectives of all ranks use a ring per dimension, one after the other"
        if any(
            one % counts[0] != other % counts[0] and one // counts[0] != other // counts[0]
            for one, other in _pairs(job)
        ):
            yield (
                "the way between buildings of what goes from a rank to one at another place there, by itself or in a "
                "group's ring: its network counts the first dimension alone"
            )
    there = {node.collective for own in job.trace.ranks for node in own if isinstance(node, Collective)}
    if odd := sorted(there & set(NOT_CARRIED_OUT)):
        yield f"{', '.join(odd)}: ASTRA-sim stops at this collective"
    if odd := sorted(there & set(REPLAYED)):
        yield f"{', '.join(odd)}: ASTRA-sim gives it the trace's duration, or none"
    if "all_to_all_v" in there:
        yield "sizes of an all_to_all_v: all pairs get the same"
    if len({own.algorithm for ranks in job.trace.ranks for own in ranks if isinstance(own, Collective)}) > 1:
        yield "algorithms of single collectives: one per kind"
    if any(not own for own in job.trace.ranks):
        yield "idle ranks: ASTRA-sim stops at their empty traces"


def _pairs(job: ExportedJob) -> Iterator[tuple[int, int]]:
    """Yield ranks that send to each other directly, or in the ring of a group that is not all ranks."""
    for rank, own in enumerate(job.trace.ranks):
        for node in own:
            if isinstance(node, PointToPoint):
                yield rank, node.peer
            elif isinstance(node, Collective):
                members = job.trace.groups[node.group]
                if len(members) < len(job.trace.ranks):
                    yield rank, members[(members.index(rank) + 1) % len(members)]
