"""The choice of a run's basis: link engine, datapath, policy, scale, guests, network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.clock import CpuTime, clock_here
from testbed.comm.transport import PROTOCOLS, TRANSPORTS
from testbed.errors import did_you_mean
from testbed.measure.execution.resources import Forecast, GuestLoad, forecast, memory_text, required_bytes
from testbed.measure.fidelity.capacity import (
    HostCapacity,
    NetworkBackend,
    guest_memory,
    memory_shortage,
    overload,
    smallest_scale,
    virtual_scale,
)
from testbed.net import doctor
from testbed.net.controller import PolicyChoice
from testbed.net.errors import FabricError
from testbed.net.fabric.daemon import start_background
from testbed.net.fabric.network import Fabric
from testbed.net.links.pause import PAUSE_ENGINE
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES, GuestSettings
from testbed.spec.buildings import Host
from testbed.spec.catalogue import locate_file
from testbed.spec.errors import ConfigError, Problem, option_error
from testbed.spec.policy import parse_policy
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology, TopologySpec, load_topology
from testbed.spec.transport import TransportSpec
from testbed.spec.units import parse_duration, parse_size
from testbed.workload.job.endpoint_resolution import multipath_of, wants_rdma

LOOPBACK_RANKS, MOST_LOOPBACK_RANKS = 4, 256
CLOCKS = ("real", "virtual")
LINK_ENGINES = ("netem", "userspace")
DATAPATHS = ("system", "netdev")


def check_clock(clock: str) -> None:
    """Raise ConfigError for an unknown clock."""
    if clock not in CLOCKS:
        raise option_error("--clock", clock, " or ".join(CLOCKS))


def check_word(option: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError, with the closest known word, for an unknown value."""
    if value not in known:
        raise option_error(option, value, did_you_mean(value, known))


def check_transport(kind: str, protocol: str) -> None:
    """Raise ConfigError for an unknown transport or protocol."""
    for option, value, known in (("--transport", kind, TRANSPORTS), ("--protocol", protocol, PROTOCOLS)):
        if (expected := known.expected(value)) is not None:
            raise option_error(option, value, expected)


def rank_count(asked: int | None, topology: Path | None) -> int:
    """Return the requested number of ranks; by default one per host, or LOOPBACK_RANKS without a topology file."""
    if asked is not None:
        return asked
    return len(load_topology(topology).resolve().hosts) if topology else LOOPBACK_RANKS


def choose_network_backend(link_engine: str | None, datapath: str | None) -> NetworkBackend:
    """Return the requested link engine and datapath, or the best ones that this host supports.

    Raises:
        ConfigError: For an unknown name.
        FabricError: If this host does not support the requested ones.
    """
    for option, value, known in (
        ("--link-engine", link_engine, LINK_ENGINES),
        ("--datapath", datapath, DATAPATHS),
    ):
        if value is not None and value not in known:
            raise option_error(option, value, " or ".join(known))
    capabilities = doctor.probe_all()
    choice = doctor.choose(capabilities)
    if choice.link_engine is None or choice.datapath is None:
        raise FabricError(
            f"no network can be built here: {'; '.join(choice.reasons)}\n"
            "see: testbed doctor; a run with --clock virtual needs neither root nor the kernel's modules"
        )
    has = {capability.name: capability for capability in capabilities}
    for value, name in ((link_engine, "netem"), (datapath, "system datapath")):
        if value in ("netem", "system") and not has[name].status:
            raise FabricError(f"{value} was requested, but this host does not have it: {has[name].evidence}")
    return NetworkBackend(link_engine or choice.link_engine, datapath or choice.datapath)


def link_engine_for(asked: str | None, pauses: bool) -> str | None:
    """Return the requested link engine, or the one for pause frames if the topology has them.

    Raises:
        ConfigError: If the requested engine cannot emulate pause frames.
    """
    if not pauses or asked == PAUSE_ENGINE:
        return asked
    if asked is None:
        return PAUSE_ENGINE
    reason = "the kernel's queues do not know a frame's ingress port"
    expected = f"{PAUSE_ENGINE}: {reason} (docs/explanation/pause.md)"
    raise option_error("--link-engine", f"{asked} for a topology with pause", expected)


def choose_network(
    path: Path | None,
    policy: str,
    link_engine: str | None,
    datapath: str | None,
    size_scale: str,
    ranks: int | None,
    least: int = 2,
) -> tuple[Network | None, int]:
    """Return the network for a benchmark or program (None for loopback) and the number of ranks.

    Raises:
        ConfigError: If an option is wrong, or the host cannot carry the rates.
        FabricError: If this host does not have the requested engine or datapath.
    """
    most = MOST_LOOPBACK_RANKS if path is None else rank_count(None, path)
    count = rank_count(ranks, None) if path is None else ranks or most
    if not least <= count <= most:
        expected = f"{least} to {most}" + ("" if path is None else ", the number of hosts")
        raise option_error("--ranks", str(count), expected)
    if path is None:
        return None, count
    return choose_network_without_ranks(path, policy, link_engine, datapath, size_scale, ranks=count), count


def choose_network_without_ranks(
    topology: Path | str | Mapping[str, Any],
    policy: str,
    link_engine: str | None = None,
    datapath: str | None = None,
    size_scale: float | str = "auto",
    policy_field: str = "--policy",
    ranks: int = 0,
) -> Network:
    """Return a network to bring up for any program, by default without ranks.

    Args:
        topology: File or data of the topology.
        policy: Name of the transport policy.
        link_engine: The link engine; None for the best one.
        datapath: The datapath; None for the best one.
        size_scale: Factor that divides all rates; "auto" is the smallest factor that this host can carry.
        policy_field: Name of the policy's field in errors.
        ranks: Number of ranks, to check the host's memory.

    Raises:
        ConfigError: If an option is wrong, or the host cannot carry the rates.
        FabricError: If this host does not have the requested engine or datapath.
    """
    spec, chosen = load_topology(topology), choose_policy(policy, policy_field)
    backend = choose_network_backend(link_engine_for(link_engine, spec.pauses), datapath)
    return Network(spec, backend, choose_scale(spec.resolve, size_scale, 1.0, backend, ranks), chosen)


def require_command(arguments: Sequence[str]) -> list[str]:
    """Return the program and its arguments from a command line; raise ConfigError if there is none."""
    if not arguments:
        raise option_error("COMMAND", "nothing", "a program and its arguments")
    return list(arguments)


def choose_policy(text: str, where: str = "--policy") -> PolicyChoice:
    """Return a policy by its name on a command line, without options; raise ConfigError if there is none."""
    try:
        return PolicyChoice(**parse_policy(text).to_choice())
    except ValueError as error:
        raise option_error(where, text, str(error)) from None


def choose_virtual_scale(scenario: Scenario, rank_bytes: float) -> Scale:
    """Return the scale under the virtual clock: the requested one, or one that keeps the run short.

    The virtual clock can carry any rate. `rank_bytes` is the number of real bytes that the busiest rank of any variant
    reduces or sends in a step.
    """
    size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
    steps = scenario.trials + scenario.warmup
    by_the_wait = virtual_scale(2 * (scenario.ranks - 1) * rank_bytes * steps)
    return Scale(by_the_wait if size == "auto" else size, 1.0 if dilation == "auto" else dilation)


def choose_guests(
    scenario: Scenario,
    scale: Scale,
    rank_bytes: float,
    loads: Mapping[str, GuestLoad],
    jobs: int | None,
    asked_bytes: int | None,
) -> Forecast:
    """Choose the number of parallel guests and their memory limit, and return the forecast.

    Without `jobs`, the number is the smallest of three: the shards, the cores, and the guests that fit into memory by
    their expected use (not their limit).

    Args:
        scenario: The scenario.
        scale: The scale in force.
        rank_bytes: Real bytes that the busiest rank reduces or sends in a step.
        loads: Load of a guest for one step, by variant.
        jobs: Requested number of parallel guests; None to choose.
        asked_bytes: Requested memory limit of each guest; None to choose.

    Raises:
        ConfigError: If the guests do not fit into memory.
    """
    topology = scenario.topology.resolve(scale)
    least = guest_memory(topology, scenario.ranks, scale.emulated_bytes(rank_bytes))
    ceiling = asked_bytes or max(load.roomy_bytes(least) for load in loads.values())
    facts = doctor.host_facts()
    free = facts.memory_available_bytes
    expected = forecast(scenario, loads, jobs or facts.cores, ceiling)
    used = required_bytes(expected)
    if jobs is None:
        expected = replace(expected, jobs=max(1, min(expected.jobs, free // used)))
    if expected.jobs * used > free:
        several = expected.jobs > 1
        many = f"{expected.jobs} guests that use" if several else "a guest that uses"
        found = f"{many} about {memory_text(used)}{' each' if several else ''}, {memory_text(free)} are free"
        fewer = "fewer --jobs, " if several else ""
        memory = "a smaller --memory" if asked_bytes else "--memory where you know better"
        advice = f"{fewer}a larger scale.size_scale, or {memory}"
        raise option_error("memory", found, advice)
    return expected


def guest_settings(
    memory: str | None,
    cpu_time: str,
    seed: int,
    stall_timeout: str,
    timeout: str | None,
    writable: Sequence[Path],
    *,
    open_vswitch: bool = True,
    default_memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> GuestSettings:
    """Return a guest's settings from command-line options; raise ConfigError if one is wrong."""
    modes: dict[str, CpuTime] = {"free": "free", "counted": "counted"}
    if cpu_time not in modes:
        raise option_error("--cpu-time", cpu_time, "free or counted")
    for folder in writable:
        if not folder.is_dir():
            raise option_error("--writable", str(folder), "a directory")
    return GuestSettings(
        memory_bytes=parse_size_option("--memory", memory) if memory else default_memory_bytes,
        cpu_time=modes[cpu_time],
        seed=seed,
        stall_timeout_s=_duration("--stall-timeout", stall_timeout),
        timeout_s=_duration("--timeout", timeout) if timeout else None,
        writable=tuple(writable),
        open_vswitch=open_vswitch,
    )


def choose_scale(
    resolve: Callable[[Scale], Topology],
    size_scale: float | str,
    time_dilation: float | str,
    backend: NetworkBackend,
    ranks: int,
    file: str = "command line",
) -> Scale:
    """Return the requested scale; for "auto", the smallest scale that this host can carry.

    Args:
        resolve: Returns the topology at a scale.
        size_scale: The size scale, or "auto".
        time_dilation: The time dilation, or "auto".
        backend: Link engine and datapath.
        ranks: Number of ranks.
        file: The file named in errors.

    Raises:
        ConfigError: If the host cannot carry the scale; the message says what exceeds the host and which scale would
            fit.
    """
    facts = doctor.host_facts()
    cores = facts.cores if facts.cpu_quota is None else min(facts.cores, facts.cpu_quota)
    in_guest = clock_here() is not None
    if clock_here() == "free":
        cores = math.inf  # computation takes no virtual time
    host = HostCapacity(cores, facts.memory_available_bytes)
    if shortage := memory_shortage(resolve(Scale()), ranks, host, in_guest):
        raise ConfigError(
            [Problem(file, None, "hosts and ranks", shortage, "fewer of them, or a machine with more memory")]
        )
    size, dilation = _factor(size_scale, "size_scale", file), _factor(time_dilation, "time_dilation", file)
    found = smallest_scale(resolve, host, backend, size, dilation)
    if found is not None:
        return found
    if size is None or dilation is None:
        raise ConfigError([Problem(file, None, "rates", "beyond any scale", "lower rates or fewer hosts")])
    too_much = "; ".join(overload(resolve(Scale(size, dilation)), host, backend))
    fitting = smallest_scale(resolve, host, backend, None, dilation)
    advice = (
        f"size_scale of at least {fitting.size_scale:g}, or auto" if fitting else "lower rates or fewer hosts"
    )
    advice += "; or --clock virtual, which can carry any rate"
    raise ConfigError([Problem(file, None, "size_scale", f"{size:g}: {too_much}", advice)])


def _factor(wanted: float | str, name: str, file: str) -> float | None:
    """Return a factor of at least 1, or None for "auto"."""
    if wanted == "auto":
        return None
    try:
        factor = float(wanted)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < math.inf:
        raise ConfigError([Problem(file, None, name, str(wanted), "auto or a number of at least 1")])
    return factor


def parse_size_option(option: str, text: str) -> int:
    """Parse a size in bytes, with a unit or as in nccl-tests (64M is 64 MiB); raise ConfigError if it is wrong."""
    try:
        if text[-1:] in "KMG" and text[:-1].isdigit():
            size = int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]
        else:
            size = int(text) if text.isdigit() else parse_size(text)
    except ValueError as error:
        raise option_error(option, repr(text), str(error)) from None
    if size < 1:
        raise option_error(option, repr(text), "a size above 0")
    return size


def _duration(option: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise option_error(option, repr(value), str(error)) from None


@dataclass(frozen=True)
class Network:
    """An emulated network for ranks or programs that is not yet built."""

    topology: TopologySpec
    backend: NetworkBackend
    scale: Scale
    policy: PolicyChoice

    def fabric(
        self,
        seed: int,
        progress: Callable[[str], None],
        topology: Topology | None = None,
        transport: TransportSpec | None = None,
        hosts: Sequence[Host] = (),
        **options: Any,
    ) -> Fabric:
        """Return the fabric to be built.

        Args:
            seed: Seed of random choices.
            progress: Called with a line for each phase.
            topology: The emulated topology; None to resolve it.
            transport: The transport of the ranks on `hosts`; it may need MPTCP ports or RDMA NICs.
            hosts: Hosts of the ranks.
            options: Further arguments of `Fabric`.
        """
        if transport is not None:
            options |= {"multipath": multipath_of(transport, hosts), "rdma": wants_rdma(transport)}
        return Fabric(
            topology or self.topology.resolve(self.scale),
            policy=self.policy,
            link_engine=self.backend.link_engine,
            datapath=self.backend.datapath,
            scale=self.scale,
            seed=seed,
            progress=progress,
            **options,
        )

    def start(self, file: Path, progress: Callable[[str], None]) -> str:
        """Bring the network up in a background process, from its topology's file, and return its id."""
        options = {
            "policy": asdict(self.policy),
            "link_engine": self.backend.link_engine,
            "datapath": self.backend.datapath,
            "scale": asdict(self.scale),
        }
        return start_background(locate_file(file, ("topologies",)).resolve(), options, progress)
