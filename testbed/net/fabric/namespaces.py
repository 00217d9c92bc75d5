"""Create, set up and read back a fabric's namespaces on the machine where they are."""

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
from testbed.net.fabric.fingerprint import Fingerprint, WatchedNamespace
from testbed.net.fabric.verify import NamespaceSettings, verify, verify_offloads
from testbed.net.links.interfaces import NodeCounts, read_interfaces, read_node_counts
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import empty_network_namespace, network_namespace
from testbed.net.links.setup import Setup
from testbed.processes import close_pipes, wait_or_kill

VXLAN_PORT = 4789


class MachineOperations:
    """A machine's part in a fabric: makes namespaces and what is in them, sets it up, reads it back.

    Process ids are this machine's. All of it ends with `stop`, or with this process. LinkError, FabricError.
    """

    def __init__(self) -> None:
        self._namespaces: Namespaces | None = None
        self._fingerprint: Fingerprint | None = None

    def make_namespaces(self, files: Mapping[str, Path | str | None]) -> dict[str, int]:
        """Namespaces for nodes, each with its /etc/hosts if it is to have one; a process in each."""
        self._namespaces = Namespaces(files)
        return self._namespaces.pids

    def veth(self, ends: list[dict[str, Any]]) -> None:
        """A pair of interfaces, each end (`ifname`, `net_ns_pid`, perhaps `address`) where it belongs."""
        _netlink().link("add", kind="veth", **ends[0], peer=ends[1])

    def tunnel(self, interface: str, pid: int, number: int, near: str, far: str) -> None:
        """One end of a VXLAN tunnel between two machines' addresses, in the network namespace of process `pid`.

        Frames that are longer than the network between the machines takes go in fragments.
        """
        with IPRoute() as here:  # the namespace where its packets travel
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
        """Set it all, in the namespaces of process `pid`."""
        setup.apply(pid)

    def verify(self, settings: NamespaceSettings) -> None:
        """Read a namespace's settings back and compare. FabricError, LinkError."""
        verify(settings)

    def verify_offloads(self, settings: NamespaceSettings) -> None:
        """Read the offloads back."""
        verify_offloads(settings)

    def frames(self, interface: str, pid: int | None) -> tuple[int, int]:
        """(came in, went out) so far, of an interface in the namespaces of process `pid`."""
        with network_namespace(pid), Netlink() as netlink:
            (link,) = (
                found for found in read_interfaces(netlink, statistics=True) if found.name == interface
            )
        return link.rx_packets, link.tx_packets

    def counts(self, pid: int | None, protocols: bool = False) -> NodeCounts:
        """Of all interfaces in the namespace of process `pid`, and of its protocols."""
        return read_node_counts(pid, protocols)

    def watch(self, watched: Sequence[WatchedNamespace], left_out: Sequence[tuple[str, str]]) -> None:
        """Take the fingerprint of these namespaces, and listen from now on; to these only."""
        if self._fingerprint is not None:
            self._fingerprint.close()
        self._fingerprint = Fingerprint(watched, left_out)
        self._fingerprint.take()

    def look(self, thorough: bool) -> list[str]:
        """What of them was changed since, or since the last look."""
        assert self._fingerprint is not None
        return self._fingerprint.look(thorough)

    def take(self) -> None:
        """What was changed until now is as it should be."""
        assert self._fingerprint is not None
        self._fingerprint.take()

    def stop(self) -> None:
        """End the namespaces, and with them all that is in them. Harmless when repeated."""
        if self._fingerprint is not None:
            self._fingerprint.close()
            self._fingerprint = None
        if self._namespaces is not None:
            self._namespaces.stop()
            self._namespaces = None


@functools.cache
def _netlink() -> IPRoute:
    """One for all links: to open it takes longer than to use it.

    It lives in a namespace of its own, with no other interface: kernels before 6.15 refuse a link whose name the asking
    namespace has already, wherever the link is to be, and machines have an eth0 as hosts do.
    """
    with empty_network_namespace():
        return IPRoute()


STOP_TIMEOUT_S = 5.0


class Namespaces:
    """Network and mount namespaces, one pair for each node, made when this is. FabricError when they cannot be.

    `files` has the nodes' names, and for each what to put in place of its /etc/hosts, None to leave it. `pids` has a
    process in each.
    """

    def __init__(self, files: Mapping[str, Path | str | None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.net.fabric.namespace_holder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([file and str(file) for file in files.values()]) + "\n")
            self._process.stdin.flush()
            said = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        except BaseException:
            self.stop()
            raise
        if "error" in said:
            self.stop()
            raise FabricError(f"no namespaces for the network's nodes: {said['error']}")
        self.pids: dict[str, int] = dict(zip(files, said["pids"], strict=True))

    def stop(self) -> None:
        """End them all; their interfaces go with them. Harmless when repeated."""
        close_pipes(self._process)
        wait_or_kill(self._process, STOP_TIMEOUT_S)
