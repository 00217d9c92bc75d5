"""What every command that builds a network settles first: which parts this host offers, and which scale it carries."""

from __future__ import annotations

from collections.abc import Callable

from testbed import doctor
from testbed.config import ConfigError, Problem, Topology
from testbed.fabric.errors import FabricError
from testbed.fidelity.capacity import HostCapacity, Stack, memory_shortage, overload, smallest_scale

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
        raise FabricError(f"no network can be built here: {'; '.join(choice.reasons)}\nsee: testbed doctor")
    has = {capability.name: capability for capability in capabilities}
    for value, name in ((link_engine, "netem"), (datapath, "system datapath")):
        if value in ("netem", "system") and not has[name].status:
            raise FabricError(f"{value} was asked for, but this host does not offer it: {has[name].evidence}")
    return Stack(link_engine or choice.link_engine, datapath or choice.datapath)


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
        raise ConfigError([Problem(file, None, "size_scale", f"{scale:g}: {'; '.join(too_much)}", advice)])
    return scale
