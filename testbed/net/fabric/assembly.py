"""A plan's nodes and cables as Mininet's: hosts, bridges, edges and probes, each on its machine, plugged together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mininet.log import setLogLevel
from mininet.net import Mininet

from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.bridges import CARD, UPLINK
from testbed.net.fabric.machine_placement import MachinePlacement
from testbed.net.fabric.nodes import EdgeSwitch, KernelBridge, QuietHost, QuietInterface, VethLink
from testbed.net.fabric.plan import Plan


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
        return NodeKinds(QuietHost, KernelBridge, VethLink)
    from testbed.net.fabric.mininet_cluster import RemoteBridge, RemoteHost, SpanningLink  # noqa: PLC0415

    return NodeKinds(RemoteHost, RemoteBridge, SpanningLink)


def assemble(plan: Plan, placement: MachinePlacement, switched: Switched, folder: Path) -> Any:
    """Make all nodes' namespaces and all interfaces, nothing set up yet; returns Mininet's object. FabricError."""
    kinds = node_kinds(spanning=bool(placement.machines))
    setLogLevel("error")
    Mininet.inited = True  # or its first use would change limits of the whole machine
    net = Mininet(
        topo=None,
        host=QuietHost,
        link=kinds.link,
        intf=QuietInterface,
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
        kind = kinds.host if operations[host.name] is not here else QuietHost
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
