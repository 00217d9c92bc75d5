"""Buildings: hosts, their NICs, and the switches between them. The file form (`...Spec`) and the resolved form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from testbed.spec.base_model import Finding, StrictModel, located
from testbed.spec.hardware import UNSET_HARDWARE, Hardware, HardwareSpec, HostHardwareSpec, NicSpec, NodesSpec
from testbed.spec.link_direction import Direction
from testbed.spec.links import PauseSpec, queue_size, with_pause
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.units import format_duration, format_rate
from testbed.spec.value_types import DelayOrZero, Name, Queue, Ratio, integer
from testbed.spec.yaml_loader import Location

MAX_SWITCHES = 64  # of one kind in a building
Switching = Literal["store_and_forward", "cut_through"]


@dataclass(frozen=True)
class Clos:
    """Three tiers of switches in a building: leaves with hosts, spines, and one core that leads to the edge.

    Each of `zones` zones has `leaves` leaves and `spines` spines. Every leaf is linked to every spine of its zone, and
    every spine to the core. Links are symmetric.
    """

    zones: int
    leaves: int
    spines: int
    leaf_uplink: Direction
    spine_uplink: Direction


class UplinkSpec(StrictModel):
    """Links from a switch to the tier above."""

    oversubscription: Ratio = 1.0
    """Ratio of the bandwidth upwards to the bandwidth from below, such as 1:2.8; 1:1 is non-blocking."""
    delay_s: DelayOrZero = 0.0
    """Propagation delay of each link, one way."""
    queue_bytes: Queue = "auto"
    """Buffer of the port at either end of each link; auto: 1 ms at the link's rate, at least 64 packets."""
    pause: PauseSpec | None = None
    """Ethernet pause between the two switches of each link. Default: no pause."""


class ClosSpec(StrictModel):
    """Switch tiers of a building: leaves with hosts, spines and one core.

    Each leaf has a link to each spine of its zone. The destination alone determines which spine a packet takes
    (D-mod-k).
    """

    zones: Annotated[int, integer(1, MAX_SWITCHES)] = 1
    """Parts of the building with their own leaves and spines, joined at the core."""
    leaves: Annotated[int, integer(1, MAX_SWITCHES)]
    """Leaf switches in each zone. Hosts are spread over them evenly, consecutive hosts on the same leaf."""
    spines: Annotated[int, integer(1, MAX_SWITCHES)]
    """Spine switches in each zone."""
    leaf: UplinkSpec = UplinkSpec()
    """Links from each leaf up to the spines of its zone."""
    spine: UplinkSpec = UplinkSpec()
    """Link from each spine up to the core."""
    spine_switching: Switching | None = None
    """Like `switching`, for the spines only; default: the building's."""
    core_switching: Switching | None = None
    """Like `switching`, for the core only; default: the building's."""


MAX_HOSTS_PER_BUILDING = 2000
# Data-center switches buffer about a millisecond at line rate (50 MB at 400 Gbit/s).
AUTO_QUEUE_S = 1e-3
TRANSIT_KEYS = ("hosts", "region")


@dataclass(frozen=True)
class Host:
    """A machine with one NIC.

    `index` counts hosts of the whole topology from 0. `nic` has the settings of both directions. `hardware` describes
    its accelerators where they differ from the workload's.
    """

    name: str
    building: str
    index: int
    ip: str
    mac: str
    nic: Direction
    hardware: Hardware = UNSET_HARDWARE


@dataclass(frozen=True)
class Building:
    """A data-center building and its hosts, behind one switch or a Clos network. `index` counts from 0.

    A building without hosts is a transit site. It has only an edge switch, which forwards between WAN links. `region`:
    a name shared by buildings near each other. `cut_through`: switches that forward a frame while it is still arriving;
    the others store it first. `cards`: number of cards per node, where leaves are PCIe switches of nodes: the first
    host of a leaf is the node's, the others are its cards.
    """

    name: str
    index: int
    hosts: tuple[Host, ...]
    clos: Clos | None = None
    region: str = ""
    cut_through: tuple[str, ...] = ()
    cards: int = 0

    @property
    def is_transit(self) -> bool:
        """Whether the building has no hosts and only forwards between its WAN links."""
        return not self.hosts

    @property
    def edge(self) -> str:
        """Name of the switch with the WAN links."""
        return f"{self.name}-edge"

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the switches with the hosts."""
        if self.clos is None:
            return () if self.is_transit else (f"{self.name}-leaf",)
        return tuple(f"{self.name}-leaf{n + 1}" for n in range(self.clos.zones * self.clos.leaves))

    @property
    def spines(self) -> tuple[str, ...]:
        """Names of the spine switches."""
        if self.clos is None:
            return ()
        return tuple(f"{self.name}-spine{n + 1}" for n in range(self.clos.zones * self.clos.spines))

    @property
    def hosts_per_leaf(self) -> int:
        """Number of hosts per leaf; hosts of one leaf are consecutive."""
        return len(self.hosts) // len(self.leaves)

    def leaf_of(self, host: Host) -> int:
        """Return the index of a host's leaf within this building, from 0."""
        return (host.index - self.hosts[0].index) // self.hosts_per_leaf

    def leaf_hosts(self, leaf: int) -> tuple[Host, ...]:
        """Return the hosts of a leaf, counted from 0."""
        return self.hosts[leaf * self.hosts_per_leaf : (leaf + 1) * self.hosts_per_leaf]

    def zone_hosts(self, zone: int) -> tuple[Host, ...]:
        """Return the hosts of a zone, counted from 0."""
        leaves = len(self.leaves) if self.clos is None else self.clos.leaves
        return tuple(host for leaf in range(leaves) for host in self.leaf_hosts(zone * leaves + leaf))

    @property
    def core(self) -> str:
        """Name of the switch that leads to the edge. A transit site only has the edge."""
        if self.is_transit:
            return self.edge
        return self.leaves[0] if self.clos is None else f"{self.name}-core"

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of all switches, the edge last."""
        return tuple(dict.fromkeys((*self.leaves, *self.spines, self.core, self.edge)))


def _require_hosts(schema: dict[str, Any]) -> None:
    """Require hosts with their NIC, or no hosts, or nodes, in the JSON schema of a building."""
    schema.pop("required")
    schema["anyOf"] = [
        {"required": ["hosts", "nic"]},
        {"required": ["hosts"], "properties": {"hosts": {"const": 0}}},
        {"required": ["nodes"]},
    ]


class BuildingSpec(HardwareSpec):
    """A building."""

    model_config = ConfigDict(json_schema_extra=_require_hosts)
    derived_fields = frozenset({"hosts", "nic"})

    hosts: Annotated[int, integer(0, MAX_HOSTS_PER_BUILDING)]
    """Number of hosts. They are named after the building: east1, east2, ... With `nodes`, the number follows from them.
    0: a transit site, which only forwards; its only other key is `region`.
    """
    nic: NicSpec | None = None
    """NIC of each host; required if there are hosts. With `nodes`: the PCIe lanes of a card."""
    clos: ClosSpec | None = None
    """Tiers of switches; default: one non-blocking switch."""
    nodes: NodesSpec | None = None
    """Inference nodes in place of `hosts` and `nic`. A node has a host and accelerator cards on a PCIe switch, and a
    network card that connects to the building's switch.
    """

    switching: Switching = "store_and_forward"
    """store_and_forward: switches receive a whole frame before they forward it. cut_through: they forward it while it
    is still arriving. This applies to frames that stay in the building and arrive at ports no slower than the switch's
    fastest. The edge between building and WAN always stores and forwards.
    """
    region: Name | None = None
    """Name shared by buildings that are near each other. Buildings without one share a region, too."""
    unlike: tuple[HostHardwareSpec, ...] = ()
    """Hosts whose NIC or accelerator differs from those of the other hosts."""

    @classmethod
    def with_defaults(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Derive hosts and NICs from nodes."""
        nodes = data.get("nodes")
        if nodes is None:
            return data
        try:
            spec = nodes if isinstance(nodes, NodesSpec) else NodesSpec.model_validate(nodes)
        except ValueError:  # reported where the nodes are validated
            return {"hosts": 1, "nic": {"rate": "1 Gbit/s"}, **data}
        return {"hosts": spec.hosts, "nic": _pcie_nic(spec), **data}

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what nodes imply, and the keys that a transit site does not have."""
        data: dict[str, Any] = handler(self)
        if self.hosts == 0:
            data = {key: value for key, value in data.items() if key in TRANSIT_KEYS}
        if self.nodes is not None:
            data = {key: value for key, value in data.items() if key not in self.derived_fields}
        return data

    def checks(self) -> Iterator[Finding]:
        """Check that hosts divide evenly over leaves, and that no keys exclude each other."""
        if self.hosts == 0 and self.nodes is None:
            yield from self._transit_findings()
            return
        if self.nic is None:
            yield Finding(
                ("nic",), "nothing", "the network card of each host, or hosts: 0 for a transit site"
            )
        if self.nodes is not None and self.clos is not None:
            yield Finding(("clos",), "clos with nodes", "only one of the two")
        if self.nodes is not None and self.hosts != self.nodes.hosts:
            expected = f"{self.nodes.hosts}, as in nodes, or nothing"
            yield Finding(("hosts",), str(self.hosts), expected)
        if self.nodes is not None and self.nic != NicSpec.model_validate(_pcie_nic(self.nodes)):
            yield Finding(("nic",), "nic with nodes", "only one of the two")
        if self.clos is not None and self.hosts % (self.clos.zones * self.clos.leaves):
            leaves = self.clos.zones * self.clos.leaves
            yield Finding(("hosts",), str(self.hosts), f"a multiple of {leaves}, the number of leaves")
        if self.nodes is not None and self.unlike:
            yield Finding(("unlike",), "unlike hosts with nodes", "only one of the two")
        seen: set[int] = set()
        for position, entry in enumerate(self.unlike):
            location = ("unlike", position, "hosts")
            if (most := max(entry.hosts)) > self.hosts:
                yield Finding(location, str(most), f"numbers from 1 to {self.hosts}")
            if twice := sorted(seen & set(entry.hosts)):
                yield Finding(location, f"{twice[0]} again", "each host in one entry")
            seen |= set(entry.hosts)

    def _transit_findings(self) -> Iterator[Finding]:
        """Report every key that only buildings with hosts may have."""
        for name, info in type(self).model_fields.items():
            if name not in TRANSIT_KEYS and getattr(self, name) != info.default:
                key = info.alias or name
                expected = f"hosts, or no {key}: a transit site only forwards"
                yield Finding((key,), f"{key} with hosts: 0", expected)

    def hardware_of(self, number: int) -> Hardware:
        """Return the hardware of a host; `number` counts the building's hosts from 0."""
        entry = self._unlike(number)
        return self.hardware if entry is None else entry.hardware.fill_from(self.hardware)

    def nic_direction(self, mtu: int, scale: Scale, number: int = 0) -> Direction:
        """Return the settings of the cable between a host and its switch, in either direction.

        Args:
            mtu: largest IP packet, in bytes.
            scale: scale of the emulation.
            number: the host's number in the building, from 0.
        """
        return _cable(self._nic(number), scale.emulated_bps(self._rate_bps(number)), mtu, scale)

    def pause_findings(self, mtu: int) -> Iterator[Finding]:
        """Check that pauses of the building's links take effect in time."""
        cards: list[tuple[Location, NicSpec | None]] = [(("nic",), self.nic)]
        cards += [(("unlike", index, "nic"), entry.nic) for index, entry in enumerate(self.unlike)]
        places = [
            (location, nic.pause, _cable(nic, nic.rate_bps, mtu, UNSCALED))
            for location, nic in cards
            if nic is not None
        ]
        clos = self.resolve_clos(mtu, UNSCALED)
        if clos is not None and self.clos is not None:
            places.append((("clos", "leaf"), self.clos.leaf.pause, clos.leaf_uplink))
            places.append((("clos", "spine"), self.clos.spine.pause, clos.spine_uplink))
        for location, pause, link in places:
            if pause is not None:
                yield from located(pause.findings(link, link, mtu), *location, "pause")

    def uplinks_with_given_buffers(self, building: Building) -> frozenset[str]:
        """Return the hosts and switches whose uplinks have a queue size or pause in the file."""
        ends: dict[str, NicSpec | UplinkSpec] = {
            host.name: self._nic(number) for number, host in enumerate(building.hosts)
        }
        if self.clos is not None:
            ends |= dict.fromkeys(building.leaves, self.clos.leaf)
            ends |= dict.fromkeys(building.spines, self.clos.spine)
        return frozenset(
            name for name, end in ends.items() if end.queue_bytes != "auto" or end.pause is not None
        )

    def _unlike(self, number: int) -> HostHardwareSpec | None:
        return next((entry for entry in self.unlike if number + 1 in entry.hosts), None)

    def _nic(self, number: int) -> NicSpec:
        entry = self._unlike(number)
        nic = self.nic if entry is None or entry.nic is None else entry.nic
        assert nic is not None  # checked: where there are hosts there is a card
        return nic

    def _rate_bps(self, number: int) -> float:
        return self._nic(number).rate_bps if self.nodes is None else self.nodes.rate_bps(number)

    def resolve_clos(self, mtu: int, scale: Scale) -> Clos | None:
        """Return the switches between hosts and edge, or None for a single one. A node's PCIe switch is a leaf."""
        if (nodes := self.nodes) is not None:
            network_bps = scale.emulated_bps(nodes.network_bps)
            network = _link(network_bps, nodes.network_delay_s, mtu, scale)
            return Clos(1, nodes.count, 1, network, _link(nodes.count * network_bps, 0.0, mtu, scale))
        if (clos := self.clos) is None:
            return None
        each = self.hosts // (clos.zones * clos.leaves)
        # all links of a tier have the rate that the leaf with the fastest cards needs
        leaves = [range(first, first + each) for first in range(0, self.hosts, each)]
        below_bps = scale.emulated_bps(max(sum(map(self._rate_bps, leaf)) for leaf in leaves))
        leaf = _cable(clos.leaf, below_bps / clos.leaf.oversubscription / clos.spines, mtu, scale)
        spine_bps = clos.leaves * leaf.rate_bps / clos.spine.oversubscription
        spine = _cable(clos.spine, spine_bps, mtu, scale)
        return Clos(clos.zones, clos.leaves, clos.spines, leaf, spine)

    def cut_through(self, building: Building) -> tuple[str, ...]:
        """Return the switches of the building that cut through; the edge never does."""
        clos = self.clos
        tiers = [(building.leaves, self.switching)]
        if clos is not None:
            tiers.append((building.spines, clos.spine_switching or self.switching))
            tiers.append(((building.core,), clos.core_switching or self.switching))
        return tuple(name for names, how in tiers for name in names if how == "cut_through")


def _pcie_nic(nodes: NodesSpec) -> dict[str, Any]:
    """Return a node's PCIe lanes in the form of a network card."""
    return {"rate": format_rate(nodes.rate_bps(1)), "delay": format_duration(nodes.lane_delay_s)}


def _cable(spec: NicSpec | UplinkSpec, rate_bps: float, mtu: int, scale: Scale) -> Direction:
    """Return either direction of a cable with this emulated rate."""
    link = _link(rate_bps, spec.delay_s, mtu, scale, spec.queue_bytes)
    return with_pause(link, link, spec.pause, mtu, scale)


def _link(
    rate_bps: float, delay_s: float, mtu: int, scale: Scale, queue: int | Literal["auto"] = "auto"
) -> Direction:
    """Return a link from an emulated rate and a real delay and queue."""
    queue_bytes = queue_size(queue, rate_bps * scale.emulated_s(AUTO_QUEUE_S) / 8, mtu, scale)
    return Direction(rate_bps, scale.emulated_s(delay_s), 0.0, 0.0, queue_bytes)
