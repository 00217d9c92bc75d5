"""Creation, configuration and read-back of a fabric's namespaces on this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from testbed.net.errors import FabricError
from testbed.net.fabric.fingerprint import Fingerprint
from testbed.net.fabric.namespace_setup import NamespaceSettings
from testbed.net.links import SettingMismatch
from testbed.net.links.ingress import CUT_THROUGH_DEVICE, ingress_device, verify_ingress_delays
from testbed.net.links.interfaces import (
    NodeCounts,
    Qdisc,
    read_interfaces,
    read_node_counts,
    read_qdiscs,
    read_route_rto_min_ms,
)
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import empty_network_namespace, network_namespace
from testbed.net.links.setup import (
    MAX_GSO_SEGMENTS,
    Setup,
    enabled_offloads,
    read_sysctl,
    supported_sysctls,
)
from testbed.net.links.shaping import qdisc_kinds
from testbed.net.links.shaping_readback import verify_shapes
from testbed.processes import close_pipes, wait_or_kill

VXLAN_PORT = 4789
STOP_TIMEOUT_S = 5.0
# The qdiscs that the kernel gives an interface by default.
_DEFAULT_KINDS = {"noqueue", "noop"}
_MUST_BE_OFF = {"IFLA_BRPORT_LEARNING": 8, "IFLA_BRPORT_UNICAST_FLOOD": 9, "IFLA_BRPORT_MCAST_FLOOD": 27}


class MachineOperations:
    """The operations of a machine for a fabric: create namespaces and interfaces, configure them, read them back.

    Process ids are this machine's. Everything is removed by `stop`, or when this process ends. Methods raise LinkError
    or FabricError.
    """

    def __init__(self) -> None:
        self._holder: subprocess.Popen[str] | None = None
        self._fingerprint: Fingerprint | None = None

    def make_namespaces(self, files: Mapping[str, Path | str | None]) -> dict[str, int]:
        """Create a network and a mount namespace for each node; return a process id in each.

        Args:
            files: The /etc/hosts file of each node, by name; None for the machine's own.
        """
        self._holder = subprocess.Popen(
            [sys.executable, "-m", "testbed.net.fabric.namespace_holder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(json.dumps([file and str(file) for file in files.values()]) + "\n")
        self._holder.stdin.flush()
        answer = json.loads(self._holder.stdout.readline() or '{"error": "the holder process ended"}')
        if "error" in answer:
            raise FabricError(f"cannot create the nodes' namespaces: {answer['error']}")
        return dict(zip(files, answer["pids"], strict=True))

    def veth(self, ends: list[dict[str, Any]]) -> None:
        """Create a veth pair; each end has `ifname`, `net_ns_pid` and optionally `address`."""
        _shared_netlink().link("add", kind="veth", **ends[0], peer=ends[1])

    def tunnel(self, interface: str, pid: int, number: int, near: str, far: str) -> None:
        """Create one end of a VXLAN tunnel; frames larger than the underlay's MTU are fragmented.

        Args:
            interface: The interface's name.
            pid: A process in the interface's network namespace.
            number: The VXLAN id.
            near: This end's address.
            far: The other end's address.
        """
        with IPRoute() as here:  # tunnel packets are sent in this namespace
            here.link(
                "add",
                kind="vxlan",
                ifname=interface,
                net_ns_pid=pid,
                vxlan_id=number,
                vxlan_local=near,
                vxlan_group=far,
                vxlan_port=VXLAN_PORT,
                vxlan_learning=0,
            )

    def apply(self, setup: Setup, pid: int | None) -> None:
        """Apply a setup in the namespaces of process `pid`."""
        setup.apply(pid)

    def verify(self, settings: NamespaceSettings) -> None:
        """Read a namespace's settings back: rates and queues of NICs, MTUs, kernel parameters and bridge ports.

        The link engine reads back the settings of WAN links itself.

        Raises:
            SettingMismatch: A setting is not as expected.
            LinkError: The settings cannot be read.
        """
        with network_namespace(settings.pid), Netlink() as netlink:
            links = {link.name: link for link in read_interfaces(netlink)}
            names = {link.index: name for name, link in links.items()}
            present = read_qdiscs(netlink)
            by_index: dict[int, list[Qdisc]] = defaultdict(list)
            for discipline in present:
                by_index[discipline.index].append(discipline)
            on = {name: (link.index, by_index[link.index]) for name, link in links.items()}
            verify_shapes(netlink, settings.shapes, settings.mtu, on)
            verify_ingress_delays(netlink, settings.ingress_delays, names, present)
            _verify_disciplines(settings, names, present)
            if settings.rto_min_ms is not None and settings.rto_min_ms not in read_route_rto_min_ms(netlink):
                raise SettingMismatch(settings.name, "rto_min in ms", settings.rto_min_ms, "no such route")
            for key, value in supported_sysctls(settings.sysctls).items():
                if (found := read_sysctl(key)) != value:
                    raise SettingMismatch(settings.name, key, value, found)
        for interface in settings.interfaces:
            link = links.get(interface)
            where = f"{settings.name}: {interface}"
            if link is None or link.mtu != settings.mtu:
                raise SettingMismatch(where, "mtu", settings.mtu, link and link.mtu)
            if link.gso_max_segs != MAX_GSO_SEGMENTS:
                raise SettingMismatch(where, "gso_max_segs", MAX_GSO_SEGMENTS, link.gso_max_segs)
            for flag, number in _MUST_BE_OFF.items() if settings.bridge else ():
                state = link.bridge_port.get(number)
                if state != b"\0":
                    raise SettingMismatch(where, flag, 0, state and state[0])

    def verify_offloads(self, settings: NamespaceSettings) -> None:
        """Raise SettingMismatch if an interface passes on packets larger than those on the wire."""
        with network_namespace(settings.pid):
            for interface in settings.interfaces:
                if on := enabled_offloads(interface):
                    raise SettingMismatch(f"{settings.name}: {interface}", on[0], "off", "on")

    def frames(self, interface: str, pid: int | None) -> tuple[int, int]:
        """Return (frames received, frames sent) by an interface in the namespaces of process `pid`."""
        with network_namespace(pid), Netlink() as netlink:
            (link,) = (
                found for found in read_interfaces(netlink, statistics=True) if found.name == interface
            )
        return link.rx_packets, link.tx_packets

    def counts(self, pid: int | None, protocols: bool = False) -> NodeCounts:
        """Read the counters of all interfaces in the namespace of process `pid`, and optionally of its protocols."""
        return read_node_counts(pid, protocols)

    def watch(self, watched: Sequence[NamespaceSettings], excluded: Sequence[tuple[str, str]]) -> None:
        """Start watching these namespaces, in place of any earlier ones; see `Fingerprint`."""
        if self._fingerprint is not None:
            self._fingerprint.close()
        self._fingerprint = Fingerprint(watched, excluded)
        self._fingerprint.take()

    def look(self, thorough: bool) -> list[str]:
        """Return descriptions of the changes since the last look."""
        assert self._fingerprint is not None
        return self._fingerprint.look(thorough)

    def take(self) -> None:
        """Take the current state as the reference."""
        assert self._fingerprint is not None
        self._fingerprint.take()

    def stop(self) -> None:
        """Remove the namespaces and everything in them; idempotent."""
        if self._fingerprint is not None:
            self._fingerprint.close()
            self._fingerprint = None
        if self._holder is not None:
            close_pipes(self._holder)
            wait_or_kill(self._holder, STOP_TIMEOUT_S)
            self._holder = None


def _verify_disciplines(
    settings: NamespaceSettings, names: Mapping[int, str], present: Iterable[Qdisc]
) -> None:
    """Check that interfaces have exactly the expected qdiscs."""
    asked: dict[str, set[str]] = defaultdict(set)
    for interface, own in settings.engine_disciplines.items():
        asked[interface].update(own)
    for interface, shape in settings.shapes.items():
        asked[interface].update(qdisc_kinds(shape))
    for interface in settings.ingress_delays:
        asked[interface].add("ingress")
        asked |= {ingress_device(interface): {"netem"}, CUT_THROUGH_DEVICE: {"netem"}}
    found: dict[str, set[str]] = defaultdict(set)
    for discipline in present:
        found[names.get(discipline.index, "")].add(discipline.kind)
    for name in names.values():
        if settings.pid is None and name not in settings.interfaces:
            continue  # an interface of the machine
        kinds = found[name] - _DEFAULT_KINDS
        if kinds != asked[name]:
            shown = [", ".join(sorted(own)) or "none" for own in (asked[name], kinds)]
            raise SettingMismatch(f"{settings.name}: {name}", "queueing disciplines", *shown)


@functools.cache
def _shared_netlink() -> IPRoute:
    """Return a netlink socket that all links share, since opening one takes longer than using it.

    It is in an empty namespace: kernels before 6.15 refuse a link name that exists in the requesting namespace, even if
    the link belongs elsewhere, and machines have an eth0 just like hosts.
    """
    with empty_network_namespace():
        return IPRoute()
