"""The assembly of a plan with Mininet: hosts, bridges, edges, probes and cables, each on its machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mininet.log import setLogLevel
from mininet.net import Mininet

from testbed.net.errors import FabricError
from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.bridges import NIC, UPLINK
from testbed.net.fabric.machines import Machine, is_local
from testbed.net.fabric.mininet_nodes import EdgeSwitch, KernelBridge, PlannedHost, PlannedInterface, VethLink
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.plan import Plan
from testbed.net.fabric.tunnel import TunnelMeasurement, TunnelSocket, measure_tunnel
from testbed.net.links.setup import Setup
from testbed.spec.buildings import Building
from testbed.spec.topology import Topology


def assemble(placement: MachinePlacement, datapath: str, controller: str, folder: Path) -> Any:
    """Create all nodes' namespaces and all interfaces, not yet configured.

    Args:
        placement: The fabric's plan, and the machine of each building.
        datapath: Open vSwitch's datapath.
        controller: The edges' controller, such as "tcp:127.0.0.1:40001".
        folder: The folder for the hosts' /etc/hosts.

    Returns:
        The Mininet object.

    Raises:
        FabricError: A node cannot be created.
    """
    plan, here = placement.plan, placement.here
    remote_host: type = PlannedHost
    remote_bridge: type = KernelBridge
    link: type = VethLink
    if placement.machines:  # Mininet's cluster edition is slow to import
        from testbed.net.fabric.mininet_cluster import RemoteBridge, RemoteHost, SpanningLink  # noqa: PLC0415

        remote_host, remote_bridge, link = RemoteHost, RemoteBridge, SpanningLink
    setLogLevel("error")
    Mininet.inited = True  # otherwise Mininet's first use changes limits of the whole machine
    net = Mininet(
        topo=None,
        host=PlannedHost,
        link=link,
        intf=PlannedInterface,
        controller=None,
        build=False,
        autoSetMacs=False,
    )
    pids = placement.make_namespaces(_hosts_files(plan, folder))

    def where(node: str) -> dict[str, Any]:
        return {"namespace_pid": pids[node], "operations": placement.operations(node)}

    net.addHost(planning.WAN_NODE, ip=None, mac=None, **where(planning.WAN_NODE))
    for bridge in plan.bridges:
        kind = remote_bridge if placement.machine_of(bridge.name) else KernelBridge
        settings = namespace_setup.bridge_setup(plan, bridge)
        net.addSwitch(bridge.name, cls=kind, settings=settings, **where(bridge.name))
    for host in plan.topology.hosts:
        kind = remote_host if placement.machine_of(host.name) else PlannedHost
        net.addHost(host.name, cls=kind, ip=f"{host.ip}/8", mac=host.mac, **where(host.name))
    for edge in plan.edges:
        switch = net.addSwitch(
            edge.name,
            cls=EdgeSwitch,
            bridge=edge.bridge,
            datapath=datapath,
            ports=edge.ports,
            controller=controller,
            dpid=f"{edge.dpid:016x}",
            operations=here,
        )
        if edge.local_interface is not None:
            net.addLink(net[edge.building.core], switch, intfName1=UPLINK, intfName2=edge.local_interface)
        probe = net.addHost(edge.probe, ip=None, mac=None, **where(edge.probe))
        mac = plan.probe_mac(edge.building.name)
        net.addLink(probe, switch, intfName1=NIC, intfName2=edge.probe_interface, addr1=mac)
        for port in edge.wan:
            ends = {"intfName1": port.wan_interface, "intfName2": port.edge_interface}
            net.addLink(net[planning.WAN_NODE], switch, **ends)
    _add_cables(plan, net)
    net.build()
    return net


def _add_cables(plan: Plan, net: Any) -> None:
    """Add the cables within buildings; those that need the link engine pass through the WAN namespace."""
    wires = {wire.name: wire for wire in plan.wires()}
    for cable in plan.cables:
        (node_a, interface_a), (node_b, interface_b) = cable.a, cable.b
        if not cable.needs_engine:
            ends = {"intfName1": interface_a, "intfName2": interface_b, "addr1": cable.mac_a}
            net.addLink(net[node_a], net[node_b], **ends)
            continue
        wire, wan = wires[cable.name], net[planning.WAN_NODE]
        net.addLink(net[node_a], wan, intfName1=interface_a, intfName2=wire.inner_a, addr1=cable.mac_a)
        net.addLink(net[node_b], wan, intfName1=interface_b, intfName2=wire.inner_b)


def _hosts_files(plan: Plan, folder: Path) -> dict[str, Path | None]:
    """Return the nodes with their own namespaces, and a /etc/hosts for each host so that `ping east2` works."""
    hosts = plan.topology.hosts
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.ip} {host.name}\n" for host in hosts))
    others = [
        planning.WAN_NODE,
        *(bridge.name for bridge in plan.bridges),
        *(edge.probe for edge in plan.edges),
    ]
    return {**dict.fromkeys(others), **dict.fromkeys((host.name for host in hosts), names)}


class MachinePlacement:
    """The assignment of a fabric's buildings to machines.

    All edges, and so transit sites, are on this machine.

    Args:
        plan: The fabric's plan.
        machines: One machine per building with hosts, in order; empty if all are on this machine.

    Raises:
        FabricError: The number of machines is wrong, one cannot be reached, or a building on another machine needs the
            link engine.
    """

    def __init__(self, plan: Plan, machines: Sequence[str] = ()) -> None:
        self.plan = plan
        self.here = MachineOperations()
        self.machines: list[Machine] = []
        self._by_node: dict[str, MachineOperations] = {}
        populated = plan.topology.populated
        if machines and len(machines) != len(populated):
            which = "building" if len(populated) == len(plan.topology.buildings) else "building with hosts"
            names = ", ".join(building.name for building in populated)
            raise FabricError(
                f"--machines: got {len(machines)}, expected one for each {which}, in this order: {names}"
            )
        try:
            self._connect({building.name: name for building, name in zip(populated, machines, strict=False)})
        except BaseException:
            self.stop()
            raise

    def _connect(self, destinations: Mapping[str, str]) -> None:
        known: dict[str, MachineOperations] = {}
        for destination in dict.fromkeys(destinations.values()):
            known[destination] = self.here
            if not is_local(destination.rpartition("@")[2]):
                known[destination] = machine = Machine(destination)
                self.machines.append(machine)
        nodes = [(host.name, host.building) for host in self.plan.topology.hosts]
        nodes += [(bridge.name, bridge.building) for bridge in self.plan.bridges]
        self._by_node = {
            node: known[destinations[building]] for node, building in nodes if building in destinations
        }
        for cable in self.plan.cables:
            if cable.needs_engine and self.machine_of(cable.a[0]):
                raise FabricError(
                    f"cable {cable.name} needs the link engine: its building must be on this machine"
                )

    def operations(self, node: str) -> MachineOperations:
        """Return the operations of a node's machine; hosts and building switches may be on another machine."""
        return self._by_node.get(node, self.here)

    def machine_of(self, node: str) -> Machine | None:
        """Return the remote machine of a node; None if it is on this machine."""
        operations = self.operations(node)
        return operations if isinstance(operations, Machine) else None

    def make_namespaces(self, files: Mapping[str, Path | None]) -> dict[str, int]:
        """Create namespaces for all nodes; return a process id in each, valid on the node's machine."""
        pids: dict[str, int] = {}
        for operations in (self.here, *self.machines):
            own = {name: file for name, file in files.items() if self.operations(name) is operations}
            pids |= operations.make_namespaces(own)
        return pids

    def measure_tunnels(self, pids: Mapping[str, int]) -> list[TunnelMeasurement]:
        """Measure delay and rate of every tunnel, before anything else uses it.

        Raises:
            FabricError: Frames do not pass through a tunnel.
        """
        mtu = self.plan.topology.mtu
        found = []
        for building, local, machine in self._remote_buildings():
            setup = Setup()
            setup.add_interface(UPLINK, mtu)
            machine.apply(setup, pids[building.core])
            setup = Setup()
            setup.add_interface(local, mtu)
            self.here.apply(setup, None)
            machine.call("answer_tunnel", interface=UPLINK, pid=pids[building.core], mtu=mtu)
            needed_bps = _peak_rate_bps(self.plan.topology, building.name)
            try:
                with contextlib.closing(TunnelSocket(local, mtu)) as near:
                    found.append(measure_tunnel(near, machine.name, building.name, needed_bps))
            finally:
                machine.call("close_tunnels")
            if not found[-1].back_bps:
                raise FabricError(
                    f"{found[-1].missing} through the tunnel to machine {machine.name}: UDP port 4789 "
                    f"between {machine.near} and {machine.address} must be open, for fragments too"
                )
        return found

    def tunnel_frames(self, pids: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return (frames sent, frames received) so far, summed over both ends of each tunnel, by building."""
        found = {}
        for building, local, machine in self._remote_buildings():
            far = machine.frames(UPLINK, pids[building.core])
            near = self.here.frames(local, None)
            found[building.name] = far[1] + near[1], far[0] + near[0]
        return found

    def _remote_buildings(self) -> Iterator[tuple[Building, str, Machine]]:
        """Yield each building on another machine, with its edge's local interface to the building's core."""
        for edge in self.plan.edges:
            if edge.local_interface and (machine := self.machine_of(edge.building.core)):
                yield edge.building, edge.local_interface, machine

    def failure(self) -> str | None:
        """Return a message if a machine is gone; None otherwise."""
        return next((words for machine in self.machines if (words := machine.failure())), None)

    def stop(self) -> None:
        """Remove all namespaces on all machines; idempotent."""
        for operations in (*self.machines, self.here):
            operations.stop()


def _peak_rate_bps(topology: Topology, building: str) -> float:
    """Return the maximum rate into or out of a building: that of its NICs or of its WAN links."""
    nics = sum(host.nic.rate_bps for host in topology.hosts if host.building == building)
    directions = [direction for link in topology.wan for direction in link.directions]
    ends = [direction.rate_bps for here, _, direction in directions if here == building]
    return min(nics, sum(ends)) if ends else nics
