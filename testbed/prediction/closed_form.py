"""Closed form for a step's time, to select what is worth simulating; it takes tens of microseconds per configuration.

A pipeline with m microbatches, p ranks and v stages per rank takes as long as m + (p - 1) / v microbatches on its
slowest stage (Narayanan et al. 2021, section 2.2, arXiv:2104.04473). A stage that sends for longer than it computes
counts with its send time. Communication within a stage is added, parameter gathers only as far as compute does not hide
them. With a split backward, weight gradients fill the bubble (Qi et al. 2023, arXiv:2401.10241). The replicas'
gradients follow the last microbatch. Links are those of the scenario's network. All groups of a kind of traffic share
them at once; different kinds do not interfere, and policies make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from testbed.comm.collectives import AUTO, collective_of
from testbed.net.paths import Members, Network, network_of
from testbed.prediction.idle_rates import IdleCost, collective_cost, pairs_cost
from testbed.spec.buildings import Host
from testbed.spec.catalogue import placements
from testbed.spec.parallelism import BY_SPEED, DEGREES, EVEN, LEAVES, ParallelismSpec, ScheduleSpec
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.intra_node import IntraNodeModel
from testbed.workload.job.rank_hardware import intra_node_models, slowdowns_of, slowest_ranks
from testbed.workload.job.rank_placement import leaves_of
from testbed.workload.layers import FSDP
from testbed.workload.parallelism import (
    CONTEXT,
    EXPERT,
    EXPERT_SHARD,
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
    Mesh,
    ParallelismError,
    make_mesh,
)
from testbed.workload.pipeline_plan import groups_of
from testbed.workload.schedules import find_schedule
from testbed.workload.stages import Sizes, Stage, layer_counts, model_stages

Changes = Mapping[str, Any]
"""Changed values of a scenario, by path."""

# by kind of traffic: collective, dimension that selects the algorithm, default algorithm
_COLLECTIVES = {
    REPLICATE: ("all_reduce", REPLICATE, ""),
    FSDP: ("all_gather", SHARD, "ring"),
    TENSOR: ("all_reduce", TENSOR, "ring"),
    EXPERT: ("all_to_all", EXPERT, "direct"),
}
_OF_SCHEDULE = ("name", "microbatches", "chunks", "layers_per_stage", "microbatches_per_replica")
PARALLELISM, SCHEDULE = "workload.parallelism.", "workload.schedule."
COLLECTIVES = PARALLELISM + "collectives"


@dataclass(frozen=True)
class _Shape:
    """Data shared by configurations with the same degrees in the same order."""

    mesh: Mesh
    costs: Mapping[str, IdleCost]


@dataclass(frozen=True)
class _Work:
    """Times of the slowest stage per microbatch, including communication within it.

    `forward_s`, `input_s` and `weight_s` are the times of the forward pass, the input gradients and the weight
    gradients. `message_s` is the time to send to the next stage, and `latency_s` the time until that arrives. `end_s`
    is the time of the gradient synchronisation after the last microbatch.
    """

    forward_s: float
    input_s: float
    weight_s: float
    message_s: float
    latency_s: float
    end_s: float


def replicas(scenario: Scenario) -> int:
    """Return the number of ranks with their own sequences, where each rank is one accelerator."""
    parallelism = scenario.workload.parallelism
    assert parallelism is not None
    return parallelism.data_parallel_replicate_degree * parallelism.data_parallel_shard_degree


def sequences(scenario: Scenario) -> int:
    """Return the sequences of a step over all ranks."""
    schedule = scenario.workload.schedule or ScheduleSpec()
    return replicas(scenario) * scenario.workload.local_batch_size * schedule.microbatches


class ChangedNetworks:
    """The networks of a scenario's configurations, which depend only on changes of the topology."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._known: dict[str, tuple[Network, Sequence[Host]]] = {}

    def of(self, changes: Changes) -> tuple[Network, Sequence[Host]]:
        """Return the network on shortest paths and the hosts of ranks; raise ConfigError if a change is invalid."""
        own = {path: value for path, value in changes.items() if path.startswith("topology")}
        key = json.dumps(own, sort_keys=True)
        if key not in self._known:
            scenario = self._scenario.changed(own, "a configuration") if own else self._scenario
            topology = scenario.topology.resolve()
            hosts = scenario.rank_hosts(topology)
            self._known[key] = network_of(topology, hosts), hosts
        return self._known[key]


class Screener:
    """An estimator of the step times of a scenario's configurations.

    `most` is the maximum number of configurations to estimate. `coarse` has the path prefixes to vary if there are
    more.
    """

    most = 2_000_000  # takes half a minute
    coarse = (
        "workload.schedule",
        "workload.local_batch_size",
        "workload.parallelism.placement",
        "topology",
        *(f"workload.parallelism.{name}_degree" for name in DEGREES),
    )

    def __init__(self, scenario: Scenario) -> None:
        workload = scenario.workload
        assert workload.parallelism is not None
        self._scenario = scenario
        self._sequences = sequences(scenario)
        schedule = workload.schedule or ScheduleSpec()
        self._base: dict[str, Any] = {
            **{
                PARALLELISM + name: getattr(workload.parallelism, name)
                for name in ParallelismSpec.model_fields
            },
            **{SCHEDULE + name: getattr(schedule, name) for name in _OF_SCHEDULE},
            "workload.local_batch_size": workload.local_batch_size,
        }
        self._topology = scenario.topology.resolve()
        self._hosts = scenario.rank_hosts(self._topology)
        self._slowdowns = slowdowns_of(workload, self._hosts)
        self._networks = ChangedNetworks(scenario)
        self._shapes: dict[object, _Shape | None] = {}
        self._works: dict[object, _Work | None] = {}

    def looks_at(self, path: str) -> bool:
        """Return whether the estimate depends on the value at this path of a scenario."""
        last = path.rpartition(".")[2]
        if path.startswith(PARALLELISM):
            known = ("placement", "accelerators_per_rank", *(f"{name}_degree" for name in DEGREES))
            return last in known or path.startswith(COLLECTIVES)
        if path.startswith(SCHEDULE):
            return last in _OF_SCHEDULE
        return path in ("workload.local_batch_size", "algorithms") or path.startswith("topology")

    def step_s(self, changes: Changes) -> float | None:
        """Return the estimate in seconds; None for an invalid configuration."""

        def value(path: str) -> Any:
            return changes.get(path, self._base[path])

        name, chunks = value(SCHEDULE + "name"), value(SCHEDULE + "chunks")
        entry = find_schedule(name)
        if not entry.takes(chunks):
            return None
        chunks = entry.chunks or chunks
        local = value("workload.local_batch_size")
        replicas = value(f"{PARALLELISM}{REPLICATE}_degree") * value(f"{PARALLELISM}{SHARD}_degree")
        microbatches = changes.get(SCHEDULE + "microbatches", self._sequences // (replicas * local))
        if microbatches * replicas * local != self._sequences:
            return None
        key = self._key(changes)
        shared = value(SCHEDULE + "layers_per_stage"), value(SCHEDULE + "microbatches_per_replica")
        work = self._work(key, changes, chunks, local, shared)
        if work is None:
            return None
        stages = value(f"{PARALLELISM}{PIPELINE}_degree")
        return _pipeline_s(work, stages, microbatches, chunks, split=entry.split) + work.end_s

    def _key(self, changes: Changes) -> tuple[object, ...]:
        degrees = tuple(
            changes.get(path, self._base[path]) for path in self._base if path.startswith(PARALLELISM)
        )
        others = ("topology", "algorithms", f"{COLLECTIVES}.")
        return str(degrees), json.dumps(
            {path: own for path, own in changes.items() if path.startswith(others)}
        )

    def _shape(self, key: object, changes: Changes) -> _Shape | None:
        if key not in self._shapes:
            self._shapes[key] = self._make_shape(changes)
        return self._shapes[key]

    def _make_shape(self, changes: Changes) -> _Shape | None:
        def value(name: str) -> Any:
            return changes.get(PARALLELISM + name, self._base[PARALLELISM + name])

        degrees = {name: value(f"{name}_degree") for name in DEGREES}
        placement = value("placement")
        order = placements()[placement]["order"] if isinstance(placement, str) else placement
        if degrees[SHARD] % degrees[EXPERT]:
            return None
        try:
            mesh = make_mesh(degrees, self._scenario.ranks, value("accelerators_per_rank"), order)
        except ParallelismError:
            return None
        network, _ = self._networks.of(changes)
        groups: dict[str, list[Members]] = {}
        for name, members in groups_of(mesh):
            groups.setdefault(name, []).append(members)
        near: Sequence[object] = [host.building for host in self._hosts]
        if value("hierarchy") == LEAVES:
            near = leaves_of(self._topology, self._hosts)
        algorithms = self._algorithms(changes)
        costs = {
            kind: collective_cost(network, groups.get(kind, []), collective, algorithms[kind], near)
            for kind, (collective, *_) in _COLLECTIVES.items()
        }
        rings = [pair for ring in mesh.groups(CONTEXT) for pair in pairwise((*ring, ring[0]))]
        lines = [pair for line in mesh.groups(PIPELINE) for pair in pairwise(line)]
        costs[CONTEXT] = pairs_cost(network, rings)
        costs[PIPELINE] = pairs_cost(network, lines)
        return _Shape(mesh, costs)

    def _algorithms(self, changes: Changes) -> dict[str, str]:
        """Return the algorithm for each kind of traffic."""
        one = COLLECTIVES + "."
        named = dict(changes.get(COLLECTIVES, self._base[COLLECTIVES]))
        named |= {path.removeprefix(one): how for path, how in changes.items() if path.startswith(one)}
        usual = {REPLICATE: changes.get("algorithms", self._scenario.algorithms)[0]}
        found = {}
        for kind, (collective, dimension, otherwise) in _COLLECTIVES.items():
            found[kind] = named.get(dimension, usual.get(kind, otherwise))
            # uneven tokens are sent directly; shared sequences count as a ring
            if otherwise and not collective_of(collective).algorithms.has(found[kind]):
                found[kind] = found[kind] if found[kind] == AUTO else otherwise
        return found

    def _work(
        self, key: object, changes: Changes, chunks: int, local: int, shared: tuple[Any, Any]
    ) -> _Work | None:
        whole = (key, chunks, local, str(shared))
        if whole not in self._works:
            shape = self._shape(key, changes)
            self._works[whole] = None if shape is None else self._make_work(shape, chunks, local, shared)
        return self._works[whole]

    def _make_work(self, shape: _Shape, chunks: int, local: int, shared: tuple[Any, Any]) -> _Work | None:
        """Return the work of a configuration; `shared` says how layers and microbatches are distributed."""
        workload, mesh = self._scenario.workload, shape.mesh
        assert workload.model is not None
        sizes = replace(Sizes.of(workload, workload.itemsize), microbatch_size=local)
        layers, microbatches = shared
        # estimated as if stages were assigned cyclically
        slowdowns = _slowdown_by_position(mesh, self._slowdowns, microbatches != EVEN) * chunks
        speeds = [1 / factor for factor in slowdowns] if layers == BY_SPEED and self._slowdowns else ()
        try:
            given = () if isinstance(layers, str) else layers
            counts = layer_counts(workload.model, len(slowdowns), speeds, given, sizes.scores)
            stages = model_stages(workload.model, len(slowdowns), mesh, sizes, counts)
        except ParallelismError:
            return None
        within: Sequence[IntraNodeModel | None] = [None] * len(stages)
        if of_ranks := intra_node_models(workload, self._hosts, Scale(), mesh):
            first, positions = dict.fromkeys(mesh.order, 0), mesh.outside[PIPELINE]
            firsts = [mesh.rank({**first, PIPELINE: number % positions}) for number in range(len(stages))]
            within = [of_ranks[rank] for rank in firsts]
        works = [
            _stage_work(stage, shape, factor, own)
            for stage, factor, own in zip(stages, slowdowns, within, strict=True)
        ]
        return max(works, key=lambda work: work.forward_s + work.input_s + work.weight_s)


def _slowdown_by_position(mesh: Mesh, slowdowns: Mapping[int, float], shared: bool) -> list[float]:
    """Return the slowdown of each pipeline position.

    It is that of the slowest ranks, or an average over replicas that share microbatches by speed.
    """
    of_positions = zip(*slowest_ranks(mesh, slowdowns), strict=True)
    return [len(each) / sum(1 / one for one in each) if shared else max(each) for each in of_positions]


def _stage_work(stage: Stage, shape: _Shape, slowdown: float, within: IntraNodeModel | None) -> _Work:
    """Return a stage's times: per layer and direction, two partial sums and token exchanges; keys and values in a ring.

    `slowdown` is the factor by which compute takes longer.
    """
    costs, pipelined = shape.costs, shape.mesh.outside[PIPELINE] > 1
    forward_s = input_s = weight_s = 0.0
    gathered_s = gathering_s = reduced_s = 0.0
    reduced = 0.0
    for part in stage.parts:
        own_s = slowdown * part.forward_s
        own_input_s = slowdown * part.input_s
        within_s = 2 * costs[TENSOR].seconds(part.tensor) + 2 * costs[EXPERT].seconds(part.expert)
        inner_gather_s = inner_reduce_s = 0.0
        if within is not None:
            inner = part.inner
            within_s += within.blocking_s(inner.tensor, inner.expert)
            replicated = within.replicated_bytes(inner.reduced, inner.expert_reduced)
            inner_gather_s = within.collective_time(SHARD, "all_gather", inner.gathered).alone_s
            inner_gather_s += within.collective_time(
                EXPERT_SHARD, "all_gather", inner.expert_gathered
            ).alone_s
            inner_reduce_s = within.collective_time(SHARD, "reduce_scatter", inner.reduced).alone_s
            inner_reduce_s += within.collective_time(
                EXPERT_SHARD, "reduce_scatter", inner.expert_reduced
            ).alone_s
            inner_reduce_s += within.collective_time(REPLICATE, "all_reduce", replicated).alone_s
        turns = max(0, shape.mesh.outside[CONTEXT] - 1)
        ring_s = turns * costs[CONTEXT].seconds(part.context)
        gather_s = costs[FSDP].seconds(part.gathered + part.expert_gathered) + inner_gather_s
        gathered_s += gather_s
        gathering_s += costs[FSDP].byte_s * (part.gathered + part.expert_gathered)
        hidden_s = 0.0 if pipelined else max(0.0, gather_s - own_s)
        forward_s += own_s + within_s + max(0.0, ring_s - own_s) + hidden_s
        input_s += own_input_s + within_s + max(0.0, 2 * ring_s - own_input_s) + hidden_s
        weight_s += slowdown * part.weight_s
        if costs[FSDP].byte_s:
            reduced_s += costs[FSDP].seconds(part.reduced + part.expert_reduced)
        reduced_s += inner_reduce_s
        reduced += part.reduced + part.expert_reduced
    shards = shape.mesh.outside[SHARD] * shape.mesh.outside[CONTEXT]
    end_s = reduced_s + costs[REPLICATE].seconds(reduced / shards)
    if pipelined:
        end_s += gathered_s
    else:
        # with a single stage, all gradients except the first layer's overlap with compute, and nothing is gathered
        idle_s = max(0.0, input_s + weight_s - gathering_s)
        end_s = max(end_s / max(1, len(stage.parts)), end_s - idle_s)
    pipe = costs[PIPELINE]
    message_s = pipe.byte_s * stage.activation
    return _Work(forward_s, input_s, weight_s, message_s, pipe.latency_s, end_s)


def _pipeline_s(work: _Work, ranks: int, microbatches: int, chunks: int, *, split: bool) -> float:
    """Return the time of all microbatches' forward and backward passes through all stages, with `chunks` per rank."""
    turn_s = work.forward_s + work.input_s + work.weight_s
    if ranks == 1:
        return microbatches * turn_s * chunks
    busy_s = chunks * max(turn_s, 2 * work.message_s)
    bubble_s = turn_s
    if split:
        bubble_s = max(0.0, work.forward_s + work.input_s - work.weight_s)
    hops_s = 2 * (work.latency_s + work.message_s)
    return microbatches * busy_s + (ranks - 1) * (bubble_s + hops_s)
