"""The benchmark of collectives, on an emulated network or over loopback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.clock import clock_here
from testbed.comm.collectives import AUTO, TuningTable, collective_of, dtype_named, traffic
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic, sent_rows
from testbed.comm.collectives.plan_check import check_if_plugin
from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.measure.execution.network_setup import Network
from testbed.measure.execution.rank_network import RankNetwork, RankRun, bring_up
from testbed.measure.execution.resources import ranks_per_process
from testbed.measure.ranks.benchmarks import BenchSpec, Case, numel_for, sent_elements
from testbed.measure.result_model import Column
from testbed.net.controller.policy_view import View
from testbed.net.paths.hops import NETEM
from testbed.plugins import short_name
from testbed.spec.buildings import Host
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import resolve_endpoints, socket_rules_of
from testbed.workload.job.endpoints import JobEndpoints, RankEndpoint
from testbed.workload.uniform_plans import uneven_rows


@dataclass(frozen=True)
class BenchOptions:
    """Options of a collective benchmark.

    Every algorithm is measured with every size. Sizes are real bytes of a rank's whole array. `congestion_control`
    overrides that of `transport`; None means the kernel's default. `ranks_per_process` is None for the fastest choice.
    """

    collective: str
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    dtype: str = "float32"
    op: str = "sum"
    iterations: int = 20
    warmup: int = 5
    timeout_s: float = 60.0
    congestion_control: str | None = None
    transport: TransportSpec = field(default_factory=TransportSpec)
    tuning: TuningTable = field(default_factory=TuningTable)
    seed: int = 1
    ranks_per_process: int | None = None


@dataclass(frozen=True)
class Row:
    """A row of the benchmark's table, in real bytes and seconds.

    `algbw` and `busbw` are defined as in nccl-tests, in bytes per second. `chosen` is the algorithm that ran, and
    `choice_bytes` is the size that `auto` uses to choose. `limit_s` is the time that the most loaded link needs for its
    bytes; None on loopback.
    """

    collective: str
    algorithm: str
    chosen: str
    choice_bytes: int
    size_bytes: int
    count: int
    dtype: str
    op: str
    time_s: float
    slowest_s: float
    algbw: float
    busbw: float
    wrong: int
    sent_bytes: float
    limit_s: float | None

    @property
    def of_limit(self) -> float | None:
        """The achieved share of the bottleneck's bandwidth, 0 to 1."""
        return None if self.limit_s is None else self.limit_s / self.time_s

    @property
    def name(self) -> str:
        """The algorithm without the path of its file; in brackets if `auto` chose it."""
        return short_name(self.algorithm) if self.algorithm != AUTO else f"({short_name(self.chosen)})"


def _gigabytes_text(rate: float) -> str:
    return f"{rate / 1e9:.4g}"


COLUMNS: tuple[Column[Row], ...] = (
    Column("#", "#", 1, lambda row: " "),
    Column("size", "(B)", 12, lambda row: row.size_bytes, "Bytes of a rank's whole array."),
    Column("count", "(elements)", 12, lambda row: row.count, "Elements of that array."),
    Column("type", "", 9, lambda row: row.dtype, "Type of the elements."),
    Column(
        "redop",
        "",
        8,
        lambda row: row.op if collective_of(row.collective).reduces else "none",
        "The reduction; none for collectives that do not reduce.",
    ),
    Column("algorithm", "", 19, lambda row: row.name, "The algorithm; in brackets if `auto` chose it."),
    Column(
        "time",
        "(us)",
        11,
        lambda row: f"{row.time_s * 1e6:.2f}" if row.time_s < 0.1 else f"{row.time_s * 1e6:.0f}",
        "Time of one call, mean over iterations and ranks.",
    ),
    Column(
        "algbw",
        "(GB/s)",
        9,
        lambda row: _gigabytes_text(row.algbw),
        "Bytes of the call, as nccl-tests counts them, over its time.",
    ),
    Column(
        "busbw",
        "(GB/s)",
        9,
        lambda row: _gigabytes_text(row.busbw),
        "`algbw` times the collective's bus factor, as nccl-tests defines it.",
    ),
    Column("#wrong", "", 7, lambda row: row.wrong, "Wrong elements, over all ranks."),
    Column(
        "of limit",
        "(%)",
        9,
        lambda row: "n/a" if row.of_limit is None else f"{row.of_limit:.1%}".removesuffix("%"),
        "Share of what the most loaded link allows, without headers; n/a on loopback.",
        key="of_limit",
    ),
)
"""The columns of `testbed bench`: those of nccl-tests, and one more."""


class BenchRun:
    """A collective benchmark on an emulated network, or over this machine's loopback if there is none."""

    def __init__(
        self, options: BenchOptions, network: Network | None, ranks: int, phase: Callable[[str], None]
    ) -> None:
        self.options = options
        self.collective = collective_of(options.collective)
        self.network = network
        self.ranks = ranks
        self.phase = phase
        self.scale = network.scale if network else Scale()
        self.topology: Topology | None = network.topology.resolve(self.scale) if network else None
        self.hosts = self.topology.hosts[:ranks] if self.topology else ()
        self.tuning = replace(options.tuning, size_scale=self.scale.size_scale)
        self.itemsize = dtype_named(options.dtype).itemsize
        self.cases = [
            (Case(algorithm, self._numel(size_bytes)), size_bytes)
            for size_bytes in options.sizes
            for algorithm in options.algorithms
        ]

    def rows(self) -> Iterator[Row]:
        """Build the network, measure, and yield each row when it is complete.

        Raises:
            PluginError: If a plug-in algorithm is incorrect; this is checked before anything is built.
            FabricError: If the network cannot be built.
            RunError: If a rank fails.
        """
        groups = [host.building for host in self.hosts] or [""] * self.ranks
        for algorithm in self.options.algorithms:
            if algorithm != AUTO:
                check_if_plugin(self.options.collective, algorithm, groups)
        seed, transport = self.options.seed, self.options.transport
        with bring_up(self.network, self.ranks, seed, self.phase, transport) as running:
            yield from self._measure(running)

    # ---- the ranks

    def _wiring(self, endpoints: Sequence[RankEndpoint]) -> JobEndpoints:
        options = self.options
        engine = self.network.backend.link_engine if self.network else NETEM
        return resolve_endpoints(
            options.transport,
            self.scale,
            self.topology,
            endpoints,
            options.seed,
            options.timeout_s,
            options.congestion_control,
            socket_rules_of(
                options.transport.sockets, self.scale, self.topology, self.hosts, link_engine=engine
            ),
        )

    def _measure(self, running: RankNetwork) -> Iterator[Row]:
        wiring = self._wiring(running.endpoints)
        options = self.options
        spec = BenchSpec(
            wiring,
            options.collective,
            tuple(case for case, _ in self.cases),
            options.dtype,
            options.op,
            options.iterations,
            options.warmup,
            self.tuning,
            ranks_per_process(
                options.ranks_per_process,
                self.ranks,
                max(case.numel for case, _ in self.cases) * self.itemsize,
                exact=clock_here() == "free",
            ),
        )
        self.phase(f"starting {self.ranks} ranks")
        found: dict[int, list[Mapping[str, float]]] = {}
        with RankRun(running, spec) as events:
            for event in events:
                if event["event"] == "result":
                    results = found.setdefault(event["case"], [])
                    results.append(event)
                    if len(results) == self.ranks:
                        yield self._row(event["case"], wiring, results)

    # ---- what comes out

    def _numel(self, size_bytes: int) -> int:
        emulated = round(self.scale.emulated_bytes(size_bytes))
        return numel_for(self.options.collective, emulated, self.itemsize, self.ranks)

    def _row(self, index: int, wiring: JobEndpoints, results: list[Mapping[str, float]]) -> Row:
        options, scale = self.options, self.scale
        case, size_bytes = self.cases[index]
        times = [scale.real_s(result["time_s"]) for result in results]
        time_s = sum(times) / len(times)
        if scale.is_one:
            size_bytes = case.numel * self.itemsize
        numel = case.numel
        share = sent_elements(options.collective, numel, self.ranks) / numel
        chosen = self._chosen(case, wiring.buildings)
        limit_s = None
        if self.topology is not None:
            pairs = self._traffic(case, chosen, wiring.buildings)
            limit_s = scale.real_s(bottleneck_s(self.topology, self.hosts, pairs))
        algbw = size_bytes * share / time_s
        return Row(
            collective=options.collective,
            algorithm=case.algorithm,
            chosen=chosen,
            choice_bytes=round(scale.real_bytes(self._part(case) * self.itemsize)),
            size_bytes=size_bytes,
            count=size_bytes // self.itemsize,
            dtype=options.dtype,
            op=options.op,
            time_s=time_s,
            slowest_s=max(times),
            algbw=algbw,
            busbw=algbw * self.collective.bus_factor(self.ranks),
            wrong=sum(int(result["wrong"]) for result in results),
            sent_bytes=scale.real_bytes(sum(result["sent_bytes"] for result in results)),
            limit_s=limit_s,
        )

    def _chosen(self, case: Case, buildings: list[int]) -> str:
        if case.algorithm != AUTO:
            return case.algorithm
        return self.tuning.choose(self.options.collective, self._part(case) * self.itemsize, buildings)

    def _part(self, case: Case) -> int:
        """Return the number of elements in the convention of `collectives.traffic`."""
        return self.collective.part(case.numel, self.ranks)

    def _traffic(self, case: Case, chosen: str, buildings: list[int]) -> dict[tuple[int, int], int]:
        collective, ranks, itemsize = self.options.collective, self.ranks, self.itemsize
        if self.collective.uneven:
            most = self._part(case)
            return rows_traffic(sent_rows(chosen, uneven_rows(ranks, most), most), itemsize, chosen)
        return traffic(collective, chosen, self._part(case), itemsize, buildings)


def bottleneck_s(
    topology: Topology, hosts: Sequence[Host], traffic: Mapping[tuple[int, int], float]
) -> float:
    """Return the seconds that the most loaded link needs for the given traffic.

    The links are those of NICs, those between leaves and spines, and those between buildings, each direction
    separately. Parallel links share their load evenly.

    Args:
        topology: The topology.
        hosts: Host of each rank.
        traffic: Payload bytes by (source rank, target rank).
    """
    bits: defaultdict[tuple[str, ...], float] = defaultdict(float)
    rates: dict[tuple[str, ...], float] = {}
    hops = View(topology).next_hops

    def load(link: tuple[str, ...], rate_bps: float, size_bytes: float) -> None:
        bits[link] += 8 * size_bytes
        rates[link] = rate_bps

    for (source, target), size_bytes in traffic.items():
        one, other = hosts[source], hosts[target]
        load((one.name, "sends"), one.nic.rate_bps, size_bytes)
        load((other.name, "receives"), other.nic.rate_bps, size_bytes)
        here, there = topology.building(one.building), topology.building(other.building)
        for host, building, direction in ((one, here, "up"), (other, there, "down")):
            if (clos := building.clos) is None:
                continue
            leaf = building.leaf_of(host)
            far = None if here != there else building.leaf_of(one if host is other else other)
            if far != leaf:
                load(
                    (building.name, f"leaf {leaf}", direction),
                    clos.spines * clos.leaf_uplink.rate_bps,
                    size_bytes,
                )
            zone = leaf // clos.leaves
            if far is None or far // clos.leaves != zone:
                load(
                    (building.name, f"zone {zone}", direction),
                    clos.spines * clos.spine_uplink.rate_bps,
                    size_bytes,
                )
        at = here.name
        while at != there.name:
            onward = hops[at][there.name]
            forth = sum(link.a_to_b.rate_bps for link in topology.wan if (link.a, link.b) == (at, onward))
            back = sum(link.b_to_a.rate_bps for link in topology.wan if (link.b, link.a) == (at, onward))
            load((at, onward), forth + back, size_bytes)
            at = onward
    frame_bytes = topology.mtu + ETHERNET_HEADER_BYTES
    share = (frame_bytes - PACKET_HEADERS_BYTES) / frame_bytes  # the share of a link's rate that is payload
    return max((count / rates[link] / share for link, count in bits.items()), default=0.0)
