"""Capabilities of this host, derived from the results of probes, and the engine and datapath to use. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.net.doctor.host_resources import HostFacts
from testbed.net.doctor.sandbox import Outcome
from testbed.net.virtual.kernel_image import KernelImage

# Capabilities that every run needs, with any link engine and datapath.
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
# In order of preference: (name, the capability that it needs).
LINK_ENGINES = (("netem", "netem"), ("userspace", "packet sockets"))
DATAPATHS = (("system", "system datapath"), ("netdev", "netdev datapath"))


@dataclass(frozen=True)
class Capability:
    """One capability of this host.

    status: True if present, False if absent, None if unknown. evidence: the result of the probe. hint: what to do about
    an absent capability, or "".
    """

    name: str
    status: bool | None
    evidence: str
    hint: str = ""


@dataclass(frozen=True)
class Choice:
    """The link engine and datapath that a run would use; both None if no run is possible, for the given reasons."""

    link_engine: str | None
    datapath: str | None
    reasons: tuple[str, ...]

    @property
    def run_possible(self) -> bool:
        """Whether a network can be built here."""
        return self.link_engine is not None and self.datapath is not None


def choose(capabilities: Sequence[Capability]) -> Choice:
    """Choose the link engine ("netem" or "userspace") and datapath ("system" or "netdev"), preferring the kernel's."""
    has = {capability.name: capability for capability in capabilities}
    # Without root hardly anything can be probed: report only that reason.
    if "root" in has and has["root"].status is False:
        return Choice(None, None, (_describe_missing(has["root"]),))
    missing = [_describe_missing(_find(has, name)) for name in REQUIRED if not _find(has, name).status]
    engine, engine_reasons = _choose_first(has, LINK_ENGINES)
    # Without the daemon no datapath can be probed; the daemon's own line says so.
    datapath, datapath_reasons = (
        _choose_first(has, DATAPATHS) if _find(has, "Open vSwitch").status else (None, [])
    )
    if engine is None:
        missing += engine_reasons
    if datapath is None:
        missing += datapath_reasons
    if missing:
        return Choice(None, None, tuple(missing))
    return Choice(engine, datapath, (*engine_reasons, *datapath_reasons))


def _choose_first(
    has: dict[str, Capability], parts: Sequence[tuple[str, str]]
) -> tuple[str | None, list[str]]:
    rejected: list[str] = []
    for part, name in parts:
        capability = _find(has, name)
        if capability.status:
            return part, rejected
        rejected.append(_describe_missing(capability))
    return None, rejected


def _find(has: dict[str, Capability], name: str) -> Capability:
    return has.get(name, Capability(name, None, "was not probed"))


def _describe_missing(capability: Capability) -> str:
    word = "no" if capability.status is False else "unknown"
    return f"{capability.name}: {word} ({capability.evidence})"


ROOT_HINT = "run it as root, for example through sudo"
# Capabilities that building a network needs, and their bits (capabilities(7)).
CAPABILITY_BITS = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
# Phrases in messages of kernels and tools that mean "not supported", in contrast to "not allowed".
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
    """Evaluate the user id and the effective capability set of the process."""
    if user_id != 0:
        return Capability("root", False, f"user id {user_id}", ROOT_HINT)
    missing = [name for name, bit in CAPABILITY_BITS.items() if not effective >> bit & 1]
    if missing:
        return Capability(
            "root", False, f"root without {', '.join(missing)}", "a container needs to be privileged"
        )
    return Capability("root", True, f"root with {', '.join(CAPABILITY_BITS)}")


def untried_without_root(name: str) -> Capability:
    """Return the unknown capability of a probe that needs root."""
    return Capability(name, None, "only root can try")


def programs(name: str, found: Mapping[str, str | None], hint: str) -> Capability:
    """Evaluate which programs are installed; `found` maps each to its path."""
    missing = [program for program, path in found.items() if path is None]
    if missing:
        return Capability(name, False, f"not found: {', '.join(missing)}", hint)
    return Capability(name, True, ", ".join(found))


def attempt(name: str, tried: Outcome, confirmed: str = "", hint: str = "") -> Capability:
    """Evaluate the creation of an object in a throw-away namespace.

    Args:
        name: Name of the capability.
        tried: Outcome of the creation.
        confirmed: What was read back, if anything.
        hint: What to do if it failed.
    """
    if tried.ok:
        return Capability(name, True, confirmed or "created and removed")
    is_absent = tried.status is not None and any(
        phrase in tried.reason.lower() for phrase in UNSUPPORTED_PHRASES
    )
    return Capability(name, False if is_absent else None, tried.reason, hint)


def open_vswitch(
    is_root: bool, database: Outcome, server: Outcome, switch: Outcome, processes: Sequence[str]
) -> Capability:
    """Evaluate the answers of the database, its server and the switch daemon; `processes`: those that run."""
    name = "Open vSwitch"
    if database.status is None and "not found" in database.message:
        return Capability(name, False, database.message, "make setup installs it")
    if database.ok and server.ok and switch.ok:
        return Capability(name, True, f"{server.output}; {switch.output}".replace(" (Open vSwitch)", ""))
    if not is_root and processes:
        return Capability(name, None, f"running: {', '.join(processes)}; only root may query them", ROOT_HINT)
    failed = next(outcome for outcome in (database, server, switch) if not outcome.ok)
    return Capability(name, False, f"installed, does not answer: {failed.reason}", "make setup starts it")


def datapath(kind: str, in_use: str, port: str | None, reason: str) -> Capability:
    """Evaluate whether a datapath of Open vSwitch works.

    Its list of datapath types cannot be used, because it includes "system" even on kernels without it.

    Args:
        kind: "system" or "netdev".
        in_use: Output of `ovs-appctl dpif/show`.
        port: OpenFlow port number of the internal interface of a throw-away bridge; None if no bridge was created.
        reason: The system's message about a missing datapath.
    """
    name = f"{kind} datapath"
    for line in in_use.splitlines():
        if line.startswith(f"{kind}@"):
            return Capability(name, True, f"in use: {line.split(':')[0]}")
    if port is None:
        return Capability(name, None, "no bridge could be tried")
    if port.lstrip("-").isdigit() and int(port) > 0:
        return Capability(name, True, "a bridge on it got its port")
    hint = "" if kind == "netdev" else "modprobe openvswitch if the kernel has it; netdev works without it"
    return Capability(name, False, f"a bridge on it got no port{reason and ': ' + reason}", hint)


def first_log_text(message: str) -> str:
    """Return the text of the first of Open vSwitch's log lines (`time|number|module|level|text`)."""
    return message.splitlines()[0].rsplit("|", 1)[-1] if message else ""


def mnexec(path: str | None, tried: Outcome | None) -> Capability:
    """Evaluate a program run by mnexec in its own namespace; `tried` is None if not run, since that needs root."""
    if path is None:
        return Capability(
            "mnexec", False, "not found", "make setup installs it (from Debian's package mininet)"
        )
    if tried is None or tried.ok:
        return Capability("mnexec", True, f"{path}{'' if tried is None else ' runs'}")
    reason = tried.message or f"status {tried.status}"
    return Capability(
        "mnexec", False, f"{path} fails: {reason}", "a chroot or an unprivileged container forbids it"
    )


def controller_library(name: str, tried: Outcome, hint: str) -> Capability:
    """Evaluate the import of the controller library in a process that prints its version."""
    if tried.ok:
        return Capability(name, True, f"{tried.output}, imports")
    reason = tried.message.splitlines()[-1] if tried.message else f"status {tried.status}"
    return Capability(name, None if tried.status is None else False, reason, hint)


def congestion_controls(available: str, default: str) -> Capability:
    """Evaluate the lists in /proc/sys/net/ipv4, which omit modules that are not loaded yet."""
    names = available.split()
    evidence = f"{', '.join(names)} (default {default.strip()})"
    if not {"cubic", "reno"} & set(names):
        return Capability(
            "congestion controls", None, evidence or "none listed", "neither cubic nor reno is listed"
        )
    return Capability("congestion controls", True, evidence)


def mptcp(error: str | None, enabled: str) -> Capability:
    """Evaluate the error of opening a socket, and net.mptcp.enabled ("" if there is no such parameter)."""
    if error is not None:
        return Capability("MPTCP", False, error, "optional")
    if enabled.strip() == "0":
        return Capability("MPTCP", False, "switched off", "optional: sysctl -w net.mptcp.enabled=1")
    return Capability("MPTCP", True, "a socket can be opened")


def cgroups(mounts: str) -> Capability:
    """Evaluate /proc/self/mounts."""
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
    """Evaluate the cores: meaningful measurements need two, one for the network and one for the ranks."""
    usable = facts.cores if facts.cpu_quota is None else min(facts.cores, facts.cpu_quota)
    evidence = f"{facts.cores} usable" + ("" if facts.cpu_quota is None else f", time of {facts.cpu_quota:g}")
    hint = "" if usable >= 2 else "runs work, but few figures will be trusted; use at least two cores"
    return Capability("cores", usable >= 2, evidence, hint)


def memory(facts: HostFacts) -> Capability:
    """Evaluate the memory: small topologies need a gigabyte."""
    gib = 1 << 30
    evidence = f"{facts.memory_available_bytes / gib:.1f} GiB free of {facts.memory_total_bytes / gib:.1f}"
    enough = facts.memory_available_bytes >= MIN_FREE_MEMORY_BYTES
    return Capability(
        "free memory", enough, evidence, "" if enough else "only the smallest topologies will fit"
    )


def clock(resolution_s: float, source: str, lateness_s: Sequence[float]) -> Capability:
    """Evaluate the clock and its timers.

    Args:
        resolution_s: Resolution of CLOCK_MONOTONIC, a scheduler tick without high-resolution timers.
        source: The kernel's clock source, or "".
        lateness_s: Lateness of short sleeps.
    """
    median_s, worst_s = statistics.median(lateness_s), max(lateness_s)
    evidence = (
        f"{source or 'clock'}, resolution {resolution_s * 1e9:g} ns, 1 ms timers late by"
        f" {median_s * 1e6:.0f} us (median), {worst_s * 1e6:.0f} us (worst of {len(lateness_s)})"
    )
    if resolution_s > MAX_CLOCK_RESOLUTION_S:
        return Capability(
            "clock", False, evidence, "the kernel lacks high-resolution timers: delays will be coarse"
        )
    if median_s > MAX_TIMER_LATENESS_S:
        return Capability(
            "clock", False, evidence, "the machine is busy or its timers are coarse: try again when idle"
        )
    return Capability("clock", True, evidence)


def rdma(image: KernelImage | None, programs: Mapping[str, bool], library: str | None) -> Capability:
    """Evaluate RDMA under the virtual clock.

    Args:
        image: The virtual clock's kernel; None if it is not built.
        programs: Whether each RDMA program is installed.
        library: Why pyverbs cannot be imported; None if it can.
    """
    name = "RDMA"
    installed = [program for program, found in programs.items() if found]
    seen = (
        f"programs: {' '.join(installed) or 'none'}; pyverbs: {'installed' if library is None else 'missing'}"
    )
    if image is None:
        return Capability(
            name, False, f"the virtual clock's kernel is not built; {seen}", "make virtual builds it"
        )
    if "soft-RoCE" not in image.checked:
        evidence = f"the virtual clock's kernel, Linux {image.version}, has no soft-RoCE; {seen}"
        return Capability(name, False, evidence, "testbed virtual build --source builds another one")
    kinds = " and ".join(kind for kind in ("soft-RoCE", "soft-iWARP") if kind in image.checked)
    if library is not None:
        return Capability(name, False, f"{kinds} under the virtual clock; {seen}: {library}", RDMA_HINT)
    return Capability(name, True, f"{kinds} under the virtual clock; {seen}")


def virtual_clock(
    machine: str, image: KernelImage | None, why_none: str, missing: Sequence[str]
) -> Capability:
    """Evaluate the virtual clock.

    Args:
        machine: The host's architecture.
        image: The virtual clock's kernel; None if it is not built.
        why_none: The error message if there is no kernel.
        missing: Programs that guests need and this host does not have.
    """
    name = "virtual clock"
    if machine != "x86_64":
        return Capability(name, False, f"its kernel runs on x86-64 only, this is {machine}")
    if image is None:
        return Capability(name, False, why_none, "make virtual builds it once, in about five minutes")
    if missing:
        return Capability(name, False, f"its guests need {', '.join(missing)}", "make setup installs them")
    return Capability(
        name, True, f"Linux {image.version}, {len(image.checked)} features tested; needs no root"
    )
