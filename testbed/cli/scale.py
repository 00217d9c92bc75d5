"""What every command that builds a network settles first: which parts this host offers, and which scale it carries."""

from __future__ import annotations

import math
from collections.abc import Callable

from testbed import doctor
from testbed.config import ConfigError, Problem, Scenario, Topology
from testbed.config.units import format_size
from testbed.fabric.errors import FabricError
from testbed.fidelity.capacity import (
    HostCapacity,
    Stack,
    guest_memory,
    memory_shortage,
    overload,
    smallest_scale,
    virtual_scale,
)
from testbed.virtual import clock_here
from testbed.workload import AllReduce, training_step

LINK_ENGINES = ("netem", "userspace")
DATAPATHS = ("system", "netdev")


def choose_stack(link_engine: str | None, datapath: str | None) -> Stack:
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
    return Stack(link_engine or choice.link_engine, datapath or choice.datapath)


def choose_virtual_scale(scenario: Scenario) -> float:
    """The size scale to use under the virtual clock, which carries anything: what was asked for, or by the wait."""
    wanted = scenario.scale.size_scale
    if wanted != "auto":
        return float(wanted)
    steps = scenario.trials + scenario.warmup
    return virtual_scale(2 * (scenario.ranks - 1) * gradient_bytes(scenario) * steps)


def choose_guest_memory(scenario: Scenario, scale: float, guests: int, asked_bytes: int | None) -> int:
    """Memory of each guest; ConfigError when so many at once do not fit this machine."""
    topology = scenario.topology.resolve(scale)
    needed = asked_bytes or guest_memory(topology, scenario.ranks, gradient_bytes(scenario) / scale)
    free = doctor.host_facts().memory_available_bytes >> 20 << 20  # a readable figure
    if guests * needed > free:
        found = f"{guests} guests of {format_size(needed)} each, {format_size(free)} are free"
        advice = "fewer --jobs, a larger scale.size_scale, or --memory where you know better"
        raise ConfigError([Problem("command line", None, "memory", found, advice)])
    return needed


def gradient_bytes(scenario: Scenario) -> float:
    """Real bytes that each rank reduces in a step."""
    itemsize = {"float32": 4, "float64": 8}[scenario.workload.gradient_dtype]
    program = training_step(scenario.workload, 1.0)
    return float(sum(action.numel for action in program if isinstance(action, AllReduce)) * itemsize)


def choose_scale(
    resolve: Callable[[float], Topology],
    wanted: float | str,
    stack: Stack,
    ranks: int,
    file: str = "command line",
) -> float:
    """The size scale to use: what was asked for if this host carries it, or for "auto" the smallest that it carries.

    ConfigError when the host cannot carry it, naming what is too much and the scale that would do.
    """
    facts = doctor.host_facts()
    cores = facts.cores if facts.cpu_quota is None else min(facts.cores, facts.cpu_quota)
    if clock_here() == "free":
        cores = math.inf  # whatever it takes, it takes no virtual time
    host = HostCapacity(cores, facts.memory_available_bytes)
    if shortage := memory_shortage(resolve(1.0), ranks, host):
        raise ConfigError(
            [Problem(file, None, "hosts and ranks", shortage, "fewer of them, or a larger machine")]
        )
    fitting = smallest_scale(resolve, host, stack)
    if wanted == "auto":
        if fitting is None:
            raise ConfigError(
                [Problem(file, None, "rates", "beyond any size scale", "lower rates or fewer hosts")]
            )
        return fitting
    try:
        scale = float(wanted)
    except ValueError:
        scale = 0.0
    if scale < 1:
        raise ConfigError([Problem(file, None, "size_scale", str(wanted), "auto or a number of at least 1")])
    if too_much := overload(resolve(scale), host, stack):
        advice = f"size_scale of at least {fitting:g}, or auto" if fitting else "lower rates or fewer hosts"
        advice += "; or --clock virtual, which carries anything"
        raise ConfigError([Problem(file, None, "size_scale", f"{scale:g}: {'; '.join(too_much)}", advice)])
    return scale
