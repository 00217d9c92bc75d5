"""Inference requests that arrive on an independent schedule, and nodes of accelerator cards that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.errors import did_you_mean
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.events import KILL_EVENTS
from testbed.spec.scenario import Scenario
from testbed.spec.serving import TRACE, InferenceSpec
from testbed.spec.units import format_duration
from testbed.spec.workload import INFERENCE
from testbed.workload.job.kinds.base import WORKLOADS
from testbed.workload.job.training import JobRequest
from testbed.workload.serving.costs import ServingProblem
from testbed.workload.serving.frontend import Node, draw_arrivals, read_arrivals
from testbed.workload.serving.request_plan import Serving, plan_serving


@WORKLOADS.register(INFERENCE)
def inference(request: JobRequest) -> Serving:
    """Plan all requests of `workload.inference` in one step."""
    spec = request.scenario.workload.inference
    assert spec is not None  # guaranteed by the scenario's checks
    nodes = nodes_of(request)
    try:
        generation = spec.generation
        scenario = request.scenario
        _check_kills(scenario)
        if spec.on_arrival and scenario.trials * len(scenario.algorithms) > 1:
            got = "trials or algorithms: several"
            raise ServingProblem("dispatch", got, "one measured step, as steps may be dispatched differently")
        names = spec.serve or _serving_nodes(nodes, spec)
        return plan_serving(
            request,
            spec,
            _choose_nodes("serve", names, nodes),
            _arrivals(spec, request.seed),
            entry=_entry(spec, request),
            decode=_choose_nodes("generation.decode", generation.decode, nodes) if generation else (),
            experts=_choose_nodes("generation.experts", generation.experts, nodes) if generation else (),
            names=names,
        )
    except ServingProblem as error:
        field = f"workload.inference.{error.where}"
        problem = Problem(request.scenario.name, None, field, error.got, error.expected)
        raise ConfigError([problem]) from None


def _check_kills(scenario: Scenario) -> None:
    """Check that no killed rank is supposed to return."""
    for index, event in enumerate(scenario.events):
        if event.action in KILL_EVENTS and event.for_s is not None:
            expected = "no `for`: a killed server does not return"
            got = format_duration(event.for_s)
            raise ConfigError([Problem(scenario.name, None, f"events.{index}.for", got, expected)])


def nodes_of(request: JobRequest) -> dict[str, Node]:
    """Return the nodes of the topology on which the host and all cards have ranks, by host name."""
    ranks = {host.name: rank for rank, host in enumerate(request.hosts)}
    found = {}
    for building in request.topology.buildings:
        for leaf in range(len(building.leaves) if building.cards else 0):
            host, *cards = (one.name for one in building.leaf_hosts(leaf))
            if host in ranks and all(card in ranks for card in cards):
                found[host] = Node(ranks[host], tuple(ranks[card] for card in cards), building.name)
    return found


def _choose_nodes(field: str, names: Sequence[str] | None, nodes: dict[str, Node]) -> list[Node]:
    for name in names or ():
        if name not in nodes:
            raise ServingProblem(field, repr(name), f"the host of a node: {did_you_mean(name, list(nodes))}")
    return [nodes[name] for name in names or ()]


def _serving_nodes(nodes: dict[str, Node], spec: InferenceSpec) -> list[str]:
    """Return the hosts of all nodes without another role."""
    generation = spec.generation
    taken = {*(generation.decode or ()), *(generation.experts or ())} if generation else set()
    return [name for name in nodes if name not in taken]


def _entry(spec: InferenceSpec, request: JobRequest) -> int | None:
    if spec.entry is None:
        return None
    names = [host.name for host in request.hosts]
    if spec.entry not in names:
        raise ServingProblem("entry", repr(spec.entry), f"a host: {did_you_mean(spec.entry, names)}")
    return names.index(spec.entry)


def _arrivals(spec: InferenceSpec, seed: int) -> list[float]:
    if spec.arrivals != TRACE:
        return draw_arrivals(spec.arrivals, spec.rate_per_s, spec.requests, seed, spec.burst)
    assert spec.trace is not None  # guaranteed by the scenario's checks
    try:
        return read_arrivals(Path(spec.trace))[: spec.requests]
    except OSError as error:
        raise ServingProblem("trace", spec.trace, f"a file that can be read ({error.strerror})") from None
    except ValueError as error:
        raise ServingProblem("trace", f"{spec.trace}, {error}", "one time of arrival on each line") from None
