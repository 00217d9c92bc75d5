"""A recorded step: the operations of every rank of a job, recorded by `testbed capture` or another tool.

Traces are in the testbed's own format, or are Chakra execution traces, which ASTRA-sim reads and PyTorch's converter
writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from testbed.comm.collectives import AUTO, collective_of
from testbed.errors import did_you_mean
from testbed.net.paths import Network, network_of
from testbed.spec.buildings import Host
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.parallelism import BY_DISTANCE, TOPOLOGY_AWARE
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.spec.workload import CHAKRA, TRACE, WorkloadSpec
from testbed.workload.job.kinds.base import WORKLOADS
from testbed.workload.job.rank_placement import map_hosts, minimize_crossing
from testbed.workload.job.training import JobRequest
from testbed.workload.plan import JobPlan
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.trace_conversion import ALL_REDUCE, BARRIER, plan_trace
from testbed.workload.traces.rank_orders import families_of, order_of, placements_of, reorder_ranks
from testbed.workload.traces.trace import Collective, JobTrace, Node, TraceError

Pairs = Mapping[tuple[int, int], int]
"""Bytes per ordered pair of a trace's ranks."""


@WORKLOADS.register(CHAKRA)
@WORKLOADS.register(TRACE)
def trace(request: JobRequest) -> JobPlan:
    """Plan the recorded step of the file `trace`, or of the folder `chakra`, rank by rank.

    ConfigError is raised if the number of ranks differs, or the trace is inconsistent.
    """
    spec, name = request.scenario.workload, request.scenario.name
    source, field = (spec.trace, f"workload.{TRACE}") if spec.trace else (spec.chakra, f"workload.{CHAKRA}")
    found = recorded_trace(spec)
    if len(found.ranks) != request.ranks:
        got = f"{source}, of {len(found.ranks)} ranks"
        expected = f"a trace of {request.ranks} ranks, as many as the topology has"
        raise ConfigError([Problem(name, None, field, got, expected)])
    check_choices(found, spec, name)
    try:
        return plan_trace(place_trace(found, request), request)
    except TraceError as error:
        expected = f"ranks that fit together: {error}"
        raise ConfigError([Problem(name, None, field, str(source), expected)]) from None


def recorded_trace(spec: WorkloadSpec) -> JobTrace:
    """Return the trace of a workload with `trace` or `chakra`, in real figures; raise TraceError if it is invalid."""
    if spec.chakra is None:
        return _read_version(Path(spec.trace or ""), _changes_ns(spec))
    rates = _roofline_rates(spec) if spec.accelerator or spec.peak_flops else None
    return _read_chakra_version(Path(spec.chakra), rates, _changes_ns(spec))


def changed_ns(spec: WorkloadSpec) -> int:
    """Return when the workload's trace last changed; 0 if there is none."""
    return max(_changes_ns(spec), default=0)


def _changes_ns(spec: WorkloadSpec) -> tuple[int, ...]:
    """Return when each file of the workload's trace last changed."""
    files = [Path(spec.trace)] if spec.trace else []
    if spec.chakra is not None:
        folder = Path(spec.chakra) if Path(spec.chakra).is_dir() else Path(spec.chakra).parent
        files = [path for pattern in ("*.et", "*.et.gz", "*.json", "*.yml") for path in folder.glob(pattern)]
    return tuple(path.stat().st_mtime_ns for path in sorted(files) if path.exists())


@lru_cache(maxsize=4)
def _read_version(path: Path, changes_ns: tuple[int, ...]) -> JobTrace:
    """Read a trace once per modification, since every variant needs it."""
    return JobTrace.read(path)


def collectives_of(trace: JobTrace) -> dict[str, tuple[str, ...]]:
    """Return the collectives of each kind of a trace."""
    found: dict[str, set[str]] = {}
    for own in {id(own): own for own in trace.ranks}.values():
        for node in own:
            if isinstance(node, Collective):
                found.setdefault(node.kind, set()).add(node.collective)
    return {kind: tuple(sorted(some)) for kind, some in sorted(found.items())}


@lru_cache(maxsize=256)
def accepts_algorithm(collective: str, algorithm: str) -> bool:
    """Return whether an algorithm can execute a collective of a trace."""
    known = collective_of(ALL_REDUCE if collective == BARRIER else collective)
    return known.algorithms.has(algorithm) or (algorithm == AUTO and not known.uneven)


def with_algorithms(trace: JobTrace, algorithms: Mapping[str, str]) -> JobTrace:
    """Return a job with these algorithms, by kind, in all collectives that have an algorithm with that name."""
    if not algorithms:
        return trace

    def made(node: Node) -> Node:
        if not isinstance(node, Collective):
            return node
        algorithm = algorithms.get(node.kind)
        if algorithm is None or not accepts_algorithm(node.collective, algorithm):
            return node
        return replace(node, algorithm=algorithm)

    return trace.map_nodes(made)


def check_choices(trace: JobTrace, spec: WorkloadSpec, name: str) -> None:
    """Check that `placement`, `mapping` and `algorithms` fit the trace; `name` is the scenario's.

    ConfigError is raised if they do not.
    """
    problems = [
        Problem(name, None, f"workload.{field}", got, expected)
        for field, got, expected in _misfits(trace, spec)
    ]
    if problems:
        raise ConfigError(problems)


def _misfits(trace: JobTrace, spec: WorkloadSpec) -> Iterator[tuple[str, str, str]]:
    families, collectives = families_of(trace), collectives_of(trace)
    for kind in spec.placement or ():
        if kind not in families:
            yield "placement", kind, f"a kind of communication of the trace: {did_you_mean(kind, families)}"
    if isinstance(spec.mapping, tuple) and len(spec.mapping) != len(trace.ranks):
        yield "mapping", f"a list of {len(spec.mapping)}", f"each of {len(trace.ranks)} ranks once"
    for kind, algorithm in (spec.algorithms or {}).items():
        if kind not in collectives:
            expected = f"a kind of collective of the trace: {did_you_mean(kind, collectives)}"
            yield f"algorithms.{kind}", algorithm, expected
        elif not any(accepts_algorithm(one, algorithm) for one in collectives[kind]):
            yield f"algorithms.{kind}", algorithm, f"an algorithm of {' or '.join(collectives[kind])}"


def rank_order(
    trace: JobTrace,
    spec: WorkloadSpec,
    hosts: Sequence[Host],
    network: Callable[[], Network],
    pairs: Callable[[], Pairs],
) -> tuple[int, ...]:
    """Return the trace's rank on each of the hosts, according to `placement` and `mapping`.

    Args:
        trace: The trace.
        spec: The workload.
        hosts: The hosts.
        network: Function that returns the paths between hosts; called only if a mapping needs them.
        pairs: Function that returns the bytes between ranks of the trace; called only if a mapping needs them.
    """
    order = order_of(trace, spec.placement or ())
    if spec.mapping is None:
        return order
    if spec.mapping == TOPOLOGY_AWARE:
        starts = dict.fromkeys([order, tuple(range(len(order))), *placements_of(trace).values()])
        buildings = tuple(host.building for host in hosts)
        return _inverse(
            _minimize_crossing(tuple(sorted(pairs().items())), buildings, tuple(map(_inverse, starts)))
        )
    places = map_hosts(spec.mapping, hosts, network() if spec.mapping == BY_DISTANCE else None, {})
    return tuple(order[place] for place in _inverse(places))


@lru_cache(maxsize=64)
def _minimize_crossing(
    pairs: tuple[tuple[tuple[int, int], int], ...],
    buildings: tuple[str, ...],
    starts: tuple[tuple[int, ...], ...],
) -> tuple[int, ...]:
    """Minimize traffic between buildings, with a cache, since a search needs it for every network and policy."""
    names = list(dict.fromkeys(buildings))
    return minimize_crossing(dict(pairs), [names.index(name) for name in buildings], starts)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda place: order[place]))


def _roofline_rates(spec: WorkloadSpec) -> tuple[float, float | None]:
    """Return floating-point operations and memory bytes per second; None if the memory's rate is unknown."""
    entry = accelerators()[spec.accelerator] if spec.accelerator else {}
    rate = entry.get("memory_bandwidth")
    return spec.flops, None if rate is None else float(rate)


@lru_cache(maxsize=4)
def _read_chakra_version(
    folder: Path, rates: tuple[float, float | None] | None, changes_ns: tuple[int, ...]
) -> JobTrace:
    """Read traces once per modification, since every variant needs them."""
    from testbed.workload.traces.chakra import read_job  # noqa: PLC0415 (protobuf, which only this workload needs)

    if rates is None:
        return read_job(folder)
    flops_rate, memory_rate = rates

    def roofline_s(flops: float, touched_bytes: float) -> float | None:
        """Return the longer of the compute time and the memory time, as in a roofline."""
        if memory_rate is None:
            return flops / flops_rate if flops else None
        return max(flops / flops_rate, touched_bytes / memory_rate)

    return read_job(folder, roofline_s)


def place_trace(trace: JobTrace, request: JobRequest) -> JobTrace:
    """Return a trace in the scenario's rank order and with its algorithms; raise TraceError if it is invalid."""
    done = with_algorithms(trace, request.scenario.workload.algorithms or {})
    return reorder_ranks(done, _order(done, request))


def ranks_of_trace(scenario: Scenario) -> tuple[int, ...] | None:
    """Return the trace's rank that each rank of a planned scenario replays; None if there is no trace or reordering."""
    if not scenario.workload.is_recorded:
        return None
    request = JobRequest.of(scenario, scenario.topology.resolve(), UNSCALED)
    trace = recorded_trace(scenario.workload)
    order = _order(with_algorithms(trace, scenario.workload.algorithms or {}), request)
    return None if order == tuple(range(len(order))) else order


def _order(done: JobTrace, request: JobRequest) -> tuple[int, ...]:
    def pairs() -> Pairs:
        plan = replace(plan_trace(done, request), buildings=request.building_indices)
        return plan_traffic(plan.with_algorithm(request.scenario.algorithms[0]), request.itemsize)

    def network() -> Network:
        return network_of(request.topology, request.hosts, request.link_engine)

    return rank_order(done, request.scenario.workload, request.hosts, network, pairs)
