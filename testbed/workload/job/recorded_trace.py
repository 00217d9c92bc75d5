"""The recorded trace of a workload, in the testbed's own format or Chakra, and where a scenario places its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from testbed.comm.collectives import AUTO, collective_of
from testbed.errors import did_you_mean
from testbed.net.paths import Network
from testbed.spec.buildings import Host
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.parallelism import BY_DISTANCE, TOPOLOGY_AWARE
from testbed.spec.workload import WorkloadSpec
from testbed.workload.job.rank_placement import map_hosts, minimize_crossing
from testbed.workload.trace_conversion import ALL_REDUCE, BARRIER
from testbed.workload.traces import Collective, JobTrace, Node
from testbed.workload.traces.rank_orders import families_of, order_of, placements_of

Pairs = Mapping[tuple[int, int], int]
"""Bytes per ordered pair of a trace's ranks."""


def recorded_trace(spec: WorkloadSpec) -> JobTrace:
    """Return the trace of a workload with `trace` or `chakra`, in real figures. Raises TraceError."""
    if spec.trace is None:
        return chakra_trace(spec)
    return _read_version(Path(spec.trace), changed_ns(spec))


def changed_ns(spec: WorkloadSpec) -> int:
    """Return when the workload's trace last changed; 0 where there is none."""
    if spec.chakra is not None:
        return max(chakra_changed_ns(Path(spec.chakra)), default=0)
    path = Path(spec.trace or "")
    return path.stat().st_mtime_ns if spec.trace and path.exists() else 0


@lru_cache(maxsize=4)
def _read_version(path: Path, changed_ns: int) -> JobTrace:
    """Read a trace once per modification: every variant asks for it."""
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
    """Return a job with these algorithms, by kind, in all collectives that have an algorithm of that name."""
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
    """Check that `placement`, `mapping` and `algorithms` fit the trace. `name` is the scenario's.

    Raises ConfigError where they do not.
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
    """Return the trace's rank on each of the hosts, by `placement` and `mapping`.

    Args:
        trace: The trace.
        spec: The workload.
        hosts: The hosts.
        network: Returns the paths between hosts; called only where a mapping needs them.
        pairs: Returns bytes between ranks of the trace; called only where a mapping needs them.
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
    """Minimize traffic between buildings, cached: a search asks with every network and policy."""
    names = list(dict.fromkeys(buildings))
    return minimize_crossing(dict(pairs), [names.index(name) for name in buildings], starts)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda place: order[place]))


def chakra_trace(spec: WorkloadSpec) -> JobTrace:
    """Return the trace of a workload with `chakra`, in real figures. Raises TraceError."""
    assert spec.chakra is not None
    rates = _roofline_rates(spec) if spec.accelerator or spec.peak_flops else None
    return _read_chakra_version(Path(spec.chakra), rates, chakra_changed_ns(Path(spec.chakra)))


def _roofline_rates(spec: WorkloadSpec) -> tuple[float, float | None]:
    """Return floating-point operations and memory bytes per second; None where the memory's rate is not known."""
    entry = accelerators()[spec.accelerator] if spec.accelerator else {}
    rate = entry.get("memory_bandwidth")
    return spec.flops, None if rate is None else float(rate)


def chakra_changed_ns(folder: Path) -> tuple[int, ...]:
    """Return when each file of the traces last changed."""
    where = folder if folder.is_dir() else folder.parent
    patterns = ("*.et", "*.et.gz", "*.json", "*.yml")
    files = [path for pattern in patterns for path in where.glob(pattern)] if where.is_dir() else []
    return tuple(path.stat().st_mtime_ns for path in sorted(files))


@lru_cache(maxsize=4)
def _read_chakra_version(
    folder: Path, rates: tuple[float, float | None] | None, changed_ns: tuple[int, ...]
) -> JobTrace:
    """Read traces once per modification: every variant asks for them."""
    from testbed.workload.traces.chakra import read_job  # noqa: PLC0415 (protobuf, which no other workload waits for)

    if rates is None:
        return read_job(folder)
    flops_rate, memory_rate = rates

    def roofline_s(flops: float, touched_bytes: float) -> float | None:
        """Return the longer of computing and reading memory, as in a roofline."""
        if memory_rate is None:
            return flops / flops_rate if flops else None
        return max(flops / flops_rate, touched_bytes / memory_rate)

    return read_job(folder, roofline_s)
