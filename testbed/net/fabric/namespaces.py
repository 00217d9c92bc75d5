"""Creation, configuration and read-back of a fabric's namespaces on this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from testbed.net.errors import FabricError
from testbed.net.fabric.fingerprint import Fingerprint
from testbed.net.fabric.verify import NamespaceSettings, verify, verify_offloads
from testbed.net.links.interfaces import NodeCounts, read_interfaces, read_node_counts
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import empty_network_namespace, network_namespace
from testbed.net.links.setup import Setup
from testbed.processes import close_pipes, wait_or_kill

VXLAN_PORT = 4789
STOP_TIMEOUT_S = 5.0


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
        """Read a namespace's settings back and compare them."""
        verify(settings)

    def verify_offloads(self, settings: NamespaceSettings) -> None:
        """Read the interfaces' offloads back and check that they are off."""
        verify_offloads(settings)

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


@functools.cache
def _shared_netlink() -> IPRoute:
    """Return a netlink socket that all links share, since opening one takes longer than using it.

    It is in an empty namespace: kernels before 6.15 refuse a link name that exists in the requesting namespace, even if
    the link is to be elsewhere, and machines have an eth0 just as hosts do.
    """
    with empty_network_namespace():
        return IPRoute()
