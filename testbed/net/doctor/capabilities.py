"""Capabilities of this host, derived from what probes saw, and the choice that follows. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.net.doctor.host_resources import HostFacts
from testbed.net.doctor.sandbox import Outcome
from testbed.net.virtual.kernel_image import KernelImage

# What every run needs, whichever link engine and datapath carry it.
REQUIRED = (
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
        return Choice(None, None, (_describe_missing(has["root"]),))
    lacking = [_describe_missing(_find(has, name)) for name in REQUIRED if not _find(has, name).status]
    engine, engine_reasons = _choose_first(has, LINK_ENGINES)
    # Without the daemon no datapath can be known; its own line says so.
    datapath, datapath_reasons = (
        _choose_first(has, DATAPATHS) if _find(has, "Open vSwitch").status else (None, [])
    )
    if engine is None:
        lacking += engine_reasons
    if datapath is None:
        lacking += datapath_reasons
    if lacking:
        return Choice(None, None, tuple(lacking))
    return Choice(engine, datapath, (*engine_reasons, *datapath_reasons))


def _choose_first(
    has: dict[str, Capability], parts: Sequence[tuple[str, str]]
) -> tuple[str | None, list[str]]:
    passed_over: list[str] = []
    for part, name in parts:
        capability = _find(has, name)
        if capability.status:
            return part, passed_over
        passed_over.append(_describe_missing(capability))
    return None, passed_over


def _find(has: dict[str, Capability], name: str) -> Capability:
    return has.get(name, Capability(name, None, "was not probed"))


def _describe_missing(capability: Capability) -> str:
    word = "no" if capability.status is False else "unknown"
    return f"{capability.name}: {word} ({capability.evidence})"


ROOT_HINT = "run it as root, for example through sudo"
# Bits of the effective capability set (capabilities(7)) that building a network takes.
CAPABILITY_BITS = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
# How kernels and tools word that something is not there, as against not allowed.
UNSUPPORTED_PHRASES = (
    "unknown",
    "not supported",
    "no such file",
    "invalid argument",
    "not found",
    "no such device",
    "address family",
)
MIN_FREE_MEMORY_BYTES = 1 << 30
RDMA_HINT = "tools/bootstrap rdma installs what the distribution has"
MAX_CLOCK_RESOLUTION_S = 1e-6
MAX_TIMER_LATENESS_S = 1e-3


def root(user_id: int, effective: int) -> Capability:
    """`effective` is the process's effective capability set."""
    if user_id != 0:
        return Capability("root", False, f"user id {user_id}", ROOT_HINT)
    lacking = [name for name, bit in CAPABILITY_BITS.items() if not effective >> bit & 1]
    if lacking:
        return Capability(
            "root", False, f"root without {', '.join(lacking)}", "a container needs to be privileged"
        )
    return Capability("root", True, f"root with {', '.join(CAPABILITY_BITS)}")


def untried_without_root(name: str) -> Capability:
    """A probe that an ordinary user cannot make."""
    return Capability(name, None, "only root can try")


def programs(name: str, found: Mapping[str, str | None], hint: str) -> Capability:
    """`found` maps each program of a kind to its path."""
    missing = [program for program, path in found.items() if path is None]
    if missing:
        return Capability(name, False, f"not found: {', '.join(missing)}", hint)
    return Capability(name, True, ", ".join(found))


def attempt(name: str, tried: Outcome, confirmed: str = "", hint: str = "") -> Capability:
    """A thing made in a throw-away namespace: `tried` is how making it went, `confirmed` how it read back."""
    if tried.ok:
        return Capability(name, True, confirmed or "made and removed")
    said = tried.message.splitlines()[0] if tried.message else f"status {tried.status}"
    if tried.status is not None and any(word in said.lower() for word in UNSUPPORTED_PHRASES):
        return Capability(name, False, said, hint)
    return Capability(name, None, said, hint)


def open_vswitch(
    is_root: bool, database: Outcome, server: Outcome, switch: Outcome, processes: Sequence[str]
) -> Capability:
    """What the database, its server and the switch's daemon answered; `processes` of theirs that were seen."""
    name = "Open vSwitch"
    if database.status is None and "not found" in database.message:
        return Capability(name, False, database.message, "make setup installs it")
    if database.ok and server.ok and switch.ok:
        return Capability(name, True, f"{server.output}; {switch.output}".replace(" (Open vSwitch)", ""))
    if not is_root and processes:
        return Capability(name, None, f"running: {', '.join(processes)}; only root may ask them", ROOT_HINT)
    silent = next(outcome for outcome in (database, server, switch) if not outcome.ok)
    said = silent.message.splitlines()[0] if silent.message else f"status {silent.status}"
    return Capability(name, False, f"installed, does not answer: {said}", "make setup starts it")


def datapath(kind: str, in_use: str, port: str | None, reason: str) -> Capability:
    """Whether Open vSwitch's "system" or "netdev" datapath works.

    `in_use` is `ovs-appctl dpif/show`, `port` the OpenFlow port number that a throw-away bridge's own interface got
    (None: none was made), `reason` what the system said about its absence. That Open vSwitch lists a datapath type
    means nothing: it lists "system" on kernels without it.
    """
    name = f"{kind} datapath"
    for line in in_use.splitlines():
        if line.startswith(f"{kind}@"):
            return Capability(name, True, f"in use: {line.split(':')[0]}")
    if port is None:
        return Capability(name, None, "no bridge could be tried")
    if port.lstrip("-").isdigit() and int(port) > 0:
        return Capability(name, True, "a bridge on it got its port")
    hint = "" if kind == "netdev" else "modprobe openvswitch, where the kernel has it; else netdev does"
    return Capability(name, False, f"a bridge on it got no port{reason and ': ' + reason}", hint)


def first_log_text(message: str) -> str:
    """The text of the first of Open vSwitch's log lines (`time|number|module|level|text`)."""
    return message.splitlines()[0].rsplit("|", 1)[-1] if message else ""


def mnexec(path: str | None, tried: Outcome | None) -> Capability:
    """`tried` is a program run by it in a namespace of its own; None: not tried, which takes root."""
    if path is None:
        return Capability(
            "mnexec", False, "not found", "make setup installs it (from Debian's package mininet)"
        )
    if tried is None or tried.ok:
        return Capability("mnexec", True, f"{path}{'' if tried is None else ' runs'}")
    said = tried.message or f"status {tried.status}"
    return Capability(
        "mnexec", False, f"{path} fails: {said}", "a chroot or an unprivileged container forbids it"
    )


def controller_library(name: str, tried: Outcome, hint: str) -> Capability:
    """`tried` imported it and printed its version."""
    if tried.ok:
        return Capability(name, True, f"{tried.output}, imports")
    said = tried.message.splitlines()[-1] if tried.message else f"status {tried.status}"
    if tried.status is None:
        return Capability(name, None, said, hint)
    return Capability(name, False, said, hint)


def congestion_controls(available: str, default: str) -> Capability:
    """Both as in /proc/sys/net/ipv4; modules not loaded yet do not show."""
    names = available.split()
    evidence = f"{', '.join(names)} (default {default.strip()})"
    if not {"cubic", "reno"} & set(names):
        return Capability(
            "congestion controls", None, evidence or "none listed", "neither cubic nor reno is listed"
        )
    return Capability("congestion controls", True, evidence)


def mptcp(error: str | None, enabled: str) -> Capability:
    """`error` of making a socket, and the switch net.mptcp.enabled ("" when there is none)."""
    if error is not None:
        return Capability("MPTCP", False, error, "optional")
    if enabled.strip() == "0":
        return Capability("MPTCP", False, "switched off", "optional: sysctl -w net.mptcp.enabled=1")
    return Capability("MPTCP", True, "a socket can be made")


def cgroups(mounts: str) -> Capability:
    """From /proc/self/mounts."""
    controllers = []
    unified = False
    for line in mounts.splitlines():
        _device, folder, kind, *_rest = line.split()
        unified |= kind == "cgroup2"
        if kind == "cgroup":
            controllers.append(folder.rsplit("/", 1)[-1])
    if not controllers:
        return Capability("cgroups", unified, "v2" if unified else "none mounted")
    return Capability("cgroups", True, f"v1{' and v2' if unified else ''} ({', '.join(controllers)})")


def cores(facts: HostFacts) -> Capability:
    """Two are needed for figures that mean something: one for the network, one for the ranks."""
    usable = facts.cores if facts.cpu_quota is None else min(facts.cores, facts.cpu_quota)
    evidence = f"{facts.cores} usable" + ("" if facts.cpu_quota is None else f", time of {facts.cpu_quota:g}")
    hint = "" if usable >= 2 else "runs work, but few figures will be trusted: give it two"
    return Capability("cores", usable >= 2, evidence, hint)


def memory(facts: HostFacts) -> Capability:
    """A gigabyte carries the small topologies."""
    gib = 1 << 30
    evidence = f"{facts.memory_available_bytes / gib:.1f} GiB free of {facts.memory_total_bytes / gib:.1f}"
    enough = facts.memory_available_bytes >= MIN_FREE_MEMORY_BYTES
    return Capability(
        "free memory", enough, evidence, "" if enough else "only the smallest topologies will fit"
    )


def clock(resolution_s: float, source: str, lateness_s: Sequence[float]) -> Capability:
    """`resolution_s` of CLOCK_MONOTONIC (a scheduler tick without high-resolution timers), lateness of short sleeps."""
    middle, worst = statistics.median(lateness_s), max(lateness_s)
    evidence = (
        f"{source or 'clock'}, resolution {resolution_s * 1e9:g} ns, 1 ms timers late by"
        f" {middle * 1e6:.0f} us (median), {worst * 1e6:.0f} us (worst of {len(lateness_s)})"
    )
    if resolution_s > MAX_CLOCK_RESOLUTION_S:
        return Capability(
            "clock", False, evidence, "the kernel lacks high-resolution timers: delays will be coarse"
        )
    if middle > MAX_TIMER_LATENESS_S:
        return Capability(
            "clock", False, evidence, "the machine is busy or its timers coarse: try again when idle"
        )
    return Capability("clock", True, evidence)


def rdma(image: KernelImage | None, programs: Mapping[str, bool], library: str | None) -> Capability:
    """`image` is the virtual clock's kernel; `programs`: which there are; `library`: why there is no pyverbs."""
    name, kernel = "RDMA", "soft-RoCE" in image.checked if image else False
    there = [program for program, found in programs.items() if found]
    seen = f"programs: {' '.join(there) or 'none'}; pyverbs: {'there' if library is None else 'lacking'}"
    if image is None:
        return Capability(
            name, False, f"no kernel of the virtual clock yet; {seen}", "make virtual builds it"
        )
    if not kernel:
        words = f"the virtual clock's kernel, Linux {image.version}, has no soft-RoCE; {seen}"
        return Capability(name, False, words, "testbed virtual build --source takes another")
    cards = " and ".join(kind for kind in ("soft-RoCE", "soft-iWARP") if kind in image.checked)
    if library is not None:
        return Capability(name, False, f"{cards} under the virtual clock; {seen}: {library}", RDMA_HINT)
    return Capability(name, True, f"{cards} under the virtual clock; {seen}")


def virtual_clock(
    machine: str, image: KernelImage | None, why_none: str, missing: Sequence[str]
) -> Capability:
    """`image` is the kernel built for it, if any; `missing` are programs of this host that its guests run."""
    name = "virtual clock"
    if machine != "x86_64":
        return Capability(name, False, f"its kernel runs on x86-64 only, this is {machine}")
    if image is None:
        return Capability(name, False, why_none, "make virtual builds it, once, in about five minutes")
    if missing:
        return Capability(name, False, f"its guests need {', '.join(missing)}", "make setup installs them")
    return Capability(
        name, True, f"Linux {image.version}, {len(image.checked)} features tried; needs no root"
    )
