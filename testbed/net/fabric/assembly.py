"""A plan's nodes and cables as Mininet's: hosts, bridges, edges and probes, each on its machine, plugged together."""

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
from testbed.net.fabric.bridges import CARD, UPLINK
from testbed.net.fabric.machines import Machine, is_here
from testbed.net.fabric.mininet_nodes import EdgeSwitch, KernelBridge, PlannedHost, PlannedInterface, VethLink
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.plan import Plan
from testbed.net.fabric.tunnel import TunnelMeasurement, TunnelSocket, measure
from testbed.net.links.setup import Setup
from testbed.spec.buildings import Building
from testbed.spec.topology import Topology


@dataclass(frozen=True)
class Switched:
    """How the edges switch: Open vSwitch's datapath, and their controller, such as "tcp:127.0.0.1:40001"."""

    datapath: str
    controller: str


@dataclass(frozen=True)
class NodeKinds:
    """What hosts and bridges on other machines are, and links between any."""

    host: type
    bridge: type
    link: type


def node_kinds(spanning: bool) -> NodeKinds:
    """Those of Mininet's cluster edition where a fabric spans machines; it is not imported where none does."""
    if not spanning:
        return NodeKinds(PlannedHost, KernelBridge, VethLink)
    from testbed.net.fabric.mininet_cluster import RemoteBridge, RemoteHost, SpanningLink  # noqa: PLC0415

    return NodeKinds(RemoteHost, RemoteBridge, SpanningLink)


def assemble(plan: Plan, placement: MachinePlacement, switched: Switched, folder: Path) -> Any:
    """Make all nodes' namespaces and all interfaces, nothing set up yet; returns Mininet's object. FabricError."""
    kinds = node_kinds(spanning=bool(placement.machines))
    setLogLevel("error")
    Mininet.inited = True  # or its first use would change limits of the whole machine
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
            datapath=switched.datapath,
            ports=edge.ports,
            controller=switched.controller,
            dpid=f"{edge.dpid:016x}",
            operations=here,
        )
        if edge.local_interface is not None:
            net.addLink(net[building.core], switch, intfName1=UPLINK, intfName2=edge.local_interface)
        name = plan.probe(building.name)
        probe = net.addHost(name, ip=None, mac=None, namespace_pid=pids[name], operations=here)
        mac = plan.probe_mac(building.name)
        net.addLink(probe, switch, intfName1=CARD, intfName2=edge.probe_interface, addr1=mac)
        for port in edge.wan:
            ends = {"intfName1": port.wan_interface, "intfName2": port.edge_interface}
            net.addLink(net[planning.WAN_NODE], switch, **ends)
    _plug_in(plan, net)
    net.build()
    return net


def _plug_in(plan: Plan, net: Any) -> None:
    """The cables within buildings; what takes time goes by way of the WAN namespace."""
    wires = {wire.name: wire for wire in plan.wires()}
    for cable in plan.cables:
        (node_a, interface_a), (node_b, interface_b) = cable.a, cable.b
        if not cable.takes_time:
            ends = {"intfName1": interface_a, "intfName2": interface_b, "addr1": cable.mac_a}
            net.addLink(net[node_a], net[node_b], **ends)
            continue
        wire, wan = wires[cable.name], net[planning.WAN_NODE]
        net.addLink(net[node_a], wan, intfName1=interface_a, intfName2=wire.inner_a, addr1=cable.mac_a)
        net.addLink(net[node_b], wan, intfName1=interface_b, intfName2=wire.inner_b)


def _hosts_files(plan: Plan, folder: Path) -> dict[str, Path | None]:
    """All nodes with namespaces of their own, and the /etc/hosts of each: `ping east2` has a meaning in hosts."""
    topology = plan.topology
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.ip} {host.name}\n" for host in topology.hosts))
    others = [planning.WAN_NODE, *(bridge.name for bridge in plan.bridges)]
    others += [plan.probe(building.name) for building in topology.buildings]
    return {**dict.fromkeys(others), **dict.fromkeys((host.name for host in topology.hosts), names)}


class MachinePlacement:
    """The machines of one fabric. `machines` names one for each building with hosts, in order; none: all is here.

    A transit site is only an edge, and edges are here.
    FabricError when there are too few or too many, one cannot be reached, or a building cannot be elsewhere.
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
            self._reach(dict(zip(self._of, machines, strict=False)))
        except BaseException:
            self.stop()
            raise

    def _reach(self, asked: Mapping[str, str]) -> None:
        known: dict[str, MachineOperations] = {}
        for building, destination in asked.items():
            if destination not in known:
                here = is_here(destination.rpartition("@")[2])
                known[destination] = self.here if here else Machine(destination)
                if isinstance(found := known[destination], Machine):
                    self.machines.append(found)
            self._of[building] = known[destination]

    def check(self, plan: Plan) -> None:
        """Nothing that only the link engine can do is inside a building elsewhere. FabricError."""
        of_node = self.by_node(plan)
        for cable in plan.cables:
            if cable.takes_time and isinstance(of_node[cable.a[0]], Machine):
                raise FabricError(
                    f"cable {cable.name} takes time, which needs the link engine: its building must be on this machine"
                )

    def building(self, name: str) -> MachineOperations:
        """The operations of the machine that a building is on."""
        return self._of[name]

    def by_node(self, plan: Plan) -> dict[str, MachineOperations]:
        """Where each host and each switch of a building is; all other nodes are here."""
        hosts = {host.name: self._of[host.building] for host in plan.topology.hosts}
        return {**hosts, **{bridge.name: self._of[bridge.building] for bridge in plan.bridges}}

    def make_namespaces(self, plan: Plan, files: Mapping[str, Path | None]) -> dict[str, int]:
        """Namespaces for all nodes, where they are; a process in each, by that machine's count."""
        of_node = self.by_node(plan)
        pids: dict[str, int] = {}
        for operations in (self.here, *self.machines):
            pids |= operations.make_namespaces(
                {name: file for name, file in files.items() if of_node.get(name, self.here) is operations}
            )
        return pids

    def measure_tunnels(self, plan: Plan, pids: Mapping[str, int]) -> list[TunnelMeasurement]:
        """Delay and rate of every tunnel, while nothing else uses it."""
        mtu = plan.topology.mtu
        found = []
        for building, local, machine in self._elsewhere(plan):
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
                needed_bps = _most_bps(plan, building.name)
                found.append(measure(near, machine.name, building.name, needed_bps))
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
        """(went in, came out) so far at both ends together, of each tunnel by its building."""
        found = {}
        for building, local, machine in self._elsewhere(plan):
            far = machine.frames(UPLINK, pids[building.core])
            near = self.here.frames(local, None)
            found[building.name] = far[1] + near[1], far[0] + near[0]
        return found

    def _elsewhere(self, plan: Plan) -> Iterator[tuple[Building, str, Machine]]:
        """The buildings on other machines, each with the interface of its edge here that leads to its core."""
        for building, edge in zip(plan.topology.buildings, plan.edges, strict=True):
            machine = self._of.get(building.name)
            if isinstance(machine, Machine) and edge.local_interface is not None:
                yield building, edge.local_interface, machine

    def failure(self) -> str | None:
        """None while all machines are there; else one sentence."""
        return next((words for machine in self.machines if (words := machine.failure())), None)

    def stop(self) -> None:
        """End all namespaces, here and there. Harmless when repeated."""
        for operations in (*self.machines, self.here):
            operations.stop()


def _most_bps(plan: Plan, building: str) -> float:
    """What can ever come into or out of a building: what its cards can send, or its WAN links can carry."""
    topology = plan.topology
    cards = sum(host.nic.rate_bps for host in topology.hosts if host.building == building)
    ends = [
        direction.rate_bps
        for link in topology.wan
        for direction, side in ((link.a_to_b, link.a), (link.b_to_a, link.b))
        if side == building
    ]
    return min(cards, sum(ends)) if ends else cards
