"""Nodes on remote machines and tunnels to them, based on Mininet's cluster edition (mininet.examples.cluster)."""

from __future__ import annotations

import os
from typing import Any

from mininet.examples.cluster import RemoteLink, RemoteMixin
from mininet.node import Node

from testbed.net.fabric.machines import Machine
from testbed.net.fabric.mininet_nodes import EdgeSwitch, KernelBridge, NamespaceNode, PlannedHost, VethLink


class _Remote(RemoteMixin):  # type: ignore[misc]  # Mininet has no types
    """A node whose namespaces are on a remote machine; its shell, started on demand, runs through SSH."""

    def __init__(self, name: str, operations: Machine, **parameters: Any) -> None:
        user, _, server = operations.destination.rpartition("@")
        user = user or os.environ.get("SUDO_USER", "root")
        there = {"server": server, "serverIP": operations.address, "user": user}
        super().__init__(name, **there, operations=operations, **parameters)

    shell_options = "-c"  # stay in SSH's terminal, so that the shell's programs end with it
    startShell = NamespaceNode.startShell  # RemoteMixin's version starts the shell at once


class RemoteHost(_Remote, PlannedHost):
    """A host on a remote machine."""


class RemoteBridge(_Remote, KernelBridge):
    """A kernel bridge on a remote machine."""


class SpanningLink(RemoteLink):  # type: ignore[misc]
    """A veth pair on one machine, or a VXLAN tunnel between a local edge and a core on a remote machine.

    Mininet's own tunnels use SSH, which nests TCP in TCP, or GRE, which not every kernel supports.
    """

    def makeIntfPair(self, intfname1: str, intfname2: str, *addresses: Any, **options: Any) -> None:
        """Make a veth pair if both nodes are on the same machine, else a tunnel."""
        if self.node1.operations is self.node2.operations:
            mac1, mac2 = (*addresses, None, None)[:2]
            VethLink.makeIntfPair(intfname1, intfname2, mac1, mac2, self.node1, self.node2)
        else:
            self.makeTunnel(self.node1, self.node2, intfname1, intfname2)

    def makeTunnel(self, node1: Node, node2: Node, intfname1: str, intfname2: str, *addresses: Any) -> None:
        """Make the tunnel's interfaces at both ends."""
        core, edge = node1.operations, node2.operations
        assert isinstance(core, Machine)
        assert isinstance(node2, EdgeSwitch)
        core.tunnel(intfname1, node1.pid, node2.tunnel_number, near=core.address, far=core.near)
        edge.tunnel(intfname2, node2.pid, node2.tunnel_number, near=core.near, far=core.address)
