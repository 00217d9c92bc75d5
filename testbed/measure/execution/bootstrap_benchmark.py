"""The benchmark of job start-up: many ranks per host, on an emulated network."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.measure.execution.network_setup import Network
from testbed.measure.execution.rank_network import RankRun, bring_up
from testbed.measure.ranks.benchmarks import BootstrapSpec, GroupKind, group_kinds
from testbed.prediction.startup_cost import SoftwareCosts, StartupCost, StartupMethod, estimate_startup
from testbed.workload.job.endpoints import RankEndpoint
from testbed.workload.job.errors import RunError

MOST_EAGER = 1024
"""Limit on ranks that all connect to each other: each pair takes two sockets and about 0.2 ms of a core."""
RANK_BYTES, SOCKET_BYTES = 900 << 10, 16 << 10
"""Memory of a rank's thread and of a connection, including the kernel's: 4,096 ranks took 5.7 GB of a guest."""
MOST_BYTES = 128 << 20
"""Memory limit for the ranks of one process: in pages, half of the memory mappings that the host allows it."""
LATE_S = 1e-3


@dataclass(frozen=True)
class BootstrapOptions:
    """One start-up to measure: total ranks, and sizes of parallelism dimensions (the remaining factor is replicas)."""

    ranks: int
    dimensions: tuple[tuple[str, int], ...]
    way: StartupMethod
    costs: SoftwareCosts
    timeout_s: float = 600.0

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """The kinds of process groups: that of all ranks, then those of each dimension."""
        replicas = self.ranks // math.prod(size for _, size in self.dimensions)
        sizes = (*self.dimensions, ("data", replicas))
        return group_kinds(self.ranks, [(name, size) for name, size in sizes if size > 1])

    @property
    def rank_bytes(self) -> int:
        """Approximate memory of a rank, in bytes."""
        return RANK_BYTES + self.predicted.connections * SOCKET_BYTES

    @property
    def predicted(self) -> StartupCost:
        """The closed-form prediction."""
        return estimate_startup(self.ranks, [kind.size for kind in self.kinds[1:]], self.way, self.costs)


@dataclass(frozen=True)
class BootstrapRow:
    """A measured start-up, in seconds.

    `parts` is the mean time over ranks, by activity. `sockets` is the largest number of sockets of any rank.
    `memory_bytes` is the mean memory of a rank's process. `bytes_sent` is that of rank 0. `late_s` is how late the last
    rank was ready.
    """

    ranks: int
    way: StartupMethod
    time_s: float
    parts: Mapping[str, float]
    sockets: int
    memory_bytes: float
    bytes_sent: int
    late_s: float
    predicted: StartupCost


class BootstrapRun:
    """A series of start-ups on one network, which is built only once."""

    def __init__(self, network: Network, seed: int, phase: Callable[[str], None]) -> None:
        self.network, self.seed, self.phase = network, seed, phase
        self.topology = network.topology.resolve(network.scale)

    def rows(self, tries: Sequence[BootstrapOptions]) -> Iterator[BootstrapRow]:
        """Build the network, measure, and yield each row when it is complete; raise FabricError or RunError."""
        with bring_up(self.network, None, self.seed, self.phase) as running:
            counts = dict.fromkeys(str(options.ranks) for options in tries)
            # printed before the first row, so that it does not interrupt the table
            self.phase(f"starting {', '.join(counts)} ranks")
            for options in tries:
                spec = make_spec(options, running.endpoints)
                with BootstrapRanks(running, spec) as events:
                    found = [event for event in events if event["event"] == "result"]
                yield make_row(options, found, spec.ranks_per_process)


class BootstrapRanks(RankRun):
    """The ranks of one start-up: there are many, they end slowly, and they tend to fail together."""

    end_timeout_s = 30.0
    most_failures = 5


def make_spec(
    options: BootstrapOptions, hosts: Sequence[RankEndpoint], ready_s: float | None = None
) -> BootstrapSpec:
    """Return the specification of a start-up: consecutive ranks share a host; `ready_s` is the time to get ready."""
    if ready_s is None:
        ready_s = 2.0 + 0.004 * options.ranks
    each = -(-options.ranks // len(hosts))
    ranks = tuple(replace(hosts[rank // each], rank=rank) for rank in range(options.ranks))
    return BootstrapSpec(
        ranks=ranks,
        slots=tuple(rank % each for rank in range(options.ranks)),
        kinds=options.kinds,
        token=secrets.token_hex(8),
        begin_s=time.monotonic() + ready_s,
        timeout_s=options.timeout_s,
        way=options.way,
        costs=options.costs,
        ranks_per_process=max(1, min(options.ranks, MOST_BYTES // options.rank_bytes)),
    )


def make_row(
    options: BootstrapOptions, results: Sequence[Mapping[str, float]], together: int
) -> BootstrapRow:
    """Return the row with the ranks' results; raise RunError if a rank was ready too late."""
    late_s = max(result["late_s"] for result in results)
    if late_s > LATE_S:
        raise RunError(f"a rank was ready {late_s:.1f} s after the others had started: this host is too busy")
    parts: dict[str, float] = {}
    for result in results:
        for name, seconds in result["parts"].items():  # type: ignore[attr-defined]
            parts[name] = parts.get(name, 0.0) + seconds / len(results)
    grown = max(result["after_bytes"] for result in results) - min(
        result["before_bytes"] for result in results
    )
    return BootstrapRow(
        options.ranks,
        options.way,
        max(result["time_s"] for result in results),
        parts,
        int(max(result["sockets"] for result in results)),
        grown / min(together, options.ranks),
        int(next(result["bytes_sent"] for result in results if result["rank"] == 0)),
        late_s,
        options.predicted,
    )
