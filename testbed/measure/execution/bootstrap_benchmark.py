"""The benchmark of job start-up: many ranks per host, on an emulated network."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.measure.execution.launchers import LauncherProcess
from testbed.measure.execution.network_setup import Network
from testbed.measure.ranks.benchmarks import BootstrapSpec, GroupKind, group_kinds
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned
from testbed.net.fabric.network import Fabric
from testbed.prediction.startup_cost import SoftwareCosts, StartupCost, StartupMethod, estimate_startup
from testbed.workload.job.endpoint_resolution import endpoints_on
from testbed.workload.job.endpoints import RankEndpoint
from testbed.workload.job.errors import RunError

MOST_EAGER = 1024
"""Ranks of which everybody connects to everybody: each pair takes two sockets and some 0.2 ms of a core."""
RANK_BYTES, SOCKET_BYTES = 900 << 10, 16 << 10
"""Of a rank's thread and of a connection, with the kernel's: 4,096 ranks were seen to take 5.7 GB of a guest."""
MOST_BYTES = 128 << 20
"""Of the ranks of one process: in pages, half as many as the host allows it pieces of memory."""
QUIET_S = 0.2
END_TIMEOUT_S = 30.0
LATE_S = 1e-3


@dataclass(frozen=True)
class BootstrapOptions:
    """What to try. ranks: in all. dimensions: of parallelism, and sizes; replicas, the last one, are the rest."""

    ranks: int
    dimensions: tuple[tuple[str, int], ...]
    way: StartupMethod
    costs: SoftwareCosts
    timeout_s: float = 600.0

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """All ranks, then those of each dimension."""
        replicas = self.ranks // math.prod(size for _, size in self.dimensions)
        sizes = (*self.dimensions, ("data", replicas))
        return group_kinds(self.ranks, [(name, size) for name, size in sizes if size > 1])

    @property
    def rank_bytes(self) -> int:
        """Memory that a rank takes, about."""
        return RANK_BYTES + self.predicted.connections * SOCKET_BYTES

    @property
    def predicted(self) -> StartupCost:
        """By the closed form."""
        return estimate_startup(self.ranks, [kind.size for kind in self.kinds[1:]], self.way, self.costs)


@dataclass(frozen=True)
class BootstrapRow:
    """What a start took. Seconds; parts: in the mean over ranks, by what they went to.

    sockets, memory_bytes: of a rank, the most and the mean; memory is that of its process. bytes_sent: by rank 0.
    late_s: how much later than the others the last rank began.
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
    """A network that is built once, and starts on it, one after the other."""

    def __init__(self, network: Network, seed: int, phase: Callable[[str], None]) -> None:
        self.network, self.seed, self.phase = network, seed, phase
        self.topology = network.topology.resolve(network.scale)

    def rows(self, tries: Sequence[BootstrapOptions]) -> Iterator[BootstrapRow]:
        """Build, measure, take down; rows as they come. FabricError, RunError."""
        clean_abandoned()
        fabric = self.network.fabric(self.seed, self.phase)
        with fabric:
            hosts = endpoints_on(self.topology, self.topology.hosts, fabric.state.pids)
            counts = dict.fromkeys(str(options.ranks) for options in tries)
            self.phase(
                f"starting {', '.join(counts)} ranks"
            )  # before the first row, for a table has nothing between
            for options in tries:
                yield self._row(options, hosts, fabric)

    def _row(self, options: BootstrapOptions, hosts: Sequence[RankEndpoint], fabric: Fabric) -> BootstrapRow:
        spec = spec_of(options, hosts)
        found: list[Mapping[str, float]] = []
        failures = []
        with LauncherProcess(spec.to_json(), {ENVIRONMENT_MARK: fabric.state.id}) as launcher:
            while (events := launcher.events(QUIET_S)) is not None:
                if trouble := fabric.failure():
                    raise RunError(trouble)
                for event in events:
                    if event["event"] in ("failed", "killed"):
                        failures.append(f"{event['who']} on {event['host']}: {event['message']}")
                    elif event["event"] == "result":
                        found.append(event)
            ended = launcher.ended(END_TIMEOUT_S)
        if failures or ended:
            raise RunError("\n".join(failures[:5]) or str(ended))
        return row_of(options, found, spec.ranks_per_process)


def spec_of(
    options: BootstrapOptions, hosts: Sequence[RankEndpoint], ready_s: float | None = None
) -> BootstrapSpec:
    """Ranks that follow each other on one host, as many on each as it takes. ready_s: until all are to be ready."""
    if ready_s is None:
        ready_s = 2.0 + 0.004 * options.ranks
    each = -(-options.ranks // len(hosts))
    ranks = tuple(replace(hosts[rank // each], rank=rank) for rank in range(options.ranks))
    way, costs = options.way, options.costs
    return BootstrapSpec(
        ranks=ranks,
        slots=tuple(rank % each for rank in range(options.ranks)),
        kinds=options.kinds,
        token=secrets.token_hex(8),
        begin_s=time.monotonic() + ready_s,
        timeout_s=options.timeout_s,
        bootstrap=way.bootstrap,
        by_pairs=way.by_pairs,
        reuses=way.reuses,
        eager=way.eager,
        base_s=costs.base_s,
        caller_s=costs.caller_s,
        entry_s=costs.entry_s,
        connection_s=costs.connection_s,
        pair_s=costs.pair_s,
        rank_s=costs.rank_s,
        ranks_per_process=max(1, min(options.ranks, MOST_BYTES // options.rank_bytes)),
    )


def row_of(options: BootstrapOptions, results: Sequence[Mapping[str, float]], together: int) -> BootstrapRow:
    """From what the ranks told. RunError where some began later than the others."""
    late_s = max(result["late_s"] for result in results)
    if late_s > LATE_S:
        raise RunError(
            f"a rank was ready {late_s:.1f} s after the others had begun: this machine is too busy"
        )
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
