"""Topologies: buildings with hosts, joined by WAN links. The file form (`...Spec`) and what it resolves to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.config.errors import ConfigError
from testbed.config.forms import (
    BuildingName,
    Count,
    Duration,
    DurationOrNone,
    Fraction,
    FractionOrNone,
    Name,
    Queue,
    QueueOrNone,
    Rate,
    RateOrNone,
    whole,
)
from testbed.config.loading import Document, Location, did_you_mean, read_document, show
from testbed.config.model import Finding, Strict, look, validate
from testbed.config.units import format_duration, format_size

MAX_BUILDINGS = 200
MAX_HOSTS_PER_BUILDING = 2000
MAX_WAN_LINKS = 256  # each has a probe subnet of its own, 10.254.<link>.0/24
# Buffers below this would drop ordinary bursts: switches are not built with less.
MIN_AUTO_QUEUE_PACKETS = 64
MIN_QUEUE_PACKETS = 4
# Data-center switches buffer about a millisecond at line rate (50 MB at 400 Gbit/s).
NIC_AUTO_QUEUE_S = 1e-3


@dataclass(frozen=True)
class Direction:
    """One way of a WAN link: bit/s, seconds one way, seconds, share of packets lost (0 to 1), bytes."""

    rate_bps: float
    delay_s: float
    jitter_s: float
    loss: float
    queue_bytes: int


@dataclass(frozen=True)
class Host:
    """A machine with one NIC. `index` counts hosts of the whole topology from 0."""

    name: str
    building: str
    index: int
    ip: str
    mac: str
    nic_rate_bps: float
    nic_queue_bytes: int


@dataclass(frozen=True)
class Building:
    """A data-center building and its hosts. `index` counts buildings from 0."""

    name: str
    index: int
    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class WanLink:
    """One link between two buildings; `plane` counts parallel links of the same pair from 0."""

    a: str
    b: str
    plane: int
    a_to_b: Direction
    b_to_a: Direction

    @property
    def name(self) -> str:
        """Unique within the topology."""
        return f"{self.a}-{self.b}-{self.plane}"


@dataclass(frozen=True)
class Topology:
    """A network to build, every figure final and in SI units; `mtu` in bytes."""

    name: str
    mtu: int
    buildings: tuple[Building, ...]
    wan: tuple[WanLink, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, by index."""
        return tuple(host for building in self.buildings for host in building.hosts)

    def host(self, name: str) -> Host:
        """The host of this name. KeyError if there is none."""
        return {host.name: host for host in self.hosts}[name]

    def building(self, name: str) -> Building:
        """The building of this name. KeyError if there is none."""
        return {building.name: building for building in self.buildings}[name]


def host_address(building_index: int, number: int) -> str:
    """IPv4 address of a building's host; `number` counts the building's hosts from 0."""
    return f"10.{building_index}.{number // 200}.{number % 200 + 1}"


def probe_address(link_index: int, side: Literal["a", "b"]) -> str:
    """IPv4 address of one end of a WAN link's probe; `link_index` is the link's position in `Topology.wan`."""
    return f"10.254.{link_index}.{1 if side == 'a' else 2}"


def mac_address(ip: str) -> str:
    """The Ethernet address that belongs to an IPv4 address here: locally administered, 02:00 and the four bytes."""
    return "02:00:" + ":".join(f"{int(byte):02x}" for byte in ip.split("."))


class NicSpec(Strict):
    """Network card of a host."""

    rate_bps: Rate = Field(
        alias="rate", description="Rate of the card, and of the switch port it is plugged into."
    )
    queue_bytes: Queue = Field(
        default="auto",
        alias="queue",
        description="Buffer in front of the card and of its switch port; auto: 1 ms at `rate`, at least 64 packets.",
    )


class BuildingSpec(Strict):
    """A building."""

    hosts: Annotated[int, whole(1, MAX_HOSTS_PER_BUILDING)] = Field(
        description="How many hosts; they are named after the building: east1, east2, ..."
    )
    nic: NicSpec = Field(description="Network card of each host.")


class DirectionSpec(Strict):
    """One direction of a WAN link, where it differs from the link's own settings."""

    rate_bps: RateOrNone = Field(default=None, alias="rate", description="Rate in this direction.")
    delay_s: DurationOrNone = Field(default=None, alias="delay", description="Propagation delay, one way.")
    jitter_s: DurationOrNone = Field(default=None, alias="jitter", description="Variation of the delay.")
    loss: FractionOrNone = Field(default=None, description="Share of packets lost at random.")
    queue_bytes: QueueOrNone = Field(default=None, alias="queue", description="Buffer in front of the link.")


class WanSpec(Strict):
    """One or more parallel WAN links between two buildings. What `a_to_b` or `b_to_a` set wins in that direction."""

    a: str = Field(description="A building.")
    b: str = Field(description="Another building.")
    planes: Count = Field(default=1, description="How many parallel links, each with these settings.")
    rate_bps: RateOrNone = Field(
        default=None,
        alias="rate",
        description="Rate of each link, in each direction. May be left out where both directions have their own.",
    )
    delay_s: DurationOrNone = Field(
        default=None, alias="delay", description="Propagation delay, one way. May be left out like `rate`."
    )
    jitter_s: Duration = Field(
        default=0.0, alias="jitter", description="Variation of the delay, at most the delay."
    )
    loss: Fraction = Field(default=0.0, description="Share of packets lost at random.")
    queue_bytes: Queue = Field(
        default="auto",
        alias="queue",
        description="Buffer in front of the link; auto: rate x 2 x delay, at least 64 packets.",
    )
    a_to_b: DirectionSpec = Field(default=DirectionSpec(), description="What differs from a to b.")
    b_to_a: DirectionSpec = Field(default=DirectionSpec(), description="What differs from b to a.")

    def checks(self) -> Iterator[Finding]:
        """Rate and delay are given for both directions; no packet overtakes light."""
        for key, what in (("rate", "a rate"), ("delay", "a delay")):
            if look(self, key) is None and None in (look(self.a_to_b, key), look(self.b_to_a, key)):
                yield Finding((key,), "nothing", f"{what}, here or in both a_to_b and b_to_a")
        for way, own in (("a_to_b", self.a_to_b), ("b_to_a", self.b_to_a)):
            delay_s, jitter_s = _first(own.delay_s, self.delay_s), _first(own.jitter_s, self.jitter_s)
            if delay_s is not None and jitter_s > delay_s:
                location = ("jitter",) if own.jitter_s is None else (way, "jitter")
                shown = f"{format_duration(jitter_s)} with a delay of {format_duration(delay_s)}"
                yield Finding(location, shown, "jitter of at most the delay")
                return

    def direction(self, own: DirectionSpec, mtu: int, size_scale: float) -> Direction:
        """The final figures of one direction."""
        rate_bps = _first(own.rate_bps, self.rate_bps) / size_scale
        delay_s = _first(own.delay_s, self.delay_s)
        return Direction(
            rate_bps,
            delay_s,
            _first(own.jitter_s, self.jitter_s),
            _first(own.loss, self.loss),
            _queue_bytes(
                _first(own.queue_bytes, self.queue_bytes), rate_bps * 2 * delay_s / 8, mtu, size_scale
            ),
        )


class TopologySpec(Strict):
    """A topology as written in a file."""

    name: Name = Field(description="Name of the topology.")
    mtu: Annotated[int, whole(576, 9216)] = Field(default=9000, description="Largest IP packet in bytes.")
    buildings: dict[BuildingName, BuildingSpec] = Field(
        description="The buildings by name, in the order of their addresses."
    )
    wan: tuple[WanSpec, ...] = Field(default=(), description="The links between buildings.")

    @classmethod
    def raw_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Link ends are known buildings, all buildings are connected, host names are unique."""
        buildings = data.get("buildings")
        names = list(buildings) if isinstance(buildings, Mapping) else []
        if not names:
            if isinstance(buildings, Mapping):
                yield Finding(("buildings",), "no building", "at least one building")
            return
        if len(names) > MAX_BUILDINGS:
            yield Finding(("buildings",), f"{len(names)} buildings", f"at most {MAX_BUILDINGS}")
        yield from _ambiguous_names({name: look(buildings, name, "hosts") for name in names})
        wan = data.get("wan", ())
        if not isinstance(wan, Sequence) or isinstance(wan, str):
            return
        ends = [(look(link, "a"), look(link, "b")) for link in wan]
        wrong = list(_wrong_ends(names, ends))
        yield from wrong
        if not wrong and all(isinstance(end, str) for pair in ends for end in pair):
            apart = _apart(names, ends)
            if apart:
                expected = "WAN links that connect all buildings"
                yield Finding(("wan",), f"no path from {names[0]} to {', '.join(apart)}", expected)

    def checks(self) -> Iterator[Finding]:
        """There are not too many links; what was given as a queue holds a packet."""
        links = sum(link.planes for link in self.wan)
        if links > MAX_WAN_LINKS:
            yield Finding(("wan",), f"{links} links", f"at most {MAX_WAN_LINKS}, all planes counted")
        queues: list[tuple[Location, Any]] = [
            (("buildings", name, "nic", "queue"), building.nic.queue_bytes)
            for name, building in self.buildings.items()
        ]
        for number, link in enumerate(self.wan):
            queues.append((("wan", number, "queue"), link.queue_bytes))
            for way, own in (("a_to_b", link.a_to_b), ("b_to_a", link.b_to_a)):
                queues.append((("wan", number, way, "queue"), _first(own.queue_bytes, "auto")))
        for location, queue in queues:
            if queue != "auto" and queue < self.mtu:
                expected = f"auto, or at least the mtu ({self.mtu} B)"
                yield Finding(location, repr(format_size(queue)), expected)

    def resolve(self, size_scale: float = 1.0) -> Topology:
        """The network to build, with all rates and explicit queues divided by `size_scale`; times stay."""
        buildings: list[Building] = []
        first = 0
        for index, (name, spec) in enumerate(self.buildings.items()):
            rate = spec.nic.rate_bps / size_scale
            queue = _queue_bytes(spec.nic.queue_bytes, rate * NIC_AUTO_QUEUE_S / 8, self.mtu, size_scale)
            addresses = [host_address(index, number) for number in range(spec.hosts)]
            hosts = tuple(
                Host(f"{name}{number + 1}", name, first + number, ip, mac_address(ip), rate, queue)
                for number, ip in enumerate(addresses)
            )
            buildings.append(Building(name, index, hosts))
            first += spec.hosts
        planes: Counter[frozenset[str]] = Counter()
        links: list[WanLink] = []
        for link in self.wan:
            ways = [link.direction(own, self.mtu, size_scale) for own in (link.a_to_b, link.b_to_a)]
            for _ in range(link.planes):
                pair = frozenset((link.a, link.b))
                links.append(WanLink(link.a, link.b, planes[pair], *ways))
                planes[pair] += 1
        return Topology(self.name, self.mtu, tuple(buildings), tuple(links))


def _first(own: Any, common: Any) -> Any:
    return common if own is None else own


def _queue_bytes(queue: int | Literal["auto"], auto_bytes: float, mtu: int, size_scale: float) -> int:
    """A queue in bytes. The scale does not shrink packets, so a few of them must fit whatever the scale."""
    if queue == "auto":
        return max(round(auto_bytes), MIN_AUTO_QUEUE_PACKETS * mtu)
    return max(round(queue / size_scale), MIN_QUEUE_PACKETS * mtu)


def _ambiguous_names(hosts: Mapping[str, Any]) -> Iterator[Finding]:
    """Buildings whose first host is also a host of another: e1's host 1 and e's host 11 are both called e11."""
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


def _apart(names: list[str], ends: list[tuple[str, str]]) -> list[str]:
    """Buildings that no path connects to the first."""
    near = {names[0]}
    for _ in names:  # every round goes one link further
        near.update(end for pair in ends if near & set(pair) for end in pair)
    return [name for name in names if name not in near]


def read_topology(path: Path) -> Document:
    """A topology file as it stands. ConfigError if it cannot be read, or is a scenario."""
    document = read_document(path)
    if "topology" in document.data and "buildings" not in document.data:
        raise ConfigError(
            [document.problem(("topology",), "a scenario file", "a topology file, with buildings")]
        )
    return document


def load_topology(path: Path | str) -> TopologySpec:
    """Read a topology file. ConfigError with all its problems."""
    return validate(TopologySpec, read_topology(Path(path)))
