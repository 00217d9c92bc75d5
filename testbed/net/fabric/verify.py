"""Read-back of the settings of a fabric's interfaces and namespaces; the first mismatch is an error that names it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.bridges import NIC
from testbed.net.fabric.namespace_setup import buffer_sysctls
from testbed.net.fabric.plan import Plan
from testbed.net.links import SettingMismatch, network_namespace
from testbed.net.links.ingress import CUT_THROUGH_DEVICE, IngressDelay, ingress_device, verify_ingress_delays
from testbed.net.links.interfaces import Qdisc, read_interfaces, read_qdiscs, read_route_rto_min_ms
from testbed.net.links.netlink import Netlink
from testbed.net.links.setup import MAX_GSO_SEGMENTS, enabled_offloads, read_sysctl, supported_sysctls
from testbed.net.links.shaping import Shape, qdisc_kinds
from testbed.net.links.shaping_readback import verify_shapes

ROOT_NAME = "the root namespace"
# The qdiscs that the kernel gives an interface by default.
_DEFAULT_KINDS = {"noqueue", "noop"}
_MUST_BE_OFF = {"IFLA_BRPORT_LEARNING": 8, "IFLA_BRPORT_UNICAST_FLOOD": 9, "IFLA_BRPORT_MCAST_FLOOD": 27}


@dataclass(frozen=True)
class NamespaceSettings:
    """The expected settings of a namespace.

    Attributes:
        name: Its name.
        pid: A process in it; None for the root namespace.
        interfaces: Its interfaces.
        mtu: The MTU of all interfaces.
        shapes: The shape of each interface that has one.
        sysctls: Kernel parameters.
        rto_min_ms: TCP's minimum RTO on the route to other hosts; None for Linux's default.
        bridge: Whether the interfaces are bridge ports, which must neither learn nor flood.
        ingress_delays: The ingress delay of each interface that has one.
        engine_disciplines: The kinds of qdiscs that the link engine has added to each interface.
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
    engine_disciplines: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_sockets(self) -> bool:
        """Whether it has connections, so that its kernel parameters are also compared by value."""
        return self.pid is None or self.interfaces == (NIC,)


def namespace_settings(plan: Plan, pids: Mapping[str, int]) -> Iterator[NamespaceSettings]:
    """Yield the expected settings of every namespace of a fabric."""
    engine_disciplines = _engine_disciplines(plan)
    shapes: dict[str, dict[str, Shape]] = defaultdict(dict)
    for (node, interface), shape in plan.shapes.items():
        shapes[node][interface] = shape

    def expected(node: str | None, interfaces: Iterable[str], **more: Any) -> NamespaceSettings:
        name = ROOT_NAME if node is None else node
        return NamespaceSettings(
            name,
            None if node is None else pids[node],
            tuple(interfaces),
            plan.topology.mtu,
            shapes[name],
            ingress_delays=plan.ingress_delays_of(name),
            engine_disciplines=engine_disciplines[node],
            **more,
        )

    basic = namespace_setup.HOST_SYSCTLS
    yield expected(None, [name for edge in plan.edges for name in edge.interfaces])
    inner = [name for wire in plan.wires() for name in (wire.inner_a, wire.inner_b)]
    yield expected(planning.WAN_NODE, inner, sysctls=basic)
    for bridge in plan.bridges:
        yield expected(bridge.name, [port.interface for port in bridge.ports], sysctls=basic, bridge=True)
    for edge in plan.edges:
        yield expected(edge.probe, [NIC], sysctls=basic)
    sysctls = {**basic, **buffer_sysctls(plan.topology)}
    rto_min_ms = plan.rto_min_ms if plan.time_dilation != 1 else None
    for host in plan.topology.hosts:
        yield expected(host.name, [NIC], sysctls=sysctls, rto_min_ms=rto_min_ms)


def _engine_disciplines(plan: Plan) -> dict[str | None, dict[str, list[str]]]:
    """Return the kinds of qdiscs that the link engine adds, by namespace and interface."""
    found: dict[str | None, dict[str, list[str]]] = defaultdict(dict)
    if plan.link_engine != "netem":
        return found
    wan = found[planning.WAN_NODE] = {CUT_THROUGH_DEVICE: ["netem"]}
    for wire in plan.wires():
        for inner, node, outer, direction in (
            (wire.inner_a, wire.node_a, wire.outer_a, wire.a_to_b),
            (wire.inner_b, wire.node_b, wire.outer_b, wire.b_to_a),
        ):
            wan |= {inner: ["ingress", "netem"], ingress_device(inner): ["netem"]}
            found[node][outer] = sorted(qdisc_kinds(Shape.from_direction(direction)))
    return found


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


def verify_offloads(settings: NamespaceSettings) -> None:
    """Check that no interface passes on packets larger than those on the wire; SettingMismatch if one does."""
    with network_namespace(settings.pid):
        for interface in settings.interfaces:
            if on := enabled_offloads(interface):
                raise SettingMismatch(f"{settings.name}: {interface}", on[0], "off", "on")


def verify(settings: NamespaceSettings) -> None:
    """Check rates and queues of NICs, MTUs, kernel parameters and bridge ports.

    The link engine reads back the settings of WAN links itself.

    Raises:
        SettingMismatch: A setting is not as expected.
        LinkError: The settings cannot be read.
    """
    with network_namespace(settings.pid), Netlink() as netlink:
        links = {link.name: link for link in read_interfaces(netlink)}
        names = {link.index: name for name, link in links.items()}
        present = read_qdiscs(netlink)
        on = {
            name: (link.index, [discipline for discipline in present if discipline.index == link.index])
            for name, link in links.items()
        }
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
