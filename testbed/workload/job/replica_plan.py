"""From a scenario's `faults` to replicas of ranks, and what a plan has to be like for them to come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.clock import clock_here
from testbed.comm.replicas import Policy, RingSettings
from testbed.spec.fault_tolerance import PEER
from testbed.spec.scale import Scale
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.replication import Replication
from testbed.workload.job.training import Training
from testbed.workload.parallelism import REPLICATE, Mesh
from testbed.workload.plan import GroupCollective, JobPlan, Message

if TYPE_CHECKING:
    from testbed.spec.scenario import Scenario

STATE_BYTES = 16  # of a parameter: weight, gradient, and Adam's, see testbed.workload.memory
ELEMENT_BYTES = 4  # of what state travels in
LEAD_S = 0.01  # real; from when all ranks are ready until a step begins
BEAT_S = 0.01  # of the virtual clock, as in testbed.measure.ranks.rank
_FIELD = "parallelism.faults"


def replication_of(
    scenario: Scenario, training: Training, scale: Scale, hosts: Sequence[str] = ()
) -> Replication | None:
    """hosts: by rank. None where nothing is asked for. ConfigError for what replicas that come and go cannot do."""
    parallelism = scenario.workload.parallelism
    spec = parallelism.faults if parallelism is not None else None
    if parallelism is None or spec is None:
        return None
    replicas = replicas_of(training.mesh)
    if len(replicas) < 2:
        found = f"data_parallel_replicate_degree {len(replicas)}, over ranks"
        raise wrong_workload(_FIELD, found, "at least 2 replicas, each of ranks of its own")
    if len(scenario.algorithms) > 1:
        found = f"algorithms [{', '.join(scenario.algorithms)}]"
        raise wrong_workload(_FIELD, found, "one; compare others in `variants`")
    if scenario.transport.bootstrap != "static":
        found = f"transport.bootstrap {scenario.transport.bootstrap}"
        raise wrong_workload(_FIELD, found, "static, as a rank that returns finds the others by itself")
    if training.plan.holds_receivers:
        raise wrong_workload(_FIELD, "schedule.receives in_order", "early")
    if spec.mode == "ftar" and REPLICATE in parallelism.collectives:
        found = f"collectives.{REPLICATE}: {parallelism.collectives[REPLICATE]}"
        raise wrong_workload(_FIELD, found, "none, as replicas reduce by ftar")
    if spec.mode == "ftar" and scenario.algorithms != ("ring",):
        found = f"algorithms [{', '.join(scenario.algorithms)}]"
        raise wrong_workload(_FIELD, found, "ring, which ftar is on the network")
    for words in crossing(training.plan, replicas):
        expected = "messages within a replica, and collectives of ranks of the same place in all replicas"
        raise wrong_workload(_FIELD, words, expected)
    policy = Policy(
        mode="ftar" if spec.mode == "ftar" else "restart",
        catch_up="blocking" if spec.catch_up == "blocking" else "non_blocking",
        detect_s=scale.emulated_s(spec.detect_s),
        restart_s=scale.emulated_s(spec.restart_s),
        checkpoint_every=spec.checkpoint_every,
        lead_s=scale.emulated_s(LEAD_S),
        beat_s=BEAT_S if clock_here() == "free" else 0.0,
    )
    chunk_bytes = max(1, round(scale.emulated_bytes(spec.chunk_bytes)))
    state = tuple(
        reduced(training.plan, rank, replicas) * STATE_BYTES // ELEMENT_BYTES for rank in replicas[0]
    )
    return Replication(
        replicas,
        policy,
        RingSettings(chunk_bytes, spec.in_flight),
        scale.emulated_s(spec.heartbeat_s),
        state if spec.from_peer else (0,) * len(state),
        spec.catch_up_dscp,
        tuple(rank for rank, host in enumerate(hosts) if host in _killed(scenario)),
        state if spec.checkpoint_to == PEER else (),
    )


def _killed(scenario: Scenario) -> set[str]:
    """Hosts that an event ends, without a word from them."""
    return {str(event.target) for event in scenario.happenings if event.action == "host_kill"}


def replicas_of(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Ranks of each replica, in the order of their other coordinates; one where a rank has several replicas."""
    if mesh.inside[REPLICATE] > 1:
        return (tuple(range(mesh.size)),)
    found: dict[int, list[int]] = {}
    inner = [name for name in mesh.order if name != REPLICATE]
    coordinates = mesh.coordinates()
    for rank in sorted(range(mesh.size), key=lambda rank: [coordinates[rank][name] for name in inner]):
        found.setdefault(coordinates[rank][REPLICATE], []).append(rank)
    return tuple(tuple(found[number]) for number in sorted(found))


def across(members: Sequence[int], replicas: Sequence[Sequence[int]]) -> bool:
    """Whether a group is of the ranks at one place in all replicas, in their order."""
    return any(tuple(members) == place for place in zip(*replicas, strict=True))


def crossing(plan: JobPlan, replicas: Sequence[Sequence[int]]) -> Iterator[str]:
    """What in a plan goes from one replica to another, but for collectives of the same place in all."""
    of_rank = {rank: number for number, ranks in enumerate(replicas) for rank in ranks}
    for name, members in plan.groups:
        if len({of_rank[member] for member in members}) > 1 and not across(members, replicas):
            yield f"{name} of ranks {', '.join(map(str, members))}"
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if isinstance(operation, Message) and of_rank[operation.peer] != of_rank[rank]:
                yield f"{operation.name} between ranks {rank} and {operation.peer}"


def reduced(plan: JobPlan, rank: int, replicas: Sequence[Sequence[int]]) -> int:
    """Elements of gradients that a rank reduces with other replicas: as many as it has parameters."""
    return sum(
        operation.numel
        for operation in plan.ranks[rank]
        if isinstance(operation, GroupCollective) and across(plan.groups[operation.group][1], replicas)
    )
