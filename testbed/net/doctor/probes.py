"""Probes of this host: each runs one check and passes the result to `capabilities`.

Checks of the kernel run in a throw-away network namespace, those of Open vSwitch on throw-away bridges. Only kernel
modules that a check has loaded may remain.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from testbed.clock import clock_here
from testbed.comm.transport.rdma.devices import import_pyverbs
from testbed.net.doctor import capabilities
from testbed.net.doctor.capabilities import Capability
from testbed.net.doctor.host_resources import host_facts
from testbed.net.doctor.sandbox import (
    Outcome,
    locate,
    remove_abandoned_bridges,
    run,
    throwaway_bridges,
)
from testbed.net.errors import NoKernelError
from testbed.net.links.netns import empty_network_namespace
from testbed.net.virtual.guest import GUEST_PROGRAMS
from testbed.net.virtual.kernel_image import KernelImage, find_image

PROGRAMS = ("ip", "tc", "bridge", "ethtool", "sysctl", "nsenter", "unshare")
RDMA_PROGRAMS = ("ibv_devices", "ibv_rc_pingpong", "rping", "rdma")
KERNEL_PARTS = ("network namespaces", "veth", "kernel bridge", "HTB", "netem")
TOOLS = ("ping", "iperf3", "tcpdump")
IMPORT_OS_KEN = (
    "import os_ken.base.app_manager, os_ken.ofproto.ofproto_v1_3_parser;"
    "from importlib.metadata import version; print(version('os-ken'))"
)
IMPORT_TIMEOUT_S = 10.0
SLEEPS = 40
SLEEP_S = 0.001
MODULE_HINT = "modprobe {} if the kernel has it"

Probe = Callable[[], Sequence[Capability]]


def probe_all() -> list[Capability]:
    """Probe all capabilities, in the order in which they are shown. Takes about half a second."""
    importing = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", IMPORT_OS_KEN],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        probes: list[tuple[Probe, Sequence[str]]] = [
            (_root, ["root"]),
            (_programs, ["programs", "measuring tools"]),
            (_mnexec, ["mnexec"]),
            (_kernel, KERNEL_PARTS),
            (_packet_sockets, ["packet sockets"]),
            (_open_vswitch, ["Open vSwitch", "system datapath", "netdev datapath"]),
            (lambda: [_os_ken(importing)], ["os-ken"]),
            (_ryu, ["Ryu"]),
            (_congestion_controls, ["congestion controls"]),
            (_mptcp, ["MPTCP"]),
            (lambda: [capabilities.cgroups(Path("/proc/self/mounts").read_text())], ["cgroups"]),
            (_size, ["cores", "free memory"]),
            (_clock, ["clock"]),
            (_virtual_clock, ["virtual clock"]),
            (_rdma, ["RDMA"]),
        ]
        return [found for probe, names in probes for found in _probe_safely(names, probe)]
    finally:
        importing.kill()
        importing.communicate()


def _probe_safely(names: Sequence[str], probe: Probe) -> Sequence[Capability]:
    """Run a probe; if it raises, its capabilities are unknown."""
    try:
        return probe()
    except Exception as error:
        evidence = f"the probe failed: {type(error).__name__}: {error}"
        return [Capability(name, None, evidence) for name in names]


def _is_root() -> bool:
    return os.geteuid() == 0


def _root() -> list[Capability]:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return [capabilities.root(os.geteuid(), effective)]


def _programs() -> list[Capability]:
    hint = "make setup installs them"
    needed, useful = ({name: locate(name) for name in names} for names in (PROGRAMS, TOOLS))
    return [
        capabilities.programs("programs", needed, hint),
        capabilities.programs("measuring tools", useful, f"optional: {hint}"),
    ]


def _mnexec() -> list[Capability]:
    path = locate("mnexec")
    return [capabilities.mnexec(path, run([path, "-n", "true"]) if path and _is_root() else None)]


def _kernel() -> list[Capability]:
    if not _is_root():
        return [capabilities.untried_without_root(name) for name in KERNEL_PARTS]
    namespaces, *others = KERNEL_PARTS
    try:
        with empty_network_namespace():
            return [Capability(namespaces, True, "created and removed"), *_in_namespace()]
    except OSError as error:
        refused = capabilities.attempt(namespaces, Outcome(1, message=str(error.strerror)))
        return [refused, *(Capability(name, None, "no namespace to try it in") for name in others)]


def _in_namespace() -> list[Capability]:
    veth = run(["ip", "link", "add", "tbdoc0", "type", "veth", "peer", "name", "tbdoc1"])
    bridge = run(["ip", "link", "add", "tbdoc2", "type", "bridge"])
    # Without a veth pair the qdiscs are tried on the loopback.
    interfaces = ("tbdoc0", "tbdoc1") if veth.ok else ("lo", "lo")
    htb = run(f"tc qdisc replace dev {interfaces[0]} root handle 1: htb default 1".split())
    htb_seen = run(f"tc qdisc show dev {interfaces[0]}".split()).output
    netem, netem_seen = _netem(interfaces[1])
    return [
        capabilities.attempt("veth", veth, hint=MODULE_HINT.format("veth")),
        capabilities.attempt("kernel bridge", bridge, hint=MODULE_HINT.format("bridge")),
        capabilities.attempt("HTB", htb, f"reads back: {htb_seen}", MODULE_HINT.format("sch_htb")),
        capabilities.attempt(
            "netem",
            netem,
            f"reads back: {netem_seen}",
            f"{MODULE_HINT.format('sch_netem')}; the userspace link engine works without it",
        ),
    ]


def _netem(interface: str) -> tuple[Outcome, str]:
    """Try all that the netem link engine needs up to the first failure; return its outcome and the qdisc read back."""
    commands = (
        f"tc qdisc replace dev {interface} root netem delay 5ms",
        "ip link add tbdoc3 type ifb",
        "tc qdisc add dev tbdoc3 root netem rate 1mbit",
        f"tc qdisc add dev {interface} handle ffff: ingress",
        f"tc filter add dev {interface} parent ffff: protocol all matchall"
        " action mirred egress redirect dev tbdoc3",
    )
    for command in commands:
        done = run(command.split())
        if not done.ok:
            break
    return done, run(f"tc qdisc show dev {interface} root".split()).output


def _packet_sockets() -> list[Capability]:
    name = "packet sockets"
    if not _is_root():
        return [capabilities.untried_without_root(name)]
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()  # protocol 0 receives nothing
    except OSError as error:
        return [capabilities.attempt(name, Outcome(1, message=str(error.strerror)))]
    return [Capability(name, True, "a socket can be opened")]


def _open_vswitch() -> list[Capability]:
    database = run(["ovs-vsctl", "--timeout=5", "get", "Open_vSwitch", ".", "ovs_version"])
    server = run(["ovs-appctl", "--timeout=5", "-t", "ovsdb-server", "version"])
    switch = run(["ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", "version"])
    processes = [item.info["name"] for item in psutil.process_iter(["name"])]
    running = [name for name in ("ovsdb-server", "ovs-vswitchd") if name in processes]
    daemon = capabilities.open_vswitch(_is_root(), database, server, switch, running)
    if not daemon.status:
        why = "Open vSwitch does not answer" if _is_root() else "only root can try"
        return [daemon, *(Capability(f"{kind} datapath", None, why) for kind in ("system", "netdev"))]
    return [daemon, *_datapaths()]


def _datapaths() -> list[Capability]:
    remove_abandoned_bridges()
    in_use = run(["ovs-appctl", "--timeout=5", "dpif/show"]).output
    seen = {kind: capabilities.datapath(kind, in_use, None, "") for kind in ("system", "netdev")}
    untried = [kind for kind, capability in seen.items() if capability.status is None]
    if untried:
        with throwaway_bridges(untried) as bridges:
            for kind, bridge in bridges.items():
                port = run(["ovs-vsctl", "--timeout=5", "get", "interface", bridge, "ofport"])
                reason = (
                    capabilities.first_log_text(run(["ovs-dpctl", "dump-dps"]).message)
                    if kind == "system"
                    else ""
                )
                seen[kind] = capabilities.datapath(kind, in_use, port.output if port.ok else "", reason)
    return list(seen.values())


def _os_ken(importing: subprocess.Popen[str]) -> Capability:
    hint = "make setup installs it into .venv"
    try:
        output, message = importing.communicate(timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        late = Outcome(None, message=f"still importing after {IMPORT_TIMEOUT_S:g} s")
        return capabilities.controller_library("os-ken", late, hint)
    return capabilities.controller_library(
        "os-ken", Outcome(importing.returncode, output.strip(), message.strip()), hint
    )


def _ryu() -> list[Capability]:
    try:
        return [Capability("Ryu", True, f"{version('ryu')}, in addition to os-ken")]
    except PackageNotFoundError:
        return [Capability("Ryu", False, "not in this environment", "optional: the extra `ryu`")]


def _congestion_controls() -> list[Capability]:
    folder = Path("/proc/sys/net/ipv4")
    available, default = (
        folder / f"tcp_{name}" for name in ("available_congestion_control", "congestion_control")
    )
    return [capabilities.congestion_controls(available.read_text(), default.read_text())]


def _mptcp() -> list[Capability]:
    switch = Path("/proc/sys/net/mptcp/enabled")
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError as error:
        return [capabilities.mptcp(error.strerror, "")]
    return [capabilities.mptcp(None, switch.read_text() if switch.exists() else "")]


def _virtual_clock() -> list[Capability]:
    if clock_here() is not None:
        return [Capability("virtual clock", True, "this is a guest under the virtual clock")]
    image, message = _find_kernel()
    missing = [name for name in GUEST_PROGRAMS if locate(name) is None]
    return [capabilities.virtual_clock(platform.machine(), image, message, missing)]


def _find_kernel() -> tuple[KernelImage | None, str]:
    """Return the virtual clock's kernel, or None and the reason."""
    try:
        return find_image(), ""
    except NoKernelError as error:
        return None, str(error).splitlines()[0]


def _rdma() -> list[Capability]:
    import_error = None
    try:
        import_pyverbs("device")
    except ImportError as error:
        import_error = str(error)
    if clock_here() is not None:
        exists = Path("/sys/module/rdma_rxe").exists()
        evidence = "soft-RoCE of this guest's kernel" if exists else "this guest's kernel has no soft-RoCE"
        return [Capability("RDMA", exists and import_error is None, import_error or evidence)]
    programs = {name: locate(name) is not None for name in RDMA_PROGRAMS}
    return [capabilities.rdma(_find_kernel()[0], programs, import_error)]


def _size() -> list[Capability]:
    facts = host_facts()
    return [capabilities.cores(facts), capabilities.memory(facts)]


def _clock() -> list[Capability]:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    lateness_s = []
    for _ in range(SLEEPS):
        began = time.monotonic()
        time.sleep(SLEEP_S)
        lateness_s.append(time.monotonic() - began - SLEEP_S)
    resolution_s = time.clock_getres(time.CLOCK_MONOTONIC)
    return [
        capabilities.clock(resolution_s, source.read_text().strip() if source.exists() else "", lateness_s)
    ]
