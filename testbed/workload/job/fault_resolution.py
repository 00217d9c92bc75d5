"""Each rank's injected faults, and replicas that are lost and restarted, from a scenario's events and `faults`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.clock import clock_here
from testbed.comm.replicas import Policy, RingSettings
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.events import RANK_EVENTS, EventSpec
from testbed.spec.replicas import PEER
from testbed.spec.scale import Scale
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.launch_spec import MISMATCH, ORDER, SKIP, RankFault, Replication
from testbed.workload.job.training import Training
from testbed.workload.parallelism import REPLICATE, Mesh
from testbed.workload.plan import GroupCollective, JobPlan, Message

if TYPE_CHECKING:
    from testbed.spec.scenario import Scenario


def rank_faults_of(
    events: Sequence[EventSpec], plan: JobPlan, seed: int, scale: Scale, source: str = "scenario"
) -> tuple[RankFault, ...]:
    """Return the injected faults of all ranks.

    Args:
        events: The scenario's events.
        plan: The plan that events refer to.
        seed: Seed of random times.
        scale: Scale of the emulation.
        source: File that has the events, for errors.

    Raises:
        ConfigError: If a rank has no such collective.
    """
    found: list[RankFault] = []
    for index, event in enumerate(events):
        if event.action not in RANK_EVENTS:
            continue
        place = other = 0
        if event.action in (SKIP, MISMATCH):
            place = _fault_place(event, plan, source, index)
        if event.what == ORDER:
            other = _swap_place(event, plan, place, source, index)
        first_s = event.after_s(seed, index)
        for number in range(event.times):
            found.append(
                RankFault(
                    int(event.target),
                    event.action,
                    event.step or 0,
                    scale.emulated_s(first_s + number * (event.every_s or 0.0)),
                    None if event.for_s is None else scale.emulated_s(event.for_s),
                    event.factor or 1.0,
                    scale.emulated_s(event.delay_s or 0.0),
                    event.what or "",
                    place,
                    other,
                )
            )
    return tuple(found)


def _fault_place(event: EventSpec, plan: JobPlan, source: str, index: int) -> int:
    """Return the index of the collective that an event refers to, in its rank's plan."""
    own = plan.ranks[int(event.target)]
    names = {
        place: plan.groups[op.group][0] for place, op in enumerate(own) if isinstance(op, GroupCollective)
    }
    if event.group is not None and event.group not in names.values():
        expected = (
            f"a group of rank {event.target}: {', '.join(sorted(set(names.values()))) or 'it has none'}"
        )
        raise ConfigError([Problem(source, None, f"events.{index}.group", repr(event.group), expected)])
    meant = [place for place, name in names.items() if event.group in (None, name)]
    number = event.operation or 1
    if number > len(meant):
        expected = f"one of the {len(meant)} collectives of rank {event.target} in a step"
        raise ConfigError([Problem(source, None, f"events.{index}.operation", str(number), expected)])
    return meant[number - 1]


def _swap_place(event: EventSpec, plan: JobPlan, place: int, source: str, index: int) -> int:
    """Return the collective to swap with: the group's next different one, or else its last different one before.

    Swapping equal collectives would go unnoticed.
    """
    own = plan.ranks[int(event.target)]
    meant = own[place]
    assert isinstance(meant, GroupCollective)
    others = [
        number
        for number, operation in enumerate(own)
        if isinstance(operation, GroupCollective)
        and operation.group == meant.group
        and operation.exchange_key != meant.exchange_key
    ]
    if not others:
        name = plan.groups[meant.group][0]
        expected = f"size or type: all collectives of rank {event.target} in {name} are equal"
        raise ConfigError([Problem(source, None, f"events.{index}.what", ORDER, expected)])
    return next((number for number in others if number > place), others[-1])


STATE_BYTES = 16  # per parameter: weight, gradient and Adam's state, see testbed.workload.memory
ELEMENT_BYTES = 4  # size of an element when state is sent
LEAD_S = 0.01  # real time from when all ranks are ready until a step starts
BEAT_S = 0.01  # alignment of steps under the virtual clock, as in testbed.measure.ranks.rank
_FIELD = "parallelism.faults"


def replication_of(
    scenario: Scenario, training: Training, scale: Scale, hosts: Sequence[str] = ()
) -> Replication | None:
    """Return the replicas that may be lost and restarted; None if the scenario requests none.

    Args:
        scenario: The scenario.
        training: Its training step.
        scale: Scale of the emulation.
        hosts: Name of each rank's host.

    Raises:
        ConfigError: If the scenario requests something that such replicas do not support.
    """
    parallelism = scenario.workload.parallelism
    spec = parallelism.faults if parallelism is not None else None
    if parallelism is None or spec is None:
        return None
    replicas = replicas_of(training.mesh)
    if len(replicas) < 2:
        found = f"data_parallel_replicate_degree {len(replicas)}, over ranks"
        raise wrong_workload(_FIELD, found, "at least 2 replicas, each on ranks of its own")
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
    for words in cross_replica_traffic(training.plan, replicas):
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
        reduced_elements(training.plan, rank, replicas) * STATE_BYTES // ELEMENT_BYTES for rank in replicas[0]
    )
    return Replication(
        replicas,
        policy,
        RingSettings(chunk_bytes, spec.in_flight),
        scale.emulated_s(spec.heartbeat_s),
        state if spec.from_peer else (0,) * len(state),
        spec.catch_up_dscp,
        tuple(rank for rank, host in enumerate(hosts) if host in _killed_hosts(scenario)),
        state if spec.checkpoint_to == PEER else (),
    )


def _killed_hosts(scenario: Scenario) -> set[str]:
    """Return the hosts that an event kills without closing their connections."""
    return {str(event.target) for event in scenario.all_events if event.action == "host_kill"}


def replicas_of(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each replica, in the order of their other coordinates.

    The result is a single group if there is one replica, or if a rank has several.
    """
    if mesh.inside[REPLICATE] > 1 or mesh.outside[REPLICATE] == 1:
        return (tuple(range(mesh.size)),)
    return tuple(zip(*mesh.groups(REPLICATE), strict=True))


def spans_replicas(members: Sequence[int], replicas: Sequence[Sequence[int]]) -> bool:
    """Return whether a group consists of the ranks at the same position in all replicas, in order."""
    return any(tuple(members) == place for place in zip(*replicas, strict=True))


def cross_replica_traffic(plan: JobPlan, replicas: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield traffic between replicas, except collectives of ranks at the same position in all replicas."""
    of_rank = {rank: number for number, ranks in enumerate(replicas) for rank in ranks}
    for name, members in plan.groups:
        if len({of_rank[member] for member in members}) > 1 and not spans_replicas(members, replicas):
            yield f"{name} of ranks {', '.join(map(str, members))}"
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if isinstance(operation, Message) and of_rank[operation.peer] != of_rank[rank]:
                yield f"{operation.name} between ranks {rank} and {operation.peer}"


def reduced_elements(plan: JobPlan, rank: int, replicas: Sequence[Sequence[int]]) -> int:
    """Return the number of gradient elements that a rank reduces with other replicas: one per parameter."""
    return sum(
        operation.numel
        for operation in plan.ranks[rank]
        if isinstance(operation, GroupCollective)
        and spans_replicas(plan.groups[operation.group][1], replicas)
    )
