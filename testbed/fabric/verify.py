"""Reads back what was set on a fabric's interfaces and namespaces; the first difference is an error that names it."""

from __future__ import annotations

from collections.abc import Iterable

from pyroute2 import IPRoute

from testbed.fabric import plan as planning
from testbed.fabric.plan import Plan
from testbed.links import SettingMismatch, network_namespace
from testbed.links.offload import switched_on
from testbed.links.setup import known_sysctls, read_sysctl
from testbed.links.shaping import Shape, verify_shape


def verify_offloads(plan: Plan, pids: dict[str, int]) -> None:
    """No interface of the fabric hands on larger packets than go over the wire. SettingMismatch."""
    places: dict[int | None, list[str]] = {
        None: [name for edge in plan.edges for name in edge.interfaces],
        pids[planning.WAN_NODE]: [port.wan_interface for port in plan.wan_ports],
    }
    for building in plan.topology.buildings:
        ports = [f"p{index}" for index in range(len(building.hosts))]
        places[pids[plan.leaf(building.name)]] = ["uplink", *ports]
        places[pids[plan.probe(building.name)]] = ["eth0"]
        places |= {pids[host.name]: ["eth0"] for host in building.hosts}
    names = {pid: name for name, pid in pids.items()}
    for pid, interfaces in places.items():
        with network_namespace(pid):
            for interface in interfaces:
                if on := switched_on(interface):
                    where = f"{names.get(pid or 0, 'the root namespace')}: {interface}"
                    raise SettingMismatch(where, on[0], "off", "on")


def verify(plan: Plan, pids: dict[str, int]) -> None:
    """Rates and queues of NICs, MTUs, kernel parameters, bridge ports. SettingMismatch, LinkError.

    What WAN links are set to, the link engine reads back itself.
    """
    wan_pid = pids[planning.WAN_NODE]
    edge_ports = [name for edge in plan.edges for name in edge.interfaces]
    wan_ports = [port.wan_interface for port in plan.wan_ports]
    _verify(plan, "the root namespace", None, edge_ports, {})
    _verify(plan, planning.WAN_NODE, wan_pid, wan_ports, {})
    for building in plan.topology.buildings:
        leaf, probe = plan.leaf(building.name), plan.probe(building.name)
        ports = {f"p{index}": planning.nic_shape(host) for index, host in enumerate(building.hosts)}
        _verify(plan, leaf, pids[leaf], ["uplink", *ports], ports)
        _verify_bridge_ports(leaf, pids[leaf], ["uplink", *ports])
        _verify(plan, probe, pids[probe], ["eth0"], {})
        for host in building.hosts:
            _verify(plan, host.name, pids[host.name], ["eth0"], {"eth0": planning.nic_shape(host)})


def _verify(plan: Plan, where: str, pid: int | None, interfaces: list[str], shapes: dict[str, Shape]) -> None:
    settings: dict[str, str] = {}
    if pid is not None:
        settings = known_sysctls(planning.HOST_SYSCTLS)
        if where in {host.name for host in plan.topology.hosts}:
            settings |= planning.buffer_sysctls(plan.topology)
    with network_namespace(pid), IPRoute() as ipr:
        for interface, shape in shapes.items():
            verify_shape(ipr, interface, shape)
        mtus = {link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_MTU") for link in ipr.get_links()}
        for interface in interfaces:
            if mtus.get(interface) != plan.topology.mtu:
                asked = plan.topology.mtu
                raise SettingMismatch(f"{where}: {interface}", "mtu", asked, mtus.get(interface))
        for key, value in settings.items():
            if (found := read_sysctl(key)) != value:
                raise SettingMismatch(where, key, value, found)


def _verify_bridge_ports(where: str, pid: int, ports: Iterable[str]) -> None:
    """A leaf's ports neither learn nor flood."""
    with network_namespace(pid), IPRoute() as ipr:
        links = {link.get_attr("IFLA_IFNAME"): link for link in ipr.get_links()}
    for port in ports:
        data = links[port].get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_SLAVE_DATA")
        for flag in ("IFLA_BRPORT_LEARNING", "IFLA_BRPORT_UNICAST_FLOOD", "IFLA_BRPORT_MCAST_FLOOD"):
            if data.get_attr(flag) != 0:
                raise SettingMismatch(f"{where}: {port}", flag, 0, data.get_attr(flag))
