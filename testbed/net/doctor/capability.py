"""A capability of this host, and the choice that follows from all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What every run needs, whichever link engine and datapath carry it.
NEEDED = (
    "root",
    "programs",
    "mnexec",
    "network namespaces",
    "veth",
    "kernel bridge",
    "HTB",
    "Open vSwitch",
    "os-ken",
)
# Preferred first: (name of the part, the capability it stands on).
LINK_ENGINES = (("netem", "netem"), ("userspace", "packet sockets"))
DATAPATHS = (("system", "system datapath"), ("netdev", "netdev datapath"))


@dataclass(frozen=True)
class Capability:
    """One thing that this host has (True), has not (False), or of which that cannot be known (None).

    `evidence` is what was seen, `hint` what to do about it (empty when there is nothing to do).
    """

    name: str
    status: bool | None
    evidence: str
    hint: str = ""


@dataclass(frozen=True)
class Choice:
    """What a run would use here; both parts None when no run is possible, and then `reasons` say why."""

    link_engine: str | None
    datapath: str | None
    reasons: tuple[str, ...]

    @property
    def run_possible(self) -> bool:
        """Whether a network can be built here."""
        return self.link_engine is not None and self.datapath is not None


def choose(capabilities: Sequence[Capability]) -> Choice:
    """The link engine ("netem" or "userspace") and datapath ("system" or "netdev") to use, the kernel's own first."""
    has = {capability.name: capability for capability in capabilities}
    # Without root hardly anything can be known: the one reason that matters should not drown in its consequences.
    if "root" in has and has["root"].status is False:
        return Choice(None, None, (_lack(has["root"]),))
    lacking = [_lack(_find(has, name)) for name in NEEDED if not _find(has, name).status]
    engine, engine_reasons = _first(has, LINK_ENGINES)
    # Without the daemon no datapath can be known; its own line says so.
    datapath, datapath_reasons = _first(has, DATAPATHS) if _find(has, "Open vSwitch").status else (None, [])
    if engine is None:
        lacking += engine_reasons
    if datapath is None:
        lacking += datapath_reasons
    if lacking:
        return Choice(None, None, tuple(lacking))
    return Choice(engine, datapath, (*engine_reasons, *datapath_reasons))


def _first(has: dict[str, Capability], parts: Sequence[tuple[str, str]]) -> tuple[str | None, list[str]]:
    passed_over: list[str] = []
    for part, name in parts:
        capability = _find(has, name)
        if capability.status:
            return part, passed_over
        passed_over.append(_lack(capability))
    return None, passed_over


def _find(has: dict[str, Capability], name: str) -> Capability:
    return has.get(name, Capability(name, None, "was not probed"))


def _lack(capability: Capability) -> str:
    word = "no" if capability.status is False else "unknown"
    return f"{capability.name}: {word} ({capability.evidence})"
