"""The assembly of a plan with Mininet: hosts, bridges, edges, probes and cables, each on its machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class EdgeOptions:
    """Options of the edge switches: Open vSwitch's datapath, and a controller such as "tcp:127.0.0.1:40001"."""

    datapath: str
    controller: str


@dataclass(frozen=True)
class NodeKinds:
    """The Mininet classes of hosts and bridges on other machines, and of all links."""

    host: type
    bridge: type
    link: type


def node_kinds(spanning: bool) -> NodeKinds:
    """Return the node classes; Mininet's cluster edition is imported only if a fabric spans machines."""
    if not spanning:
        return NodeKinds(PlannedHost, KernelBridge, VethLink)
    from testbed.net.fabric.mininet_cluster import RemoteBridge, RemoteHost, SpanningLink  # noqa: PLC0415

    return NodeKinds(RemoteHost, RemoteBridge, SpanningLink)


def assemble(plan: Plan, placement: MachinePlacement, edge_options: EdgeOptions, folder: Path) -> Any:
    """Create all nodes' namespaces and all interfaces, not yet configured.

    Args:
        plan: The fabric's plan.
        placement: The machine of each building.
        edge_options: Datapath and controller of the edge switches.
        folder: The folder for the hosts' /etc/hosts.

    Returns:
        The Mininet object.

    Raises:
        FabricError: A node cannot be created.
    """
    kinds = node_kinds(spanning=bool(placement.machines))
    setLogLevel("error")
    Mininet.inited = True  # otherwise Mininet's first use changes limits of the whole machine
    net = Mininet(
        topo=None,
        host=PlannedHost,
        link=kinds.link,
        intf=PlannedInterface,
        controller=None,
        build=False,
        autoSetMacs=False,
    )
    here, operations = placement.here, placement.by_node(plan)
    pids = placement.make_namespaces(plan, _hosts_files(plan, folder))
    net.addHost(planning.WAN_NODE, ip=None, mac=None, namespace_pid=pids[planning.WAN_NODE], operations=here)
    for bridge in plan.bridges:
        where = {"namespace_pid": pids[bridge.name], "operations": operations[bridge.name]}
        kind = kinds.bridge if operations[bridge.name] is not here else KernelBridge
        net.addSwitch(bridge.name, cls=kind, settings=namespace_setup.bridge_setup(plan, bridge), **where)
    for host in plan.topology.hosts:
        where = {"namespace_pid": pids[host.name], "operations": operations[host.name]}
        kind = kinds.host if operations[host.name] is not here else PlannedHost
        net.addHost(host.name, cls=kind, ip=f"{host.ip}/8", mac=host.mac, **where)
    for building, edge in zip(plan.topology.buildings, plan.edges, strict=True):
        switch = net.addSwitch(
            plan.edge(building.name),
            cls=EdgeSwitch,
            bridge=edge.bridge,
            datapath=edge_options.datapath,
            ports=edge.ports,
            controller=edge_options.controller,
            dpid=f"{edge.dpid:016x}",
            operations=here,
        )
        if edge.local_interface is not None:
            net.addLink(net[building.core], switch, intfName1=UPLINK, intfName2=edge.local_interface)
        name = plan.probe(building.name)
        probe = net.addHost(name, ip=None, mac=None, namespace_pid=pids[name], operations=here)
        mac = plan.probe_mac(building.name)
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
    topology = plan.topology
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.ip} {host.name}\n" for host in topology.hosts))
    others = [planning.WAN_NODE, *(bridge.name for bridge in plan.bridges)]
    others += [plan.probe(building.name) for building in topology.buildings]
    return {**dict.fromkeys(others), **dict.fromkeys((host.name for host in topology.hosts), names)}


class MachinePlacement:
    """The assignment of a fabric's buildings to machines.

    All edges, and so transit sites, are on this machine.

    Args:
        topology: The topology.
        machines: One machine per building with hosts, in order; empty if all are on this machine.

    Raises:
        FabricError: The number of machines is wrong, or one cannot be reached.
    """

    def __init__(self, topology: Topology, machines: Sequence[str] = ()) -> None:
        self.topology = topology
        self.here = MachineOperations()
        self.machines: list[Machine] = []
        self._of: dict[str, MachineOperations] = {building.name: self.here for building in topology.populated}
        if machines and len(machines) != len(self._of):
            which = "building" if len(self._of) == len(topology.buildings) else "building with hosts"
            raise FabricError(
                f"--machines: got {len(machines)}, expected one for each {which}, in this order: {', '.join(self._of)}"
            )
        try:
            self._connect(dict(zip(self._of, machines, strict=False)))
        except BaseException:
            self.stop()
            raise

    def _connect(self, destinations: Mapping[str, str]) -> None:
        known: dict[str, MachineOperations] = {}
        for building, destination in destinations.items():
            if destination not in known:
                here = is_local(destination.rpartition("@")[2])
                known[destination] = self.here if here else Machine(destination)
                if isinstance(found := known[destination], Machine):
                    self.machines.append(found)
            self._of[building] = known[destination]

    def check(self, plan: Plan) -> None:
        """Check that no building on another machine needs the link engine; FabricError if one does."""
        of_node = self.by_node(plan)
        for cable in plan.cables:
            if cable.needs_engine and isinstance(of_node[cable.a[0]], Machine):
                raise FabricError(
                    f"cable {cable.name} needs the link engine: its building must be on this machine"
                )

    def building(self, name: str) -> MachineOperations:
        """Return the operations of a building's machine."""
        return self._of[name]

    def by_node(self, plan: Plan) -> dict[str, MachineOperations]:
        """Return the machine of each host and building switch; all other nodes are on this machine."""
        hosts = {host.name: self._of[host.building] for host in plan.topology.hosts}
        return {**hosts, **{bridge.name: self._of[bridge.building] for bridge in plan.bridges}}

    def make_namespaces(self, plan: Plan, files: Mapping[str, Path | None]) -> dict[str, int]:
        """Create namespaces for all nodes; return a process id in each, valid on the node's machine."""
        of_node = self.by_node(plan)
        pids: dict[str, int] = {}
        for operations in (self.here, *self.machines):
            pids |= operations.make_namespaces(
                {name: file for name, file in files.items() if of_node.get(name, self.here) is operations}
            )
        return pids

    def measure_tunnels(self, plan: Plan, pids: Mapping[str, int]) -> list[TunnelMeasurement]:
        """Measure delay and rate of every tunnel, before anything else uses it.

        Raises:
            FabricError: Frames do not pass through a tunnel.
        """
        mtu = plan.topology.mtu
        found = []
        for building, local, machine in self._remote_buildings(plan):
            for operations, interface, pid in (
                (machine, UPLINK, pids[building.core]),
                (self.here, local, None),
            ):
                setup = Setup()
                setup.add_interface(interface, mtu)
                operations.apply(setup, pid)
            machine.call("answer_tunnel", interface=UPLINK, pid=pids[building.core], mtu=mtu)
            near = TunnelSocket(local, mtu)
            try:
                needed_bps = _peak_rate_bps(plan, building.name)
                found.append(measure_tunnel(near, machine.name, building.name, needed_bps))
            finally:
                near.close()
                machine.call("close_tunnels")
            if not found[-1].back_bps:
                raise FabricError(
                    f"{found[-1].missing} through the tunnel to machine {machine.name}: UDP port 4789 "
                    f"between {machine.near} and {machine.address} must be open, for fragments too"
                )
        return found

    def tunnel_frames(self, plan: Plan, pids: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return (frames sent, frames received) so far at both ends of each tunnel together, by building."""
        found = {}
        for building, local, machine in self._remote_buildings(plan):
            far = machine.frames(UPLINK, pids[building.core])
            near = self.here.frames(local, None)
            found[building.name] = far[1] + near[1], far[0] + near[0]
        return found

    def _remote_buildings(self, plan: Plan) -> Iterator[tuple[Building, str, Machine]]:
        """Yield each building on another machine, with its edge's local interface to the building's core."""
        for building, edge in zip(plan.topology.buildings, plan.edges, strict=True):
            machine = self._of.get(building.name)
            if isinstance(machine, Machine) and edge.local_interface is not None:
                yield building, edge.local_interface, machine

    def failure(self) -> str | None:
        """Return a message if a machine is gone; None otherwise."""
        return next((words for machine in self.machines if (words := machine.failure())), None)

    def stop(self) -> None:
        """Remove all namespaces on all machines; idempotent."""
        for operations in (*self.machines, self.here):
            operations.stop()


def _peak_rate_bps(plan: Plan, building: str) -> float:
    """Return the maximum rate into or out of a building: that of its NICs or of its WAN links."""
    topology = plan.topology
    nics = sum(host.nic.rate_bps for host in topology.hosts if host.building == building)
    ends = [
        direction.rate_bps
        for link in topology.wan
        for direction, side in ((link.a_to_b, link.a), (link.b_to_a, link.b))
        if side == building
    ]
    return min(nics, sum(ends)) if ends else nics
