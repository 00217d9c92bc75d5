"""Topologies: buildings with hosts, joined by WAN links. The file form (`...Spec`) and its resolved form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from testbed.caches import IdentityCache
from testbed.errors import did_you_mean
from testbed.spec.base_model import Finding, StrictModel, located, look_up, validate
from testbed.spec.buildings import Building, BuildingSpec, Host
from testbed.spec.catalogue import locate_file
from testbed.spec.errors import ConfigError
from testbed.spec.hardware import count_hosts
from testbed.spec.links import WanLink, WanSpec, first_given
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.units import format_size
from testbed.spec.value_types import BuildingName, Name, integer
from testbed.spec.yaml_loader import Document, Location, read_document, show

MAX_BUILDINGS = 200
MAX_WAN_LINKS = 256  # each has a probe subnet of its own, 10.254.<link>.0/24


@dataclass(frozen=True)
class Topology:
    """A resolved topology: every figure final and in SI units, `mtu` in bytes."""

    name: str
    mtu: int
    buildings: tuple[Building, ...]
    wan: tuple[WanLink, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, by index."""
        return tuple(host for building in self.buildings for host in building.hosts)

    @property
    def populated(self) -> tuple[Building, ...]:
        """The buildings that have hosts; the others are transit sites."""
        return tuple(building for building in self.buildings if not building.is_transit)

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of all switches."""
        return tuple(name for building in self.buildings for name in building.switches)

    @property
    def lossy(self) -> bool:
        """Whether any WAN link loses packets."""
        return any(direction.mean_loss for link in self.wan for direction in (link.a_to_b, link.b_to_a))

    @property
    def pauses(self) -> bool:
        """Whether any link has Ethernet pause."""
        directions = [direction for link in self.wan for direction in (link.a_to_b, link.b_to_a)]
        for building in self.buildings:
            directions += [host.nic for host in building.hosts]
            if (clos := building.clos) is not None:
                directions += [clos.leaf_uplink, clos.spine_uplink]
        return any(direction.pause for direction in directions)

    def host(self, name: str) -> Host:
        """Return the host of this name. Raises KeyError if there is none."""
        return {host.name: host for host in self.hosts}[name]

    def building(self, name: str) -> Building:
        """Return the building of this name. Raises KeyError if there is none."""
        return {building.name: building for building in self.buildings}[name]


def host_address(building_index: int, number: int) -> str:
    """Return the IPv4 address of a building's host; `number` counts the building's hosts from 0."""
    return f"10.{building_index}.{number // 200}.{number % 200 + 1}"


def building_network(building_index: int) -> str:
    """Return the IPv4 network of a building's hosts."""
    return f"10.{building_index}.0.0/16"


def probe_address(link_index: int, side: Literal["a", "b"]) -> str:
    """Return the IPv4 address of one end of a WAN link's probe; `link_index` is its position in `Topology.wan`."""
    return f"10.254.{link_index}.{1 if side == 'a' else 2}"


def mac_address(ip: str) -> str:
    """Return the Ethernet address for an IPv4 address: locally administered, 02:00 and the four bytes."""
    return "02:00:" + ":".join(f"{int(byte):02x}" for byte in ip.split("."))


class TopologySpec(StrictModel):
    """A topology as written in a file."""

    name: Name
    """Name of the topology."""
    mtu: Annotated[int, integer(576, 9216)] = 9000
    """Largest IP packet in bytes."""
    buildings: dict[BuildingName, BuildingSpec]
    """The buildings by name. Their order determines host addresses."""
    wan: tuple[WanSpec, ...] = ()
    """The links between buildings."""

    @classmethod
    def raw_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Check that link ends exist, all buildings are connected, host names are unique, and there are hosts."""
        buildings = data.get("buildings")
        names = list(buildings) if isinstance(buildings, Mapping) else []
        if not names:
            if isinstance(buildings, Mapping):
                yield Finding(("buildings",), "no building", "at least one building")
            return
        if len(names) > MAX_BUILDINGS:
            yield Finding(("buildings",), f"{len(names)} buildings", f"at most {MAX_BUILDINGS}")
        hosts = {name: count_hosts(look_up(buildings, name)) for name in names}
        if all(type(count) is int and count == 0 for count in hosts.values()):
            yield Finding(("buildings",), "no host in any building", "at least one building with hosts")
        yield from _ambiguous_names(hosts)
        wan = data.get("wan", ())
        if not isinstance(wan, Sequence) or isinstance(wan, str):
            return
        ends = [(look_up(link, "a"), look_up(link, "b")) for link in wan]
        wrong = list(_wrong_ends(names, ends))
        yield from wrong
        if not wrong and all(isinstance(end, str) for pair in ends for end in pair):
            unreachable = _unreachable(names, ends)
            if unreachable:
                expected = "WAN links that connect all buildings"
                yield Finding(("wan",), f"no path from {names[0]} to {', '.join(unreachable)}", expected)

    def checks(self) -> Iterator[Finding]:
        """Check the number of links, that every queue holds a packet, and that pauses take effect in time."""
        links = sum(link.planes for link in self.wan)
        if links > MAX_WAN_LINKS:
            yield Finding(("wan",), f"{links} links", f"at most {MAX_WAN_LINKS}, counting every plane")
        queues: list[tuple[Location, Any]] = [
            (("buildings", name, "nic", "queue"), building.nic.queue_bytes)
            for name, building in self.buildings.items()
            if building.nic is not None
        ]
        for name, building in self.buildings.items():
            for position, entry in enumerate(building.unlike):
                if entry.nic is not None:
                    location = ("buildings", name, "unlike", position, "nic", "queue")
                    queues.append((location, entry.nic.queue_bytes))
            if building.clos is not None:
                for tier, uplink in (("leaf", building.clos.leaf), ("spine", building.clos.spine)):
                    queues.append((("buildings", name, "clos", tier, "queue"), uplink.queue_bytes))
        for number, link in enumerate(self.wan):
            queues.append((("wan", number, "queue"), link.queue_bytes))
            for direction, own in (("a_to_b", link.a_to_b), ("b_to_a", link.b_to_a)):
                queues.append((("wan", number, direction, "queue"), first_given(own.queue_bytes, "auto")))
        for location, queue in queues:
            if queue != "auto" and queue < self.mtu:
                expected = f"auto, or at least the mtu ({self.mtu} B)"
                yield Finding(location, repr(format_size(queue)), expected)
        yield from self._pause_findings()

    def _pause_findings(self) -> Iterator[Finding]:
        places: list[tuple[Location, BuildingSpec | WanSpec]] = [
            (("buildings", name), building) for name, building in self.buildings.items()
        ]
        places += [(("wan", number), link) for number, link in enumerate(self.wan)]
        for location, place in places:
            yield from located(place.pause_findings(self.mtu), *location)

    @property
    def pauses(self) -> bool:
        """Whether any link has Ethernet pause."""
        return self.resolve().pauses

    def resolve(self, scale: Scale = UNSCALED) -> Topology:
        """Return the scaled network to build. Recent results are cached."""
        return _resolved.of((self,), lambda: self._resolve(scale), scale)

    def _resolve(self, scale: Scale) -> Topology:
        buildings: list[Building] = []
        first = 0
        for index, (name, spec) in enumerate(self.buildings.items()):
            nics = [spec.nic_direction(self.mtu, scale, number) for number in range(spec.hosts)]
            addresses = [host_address(index, number) for number in range(spec.hosts)]
            hosts = tuple(
                Host(
                    f"{name}{number + 1}",
                    name,
                    first + number,
                    ip,
                    mac_address(ip),
                    nics[number],
                    spec.hardware_of(number),
                )
                for number, ip in enumerate(addresses)
            )
            clos = spec.resolve_clos(self.mtu, scale)
            cards = spec.nodes.cards if spec.nodes else 0
            building = Building(name, index, hosts, clos, spec.region or "", cards=cards)
            cut_through = spec.cut_through(building)
            buildings.append(replace(building, cut_through=cut_through))
            first += spec.hosts
        planes: Counter[frozenset[str]] = Counter()
        links: list[WanLink] = []
        for link in self.wan:
            directions = link.directions(self.mtu, scale)
            for _ in range(link.planes):
                pair = frozenset((link.a, link.b))
                links.append(WanLink(link.a, link.b, planes[pair], *directions))
                planes[pair] += 1
        return Topology(self.name, self.mtu, tuple(buildings), tuple(links))


_resolved: IdentityCache[Topology] = IdentityCache(16)


def _ambiguous_names(hosts: Mapping[str, Any]) -> Iterator[Finding]:
    """Report buildings that share a host name: host 1 of e1 and host 11 of e are both called e11."""
    for name in hosts:
        text = str(name)
        stem = text.rstrip("0123456789")
        for cut in range(len(stem), len(text)):
            other, number = text[:cut], text[cut:] + "1"
            count = hosts.get(other)
            if isinstance(count, int) and number[0] != "0" and int(number) <= count:
                expected = f"another name: {text}1 would be a host of it and of {other}"
                yield Finding(("buildings", name), f"the building {text}", expected)


def _wrong_ends(names: list[Any], ends: list[tuple[Any, Any]]) -> Iterator[Finding]:
    for number, (a, b) in enumerate(ends):
        for key, end in (("a", a), ("b", b)):
            if isinstance(end, str) and end not in names:
                yield Finding(("wan", number, key), show(end), f"a building: {did_you_mean(end, names)}")
        if a == b and a in names:
            yield Finding(("wan", number, "b"), show(b), "another building than a")


def _unreachable(names: list[str], ends: list[tuple[str, str]]) -> list[str]:
    """Return the buildings that have no path to the first one."""
    reached = {names[0]}
    for _ in names:  # every round adds one hop
        reached.update(end for pair in ends if reached & set(pair) for end in pair)
    return [name for name in names if name not in reached]


def expected_host(topology: Topology, name: object, known: Sequence[str]) -> str:
    """Return the "expected" part of an error about an unknown host."""
    expected = f"a host: {did_you_mean(name, known)}"
    place = str(name).rstrip("0123456789")
    if any(building.is_transit and building.name in (place, name) for building in topology.buildings):
        expected += f"; {place} is a transit site, which has none"
    return expected


def read_topology(path: Path) -> Document:
    """Read a topology file without validating it. Raises ConfigError if it is unreadable or a scenario."""
    document = read_document(path)
    if "topology" in document.data and "buildings" not in document.data:
        raise ConfigError(
            [document.problem(("topology",), "a scenario file", "a topology file, with buildings")]
        )
    return document


def load_topology(source: Path | str | Mapping[str, Any]) -> TopologySpec:
    """Read a topology from a file, the name of a bundled one, or a mapping. Raises ConfigError with all problems."""
    if isinstance(source, Mapping):
        return validate(TopologySpec, Document.of(source))
    return validate(TopologySpec, read_topology(locate_file(source, ("topologies",))))
