"""Settles what is built before a run: backend parts, policy, scale, guests, network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.clock import CpuTime, clock_here
from testbed.measure.execution.resources import Forecast, GuestLoad, forecast, memory_words, room_for
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
from testbed.net.fabric.plan import Multipath
from testbed.net.links.pause import PAUSE_ENGINE
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES, GuestSettings
from testbed.spec.catalogue import locate_file
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.policy import parse_policy
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology, TopologySpec, load_topology
from testbed.spec.units import parse_duration, parse_size

LOOPBACK_RANKS, MOST_LOOPBACK_RANKS = 4, 256
LINK_ENGINES = ("netem", "userspace")
DATAPATHS = ("system", "netdev")


def choose_network_backend(link_engine: str | None, datapath: str | None) -> NetworkBackend:
    """The parts asked for, or the best that this host has.

    ConfigError for unknown names, FabricError for what this host does not have.
    """
    for option, value, known in (
        ("--link-engine", link_engine, LINK_ENGINES),
        ("--datapath", datapath, DATAPATHS),
    ):
        if value is not None and value not in known:
            raise ConfigError([Problem("command line", None, option, value, " or ".join(known))])
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
            raise FabricError(f"{value} was asked for, but this host does not offer it: {has[name].evidence}")
    return NetworkBackend(link_engine or choice.link_engine, datapath or choice.datapath)


def link_engine_for(asked: str | None, pauses: bool) -> str | None:
    """The link engine asked for; where switches pause who sends to them, the one that can. ConfigError."""
    if not pauses or asked == PAUSE_ENGINE:
        return asked
    if asked is None:
        return PAUSE_ENGINE
    reason = "the kernel's queues do not know by which port a frame came in"
    expected = f"{PAUSE_ENGINE}: {reason} (docs/explanation/pause.md)"
    raise ConfigError(
        [Problem("command line", None, "--link-engine", f"{asked} for a topology with pause", expected)]
    )


def choose_network(
    path: Path | None,
    policy: str,
    link_engine: str | None,
    datapath: str | None,
    size_scale: str,
    ranks: int | None,
    least: int = 2,
) -> tuple[Network | None, int]:
    """The network to put ranks on, None for this machine's loopback, and how many ranks. ConfigError, FabricError."""
    if path is None:
        count = ranks or LOOPBACK_RANKS
        if not least <= count <= MOST_LOOPBACK_RANKS:
            expected = f"{least} to {MOST_LOOPBACK_RANKS}"
            raise ConfigError([Problem("command line", None, "--ranks", str(count), expected)])
        return None, count
    chosen, spec = choose_policy(policy), load_topology(path)
    backend = choose_network_backend(link_engine_for(link_engine, spec.pauses), datapath)
    hosts = len(spec.resolve().hosts)
    count = ranks or hosts
    if not least <= count <= hosts:
        expected = f"{least} to {hosts}, as there are hosts"
        raise ConfigError([Problem("command line", None, "--ranks", str(count), expected)])
    return Network(spec, backend, choose_scale(spec.resolve, size_scale, 1.0, backend, count), chosen), count


def choose_network_without_ranks(
    topology: Path | str | Mapping[str, Any],
    policy: str,
    link_engine: str | None = None,
    datapath: str | None = None,
    size_scale: float | str = "auto",
    policy_field: str = "--policy",
) -> Network:
    """The network to bring up for programs of anybody; policy_field: what names its policy, for errors.

    size_scale: divides all rates; "auto": the smallest that this host carries. ConfigError, FabricError.
    """
    spec, chosen = load_topology(topology), choose_policy(policy, policy_field)
    backend = choose_network_backend(link_engine_for(link_engine, spec.pauses), datapath)
    return Network(spec, backend, choose_scale(spec.resolve, size_scale, 1.0, backend, ranks=0), chosen)


def command_given(arguments: Sequence[str]) -> list[str]:
    """A program and its arguments, as they stand after a command's own. ConfigError where there is none."""
    if not arguments:
        raise ConfigError(
            [Problem("command line", None, "COMMAND", "nothing", "a program and its arguments")]
        )
    return list(arguments)


def choose_policy(text: str, where: str = "--policy") -> PolicyChoice:
    """A policy from its name on a command line, without options. ConfigError."""
    try:
        return PolicyChoice(**parse_policy(text).to_choice())
    except ValueError as error:
        raise ConfigError([Problem("command line", None, where, text, str(error))]) from None


def choose_virtual_scale(scenario: Scenario, rank_bytes: float) -> Scale:
    """The scale to use under the virtual clock, which carries anything: what was asked for, or by the wait.

    rank_bytes: real bytes that the busiest rank of any variant reduces or sends in a step.
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
    """How many guests at once, what each may use of memory, and what that comes to.

    As many as were asked for; else as there are shards, as this machine has cores, and as its memory holds: what they
    are expected to use, not all that they may. ConfigError when so many do not fit, or none does.
    """
    topology = scenario.topology.resolve(scale)
    least = guest_memory(topology, scenario.ranks, scale.emulated_bytes(rank_bytes))
    ceiling = asked_bytes or max(load.roomy_bytes(least) for load in loads.values())
    facts = doctor.host_facts()
    free = facts.memory_available_bytes
    expected = forecast(scenario, loads, jobs or facts.cores, ceiling)
    used = room_for(expected)
    if jobs is None:
        expected = replace(expected, jobs=max(1, min(expected.jobs, free // used)))
    if expected.jobs * used > free:
        several = expected.jobs > 1
        many = f"{expected.jobs} guests that use" if several else "a guest that uses"
        found = (
            f"{many} about {memory_words(used)}{' each' if several else ''}, {memory_words(free)} are free"
        )
        fewer = "fewer --jobs, " if several else ""
        memory = "a smaller --memory" if asked_bytes else "--memory where you know better"
        advice = f"{fewer}a larger scale.size_scale, or {memory}"
        raise ConfigError([Problem("command line", None, "memory", found, advice)])
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
    core: int | None = None,
) -> GuestSettings:
    """From a command line's words. ConfigError names the option that is wrong."""
    modes: dict[str, CpuTime] = {"free": "free", "counted": "counted"}
    if cpu_time not in modes:
        raise ConfigError([Problem("command line", None, "--cpu-time", cpu_time, "free or counted")])
    for folder in writable:
        if not folder.is_dir():
            raise ConfigError([Problem("command line", None, "--writable", str(folder), "a folder")])
    return GuestSettings(
        memory_bytes=size_of("--memory", memory) if memory else default_memory_bytes,
        cpu_time=modes[cpu_time],
        seed=seed,
        core=core,
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
    """The scale to use: what was asked for if this host carries it, or for "auto" the smallest that it carries.

    ConfigError when the host cannot carry it, naming what is too much and the scale that would do.
    """
    facts = doctor.host_facts()
    cores = facts.cores if facts.cpu_quota is None else min(facts.cores, facts.cpu_quota)
    in_guest = clock_here() is not None
    if clock_here() == "free":
        cores = math.inf  # whatever it takes, it takes no virtual time
    host = HostCapacity(cores, facts.memory_available_bytes)
    if shortage := memory_shortage(resolve(Scale()), ranks, host, in_guest):
        raise ConfigError(
            [Problem(file, None, "hosts and ranks", shortage, "fewer of them, or a larger machine")]
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
    advice += "; or --clock virtual, which carries anything"
    raise ConfigError([Problem(file, None, "size_scale", f"{size:g}: {too_much}", advice)])


def _factor(wanted: float | str, name: str, file: str) -> float | None:
    """A number of at least 1; None for auto."""
    if wanted == "auto":
        return None
    try:
        factor = float(wanted)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < math.inf:
        raise ConfigError([Problem(file, None, name, str(wanted), "auto or a number of at least 1")])
    return factor


def size_of(option: str, text: str) -> int:
    """Bytes, with a unit, or as nccl-tests write sizes: 64M is 64 MiB. ConfigError names the option."""
    try:
        if text[-1:] in "KMG" and text[:-1].isdigit():
            size = int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]
        else:
            size = int(text) if text.isdigit() else parse_size(text)
    except ValueError as error:
        raise ConfigError([Problem("command line", None, option, repr(text), str(error))]) from None
    if size < 1:
        raise ConfigError([Problem("command line", None, option, repr(text), "a size above 0")])
    return size


def _duration(option: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigError([Problem("command line", None, option, repr(value), str(error))]) from None


@dataclass(frozen=True)
class Network:
    """An emulated network to put ranks on."""

    topology: TopologySpec
    backend: NetworkBackend
    scale: Scale
    policy: PolicyChoice

    def fabric(
        self,
        seed: int,
        progress: Callable[[str], None],
        multipath: Multipath | None = None,
        rdma: bool = False,
    ) -> Fabric:
        """The network to be built; multipath: for MPTCP; rdma: whether hosts' cards have verbs."""
        return Fabric(
            self.topology.resolve(self.scale),
            policy=self.policy,
            multipath=multipath,
            link_engine=self.backend.link_engine,
            datapath=self.backend.datapath,
            scale=self.scale,
            seed=seed,
            rdma=rdma,
            progress=progress,
        )

    def start(self, file: Path, progress: Callable[[str], None]) -> str:
        """Bring it up in a process of its own, which stays: its id. file: its topology's. FabricError."""
        options = {
            "policy": self.policy.to_data(),
            "link_engine": self.backend.link_engine,
            "datapath": self.backend.datapath,
            "scale": asdict(self.scale),
        }
        return start_background(locate_file(file, ("topologies",)).resolve(), options, progress)
