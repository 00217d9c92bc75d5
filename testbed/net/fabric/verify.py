"""Reads back what was set on a fabric's interfaces and namespaces; the first difference is an error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.bridges import CARD
from testbed.net.fabric.namespace_setup import buffer_sysctls
from testbed.net.fabric.plan import Plan
from testbed.net.links import SettingMismatch, network_namespace
from testbed.net.links.ingress import CUT_THROUGH_DEVICE, IngressDelay, ingress_device, verify_ingress_delays
from testbed.net.links.interfaces import Interface, Qdisc, read_interfaces, read_qdiscs, read_route_rto_min_ms
from testbed.net.links.netlink import Netlink
from testbed.net.links.setup import MAX_GSO_SEGMENTS, enabled_offloads, read_sysctl, supported_sysctls
from testbed.net.links.shaping import Shape, qdisc_kinds, verify_shapes

ROOT_NAME = "the root namespace"
# what the kernel gives an interface by itself, where none was asked for
_NONE = {"noqueue", "noop"}
_MUST_BE_OFF = {"IFLA_BRPORT_LEARNING": 8, "IFLA_BRPORT_UNICAST_FLOOD": 9, "IFLA_BRPORT_MCAST_FLOOD": 27}


@dataclass(frozen=True)
class NamespaceSettings:
    """A namespace of the fabric and what is to be set there.

    pid: a process in it (None: the root). shapes, ingress_delays: of those interfaces that have one. rto_min_ms: of the
    route to other hosts, where it is not Linux's own. bridge: the interfaces are ports that neither learn nor flood.
    carried: the kinds of queueing disciplines that the link engine has put on interfaces.
    """

    name: str
    pid: int | None
    interfaces: tuple[str, ...]
    mtu: int
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    sysctls: Mapping[str, str] = field(default_factory=dict)
    rto_min_ms: int | None = None
    bridge: bool = False
    ingress_delays: Mapping[str, IngressDelay] = field(default_factory=dict)
    carried: Mapping[str, Sequence[str]] = field(default_factory=dict)


def namespace_settings(plan: Plan, pids: Mapping[str, int]) -> Iterator[NamespaceSettings]:
    """Every namespace of a fabric, with what is to be verified in it."""
    mtu = plan.topology.mtu
    carried = _carried(plan)
    edges = tuple(name for edge in plan.edges for name in edge.interfaces)
    yield NamespaceSettings(ROOT_NAME, None, edges, mtu, carried=carried.get(None, {}))
    plain = partial(NamespaceSettings, mtu=mtu, sysctls=namespace_setup.HOST_SYSCTLS)
    inner = tuple(name for wire in plan.wires() for name in (wire.inner_a, wire.inner_b))
    wan = planning.WAN_NODE
    yield plain(wan, pids[wan], inner, carried=carried.get(wan, {}))
    shapes: dict[str, dict[str, Shape]] = {}
    for (node, interface), shape in plan.shapes.items():
        shapes.setdefault(node, {})[interface] = shape
    for bridge in plan.bridges:
        ports = tuple(port.interface for port in bridge.ports)
        name = bridge.name
        own = shapes.get(name, {})
        yield plain(
            name,
            pids[name],
            ports,
            shapes=own,
            bridge=True,
            ingress_delays=plan.ingress_delays_of(name),
            carried=carried.get(name, {}),
        )
    for building in plan.topology.buildings:
        probe = plan.probe(building.name)
        yield plain(probe, pids[probe], (CARD,))
    sysctls = {**namespace_setup.HOST_SYSCTLS, **buffer_sysctls(plan.topology)}
    rto_min_ms = plan.rto_min_ms if plan.time_dilation != 1 else None
    for host in plan.topology.hosts:
        yield NamespaceSettings(
            host.name,
            pids[host.name],
            (CARD,),
            mtu,
            shapes.get(host.name, {}),
            sysctls,
            rto_min_ms,
            ingress_delays=plan.ingress_delays_of(host.name),
            carried=carried.get(host.name, {}),
        )


def _carried(plan: Plan) -> dict[str | None, dict[str, list[str]]]:
    """By namespace and interface, the kinds of queueing disciplines that the link engine puts there."""
    found: dict[str | None, dict[str, list[str]]] = {}
    if plan.link_engine != "netem":
        return found
    wan = found.setdefault(planning.WAN_NODE, {CUT_THROUGH_DEVICE: ["netem"]})
    for wire in plan.wires():
        for inner, node, outer, direction in (
            (wire.inner_a, wire.node_a, wire.outer_a, wire.a_to_b),
            (wire.inner_b, wire.node_b, wire.outer_b, wire.b_to_a),
        ):
            wan |= {inner: ["ingress", "netem"], ingress_device(inner): ["netem"]}
            found.setdefault(node, {})[outer] = sorted(qdisc_kinds(Shape.from_direction(direction)))
    return found


def _verify_disciplines(
    settings: NamespaceSettings, names: Mapping[int, str], present: Iterable[Qdisc]
) -> None:
    """Interfaces have the queueing disciplines that were asked for, and no others."""
    asked = {name: list(found) for name, found in settings.carried.items()}
    for interface, shape in settings.shapes.items():
        asked.setdefault(interface, []).extend(qdisc_kinds(shape))
    for interface in settings.ingress_delays:
        asked.setdefault(interface, []).append("ingress")
        asked |= {ingress_device(interface): ["netem"], CUT_THROUGH_DEVICE: ["netem"]}
    found: dict[str, set[str]] = {}
    for discipline in present:
        found.setdefault(names.get(discipline.index, ""), set()).add(discipline.kind)
    for name in names.values():
        if settings.pid is None and name not in settings.interfaces:
            continue  # the machine's own
        kept = found.get(name, set()) - _NONE
        if kept != set(asked.get(name, ())):
            raise SettingMismatch(
                f"{settings.name}: {name}",
                "queueing disciplines",
                ", ".join(sorted(asked.get(name, ()))) or "none",
                ", ".join(sorted(kept)) or "none",
            )


def verify_offloads(settings: NamespaceSettings) -> None:
    """No interface there hands on larger packets than go over the wire. SettingMismatch."""
    with network_namespace(settings.pid):
        for interface in settings.interfaces:
            if on := enabled_offloads(interface):
                raise SettingMismatch(f"{settings.name}: {interface}", on[0], "off", "on")


def verify(settings: NamespaceSettings) -> None:
    """Rates and queues of NICs, MTUs, kernel parameters, bridge ports. SettingMismatch, LinkError.

    What WAN links are set to, the link engine reads back itself.
    """
    with network_namespace(settings.pid), Netlink() as netlink:
        links = {link.name: link for link in read_interfaces(netlink)}
        names = {link.index: name for name, link in links.items()}
        present = read_qdiscs(netlink)
        on: dict[str, tuple[int, list[Qdisc]]] = {name: (link.index, []) for name, link in links.items()}
        for discipline in present:
            if discipline.index in names:
                on[names[discipline.index]][1].append(discipline)
        verify_shapes(netlink, settings.shapes, settings.mtu, on)
        verify_ingress_delays(netlink, settings.ingress_delays, names, present)
        _verify_disciplines(settings, names, present)
        if settings.rto_min_ms is not None and settings.rto_min_ms not in read_route_rto_min_ms(netlink):
            raise SettingMismatch(settings.name, "rto_min in ms", settings.rto_min_ms, "none such")
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
        if settings.bridge:
            _verify_bridge_port(where, link)


def _verify_bridge_port(where: str, link: Interface) -> None:
    """A bridge's port neither learns nor floods."""
    for flag, number in _MUST_BE_OFF.items():
        found = link.bridge_port.get(number)
        if found != b"\0":
            raise SettingMismatch(where, flag, 0, found and found[0])
