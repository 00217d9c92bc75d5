"""Topologies: buildings with hosts, joined by WAN links. The file form (`...Spec`) and what it resolves to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.config.forms import BuildingName, Count, Duration, Fraction, Name, Queue, Rate, whole
from testbed.config.loading import did_you_mean, read_document, show
from testbed.config.model import Finding, Strict, validate

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
    """A building; its hosts are named after it: east1, east2, ..."""

    hosts: Annotated[int, whole(1, MAX_HOSTS_PER_BUILDING)] = Field(description="How many hosts.")
    nic: NicSpec = Field(description="Network card of each host.")


class DirectionSpec(Strict):
    """One direction of a WAN link, where it differs from the link's own settings."""

    rate_bps: Rate | None = Field(default=None, alias="rate", description="Rate.")
    delay_s: Duration | None = Field(default=None, alias="delay", description="Propagation delay, one way.")
    jitter_s: Duration | None = Field(default=None, alias="jitter", description="Variation of the delay.")
    loss: Fraction | None = Field(default=None, description="Share of packets lost at random.")
    queue_bytes: Queue | None = Field(default=None, alias="queue", description="Buffer in front of the link.")


class WanSpec(Strict):
    """One or more parallel WAN links between two buildings. What `a_to_b` or `b_to_a` set wins in that direction."""

    a: str = Field(description="A building.")
    b: str = Field(description="Another building.")
    planes: Count = Field(default=1, description="How many parallel links, each with these settings.")
    rate_bps: Rate | None = Field(
        default=None, alias="rate", description="Rate of each link, in each direction."
    )
    delay_s: Duration | None = Field(default=None, alias="delay", description="Propagation delay, one way.")
    jitter_s: Duration = Field(default=0.0, alias="jitter", description="Variation of the delay.")
    loss: Fraction = Field(default=0.0, description="Share of packets lost at random.")
    queue_bytes: Queue = Field(
        default="auto",
        alias="queue",
        description="Buffer in front of the link; auto: rate x 2 x delay, at least 64 packets.",
    )
    a_to_b: DirectionSpec = Field(default=DirectionSpec(), description="What differs from a to b.")
    b_to_a: DirectionSpec = Field(default=DirectionSpec(), description="What differs from b to a.")

    def direction(self, own: DirectionSpec, mtu: int, size_scale: float) -> Direction:
        """The final figures of one direction."""
        rate = (own.rate_bps or self.rate_bps or 0.0) / size_scale
        delay_s = _first(own.delay_s, self.delay_s)
        queue = _first(own.queue_bytes, self.queue_bytes)
        return Direction(
            rate,
            delay_s,
            _first(own.jitter_s, self.jitter_s),
            _first(own.loss, self.loss),
            _queue_bytes(queue, rate * 2 * delay_s / 8, mtu, size_scale),
        )


class TopologySpec(Strict):
    """A topology as written in a file."""

    name: Name = Field(description="Name of the topology.")
    mtu: Annotated[int, whole(576, 9216)] = Field(default=9000, description="Largest IP packet in bytes.")
    buildings: dict[BuildingName, BuildingSpec] = Field(description="The buildings by name.")
    wan: tuple[WanSpec, ...] = Field(default=(), description="The links between buildings.")

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


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _queue_bytes(queue: int | Literal["auto"], auto_bytes: float, mtu: int, size_scale: float) -> int:
    """A queue in bytes. The scale does not shrink packets, so a few of them must fit whatever the scale."""
    if queue == "auto":
        return max(round(auto_bytes), MIN_AUTO_QUEUE_PACKETS * mtu)
    return max(round(queue / size_scale), MIN_QUEUE_PACKETS * mtu)


def load_topology(path: Path | str) -> TopologySpec:
    """Read a topology file. ConfigError with all its problems."""
    return validate(TopologySpec, read_document(Path(path)))
