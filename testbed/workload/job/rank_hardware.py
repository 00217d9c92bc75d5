"""Each rank's accelerator (its host's or the workload's), and how much slower it is than the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.spec.buildings import Host
from testbed.spec.catalogue import accelerators
from testbed.spec.hardware import Hardware, IntraNodeSpec
from testbed.spec.parallelism import EVEN, StragglerSpec
from testbed.spec.scale import Scale
from testbed.spec.workload import WorkloadSpec
from testbed.workload.intra_node import IntraNodeModel, Tiers, model_intra_node
from testbed.workload.job.errors import wrong_workload
from testbed.workload.parallelism import PIPELINE, REPLICATE, Mesh
from testbed.workload.stages import Stage


def slowdowns_of(workload: WorkloadSpec, hosts: Sequence[Host]) -> Mapping[int, float]:
    """Return the slowdown of each rank whose accelerator differs from the workload's; below 1 for a faster one.

    ConfigError is raised if the workload names only a peak, and a host has its own compute type.
    """
    if workload.accelerator is None and workload.peak_flops is None:
        return {}
    factors: dict[Hardware, float] = {}
    for host in hosts:
        own = host.hardware
        if own in factors:
            continue
        if own.compute_dtype is not None and not (own.accelerator or workload.accelerator):
            expected = f"one, as {host.name} has a compute_dtype, {own.compute_dtype}"
            raise wrong_workload("accelerator", "nothing", expected)
        factors[own] = workload.flops / workload.flops_of(own)
    return {rank: factors[host.hardware] for rank, host in enumerate(hosts) if factors[host.hardware] != 1.0}


def with_stragglers(
    slowdowns: Mapping[int, float], stragglers: Sequence[StragglerSpec], hosts: Sequence[Host]
) -> dict[int, float]:
    """Return the slowdowns times those of stragglers; raise ConfigError for an unknown rank or building."""
    found = dict(slowdowns)
    buildings = list(dict.fromkeys(host.building for host in hosts))
    for position, straggler in enumerate(stragglers):
        field = f"parallelism.stragglers.{position}"
        if straggler.building is not None and straggler.building not in buildings:
            expected = f"a building with ranks: {', '.join(buildings)}"
            raise wrong_workload(f"{field}.building", straggler.building, expected)
        if straggler.rank is not None and straggler.rank >= len(hosts):
            raise wrong_workload(f"{field}.rank", str(straggler.rank), f"a rank from 0 to {len(hosts) - 1}")
        for rank, host in enumerate(hosts):
            if straggler.rank == rank or straggler.building == host.building:
                found[rank] = found.get(rank, 1.0) * straggler.slowdown
    return found


def slowest_ranks(mesh: Mesh, slowdowns: Mapping[int, float]) -> list[list[float]]:
    """Return the slowdown of the slowest rank, by replica and position in the pipeline."""
    slowest = [[0.0] * mesh.outside[PIPELINE] for _ in range(mesh.outside[REPLICATE])]
    for rank, coordinate in enumerate(mesh.coordinates):
        replica, position = slowest[coordinate[REPLICATE]], coordinate[PIPELINE]
        replica[position] = max(replica[position], slowdowns.get(rank, 1.0))
    return slowest


def stage_slowdowns(mesh: Mesh, slowdowns: Mapping[int, float], owners: Sequence[int]) -> list[float]:
    """Return the slowdown of each stage's slowest rank; `owners` are the stages' positions in the pipeline."""
    of_positions = [max(each) for each in zip(*slowest_ranks(mesh, slowdowns), strict=True)]
    return [of_positions[owner] for owner in owners]


def microbatch_counts(
    asked: str | Sequence[int],
    microbatches: int,
    mesh: Mesh,
    stages: Sequence[Stage],
    owners: Sequence[int],
    slowdowns: Mapping[int, float],
) -> tuple[int, ...]:
    """Return the microbatches of each replica: `even`, `by_speed`, or as given.

    By speed, each microbatch is assigned to the replica that would finish it first, at the speed of its slowest rank.

    Args:
        asked: EVEN, by speed, or given counts.
        microbatches: Average number per replica.
        mesh: The mesh of ranks.
        stages: The pipeline's stages.
        owners: Position in the pipeline of each stage.
        slowdowns: Slowdown of each rank.

    Raises:
        ConfigError: If given counts do not add up.
    """
    replicas = mesh.outside[REPLICATE]
    total = replicas * microbatches
    if asked == EVEN:
        return (microbatches,) * replicas
    if not isinstance(asked, str):
        if len(asked) != replicas or sum(asked) != total:
            found = f"{len(asked)} replicas with {sum(asked)} microbatches"
            expected = f"{replicas} with {total}, {microbatches} each on average"
            raise wrong_workload("schedule.microbatches_per_replica", found, expected)
        return tuple(asked)
    busy_s = [0.0] * mesh.outside[PIPELINE]
    for stage, owner in zip(stages, owners, strict=True):
        busy_s[owner] += sum(stage.seconds)
    turn_s = [
        max(factor * own_s for factor, own_s in zip(factors, busy_s, strict=True))
        for factors in slowest_ranks(mesh, slowdowns)
    ]
    counts = [1] * replicas
    for _ in range(total - replicas):
        counts[min(range(replicas), key=lambda own: (counts[own] + 1) * turn_s[own])] += 1
    return tuple(counts)


def intra_node_models(
    workload: WorkloadSpec, hosts: Sequence[Host], scale: Scale, mesh: Mesh
) -> tuple[IntraNodeModel, ...]:
    """Return each rank's model of traffic among its own accelerators; empty unless requested.

    A rank's accelerators are those of its host, and share the host's NIC. ConfigError is raised if their links are
    unknown.
    """
    assert workload.parallelism is not None
    asked = workload.parallelism.within_rank
    if asked is None:
        return ()
    has = [(host.hardware.accelerator or workload.accelerator, host.nic.rate_bps) for host in hosts]
    known = {own: model_intra_node(mesh, _tiers(asked, *own, scale, mesh)) for own in dict.fromkeys(has)}
    return tuple(known[own] for own in has)


def _tiers(asked: IntraNodeSpec, accelerator: str | None, nic_bps: float, scale: Scale, mesh: Mesh) -> Tiers:
    """Return the links of these accelerators; raise ConfigError if neither catalogue nor scenario has them."""
    entry = accelerators().get(accelerator or "", {})
    scale_up, rate_bps = asked.scale_up, asked.scale_up_rate_bps
    if not entry and (scale_up is None or rate_bps is None):
        missing = "scale_up" if scale_up is None else "scale_up_rate"
        expected = "it, or an accelerator that has it"
        raise wrong_workload(f"parallelism.within_rank.{missing}", "nothing", expected)
    return Tiers(
        scale_up or int(entry["scale_up"]),
        float(entry["scale_up_bandwidth"]) if rate_bps is None else rate_bps / 8,
        scale.real_bps(nic_bps) / 8 / mesh.per_rank,
        asked.scale_up_latency_s,
        asked.scale_out_latency_s,
        asked.launch_s,
    )
