"""How ranks talk to each other, as a scenario says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.plugins import registry
from testbed.spec import value_types
from testbed.spec.base_model import Finding, Form, Strict
from testbed.spec.buildings import Host
from testbed.spec.datagram import DatagramSpec
from testbed.spec.keywords import BDP, PLANNED
from testbed.spec.software_costs import SoftwareCostSpec, StagingSpec
from testbed.spec.topology import Topology
from testbed.spec.value_types import DscpsOrNone, Size, Timeout, choice, pattern, whole

STRIPE_MODES = ("dqplb", "spray")
MAX_SUBFLOWS = 8  # the kernel's own limit


# how far apart two ranks may be, and what a striped transport goes by
DISTANCES = ("same_rack", "same_zone", "same_building", "same_region", "other_region")


def distance(topology: Topology, one: Host, other: Host) -> str:
    """One of DISTANCES. Hosts of a building without tiers of switches have no racks: they share a building.

    A building of one zone has none: what is not in one rack is in one building.
    """
    here, there = topology.building(one.building), topology.building(other.building)
    if here != there:
        return "same_region" if here.region == there.region else "other_region"
    if here.clos is None:
        return "same_building"
    racks = {here.leaf_of(host) for host in (one, other)}
    if len(racks) == 1:
        return "same_rack"
    zones = {rack // here.clos.leaves for rack in racks}
    return "same_zone" if here.clos.zones > 1 and len(zones) == 1 else "same_building"


class StripeSpec(Strict):
    """How messages to peers at one distance are cut into segments and dealt out to connections."""

    connections: Annotated[int, whole(1, 255)] = Field(
        default=4, description="Connections per pair of ranks."
    )
    segment_bytes: Size = Field(
        default=512 * 1024, alias="segment", description="What a connection gets in its turn, at most."
    )
    outstanding: Annotated[int, whole(1, 65_536)] = Field(
        default=128, description="Segments of a connection that may wait for their acknowledgement."
    )
    together: Annotated[int | None, whole(1, 65_536)] = Field(
        default=None,
        description="Segments of a rank's connections to all peers at this distance that may wait so together; what is "
        "free goes to peers in turn. Without it each connection's `outstanding` is all.",
    )
    mode: Annotated[str, choice("a mode", STRIPE_MODES)] = Field(
        default="dqplb",
        description="dqplb: segments are numbered through, messages end in their order. spray: they are not, and each "
        "message's end is announced apart.",
    )


class StripesSpec(Strict):
    """Connections of a striped transport, by how far apart two ranks are."""

    same_rack: StripeSpec = Field(default=StripeSpec(connections=1), description="On one leaf switch.")
    same_zone: StripeSpec | None = Field(
        default=None,
        description="In one zone of a building that has several; by default as same_building.",
    )
    same_building: StripeSpec = Field(default=StripeSpec(connections=2), description="In one building.")
    same_region: StripeSpec = Field(default=StripeSpec(), description="In buildings of one region.")
    other_region: StripeSpec = Field(
        default=StripeSpec(connections=8), description="In buildings of different regions."
    )


_CONGESTION_CONTROL = pattern(
    r"[a-z][a-z0-9_-]{0,14}", "a TCP congestion control by its kernel name, such as cubic or bbr"
)
SOCKET_KEYS = ("congestion_control", "pacing", "buffers")
_MODEL = value_types.named("congestion_controls")


def _parse_models(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping from a congestion control's kernel name to its model")
    return {str(_CONGESTION_CONTROL.parse(name)): str(_MODEL.parse(model)) for name, model in value.items()}


_MODELS = Form(_parse_models, lambda: {"type": "object", "additionalProperties": _MODEL.json_schema})
_PACING = value_types.or_word(PLANNED, value_types.RATE)
_BUFFERS = value_types.or_word(BDP, value_types.SIZE)


class SocketsSpec(Strict):
    """What the sockets of some connections get, at both ends. Without dscp and distance: of all."""

    dscp: DscpsOrNone = Field(
        default=None, description="Only connections whose packets have this DSCP, or one of a list."
    )
    distance: Annotated[str | None, choice("a distance", DISTANCES)] = Field(
        default=None,
        description="Only connections between ranks that are so far apart; same_building: in one zone of it, too.",
    )
    congestion_control: Annotated[str | None, _CONGESTION_CONTROL] = Field(
        default=None, description="TCP congestion control by its kernel name."
    )
    pacing: Annotated[float | str | None, _PACING] = Field(
        default=None,
        description="Most that a connection sends (SO_MAX_PACING_RATE). planned: the rate that policy te has in mind "
        "for it between buildings, so that all are done when the busiest link is.",
    )
    buffers: Annotated[int | str | None, _BUFFERS] = Field(
        default=None,
        description="The largest window; send and receive buffer are twice that. bdp: twice the product of rate and "
        "round trip of the empty path. Without it the kernel sizes them, by the topology's largest product.",
    )

    def checks(self) -> Iterator[Finding]:
        """Something is set."""
        if all(getattr(self, key) is None for key in SOCKET_KEYS):
            yield Finding((), "nothing", "congestion_control, pacing or buffers")


class RdmaSpec(Strict):
    """Reliable connections of transport rdma, beside its `stripes`."""

    ack_timeout_s: Timeout = Field(
        default=0.067,
        alias="ack_timeout",
        description="Until a card sends again what nothing was heard of; 8 times without a word, and the peer is lost. "
        "Cards know powers of two of 4.096 us: 67 ms is the 14th, NCCL's default is the 20th (4.3 s).",
    )
    window_packets: Annotated[int, whole(1, 1 << 23)] = Field(
        default=1 << 22,
        alias="window",
        description="Packets that a queue pair may have under way, of 4096 bytes each: of all cards under one clock.",
    )


class TransportSpec(Strict):
    """How ranks talk to each other."""

    kind: Annotated[str, value_types.named("transports")] = Field(
        default="tcp",
        description="tcp: one connection per pair of ranks. striped: several, as `stripes` says. mptcp: one, which the "
        "kernel spreads over its `subflows`. rdma: as striped, over reliable connections of RDMA: "
        "docs/reference/rdma.md. datagram: UDP, whose losses the ranks mend and whose pace they keep, as `datagram` says. Or one of your "
        "own: docs/how-to/plugins/transports.md.",
    )
    options: Annotated[Mapping[str, Any] | None, value_types.OPTIONS] = Field(
        default=None, description="What a transport of your own is made with."
    )
    protocol: Annotated[str, value_types.named("protocols")] = Field(
        default="eager",
        description="eager: messages go out at once. rendezvous: when their receive was announced, straight into it. "
        "staged: in chunks, copied through a window of slots.",
    )
    staging: StagingSpec = Field(default=StagingSpec(), description="Slots of protocol staged.")
    bootstrap: Annotated[str, value_types.named("bootstraps")] = Field(
        default="static",
        description="static: ranks are told all addresses. star: all tell rank 0, which tells all, and everybody "
        "connects to everybody. ring_hybrid: addresses go round a ring, connections are made when used.",
    )
    stripes: StripesSpec = Field(
        default=StripesSpec(), description="Connections of a striped transport, queue pairs of rdma."
    )
    rdma: RdmaSpec = Field(default=RdmaSpec(), description="Cards of transport rdma.")
    subflows: Annotated[int, whole(1, MAX_SUBFLOWS)] = Field(
        default=4, description="mptcp: TCP connections that one is made of; each has a path of its own."
    )
    datagram: DatagramSpec = Field(default=DatagramSpec(), description="Recovery and control of datagrams.")
    congestion_control: Annotated[str, _CONGESTION_CONTROL] = Field(
        default="cubic", description="TCP congestion control of connections for which `sockets` says nothing."
    )
    congestion_models: Annotated[Mapping[str, str] | None, _MODELS] = Field(
        default=None,
        description="By what the model of a step knows a congestion control that it does not know by its kernel name: "
        "one that it knows, or a class of your own: docs/how-to/plugins/congestion-controls.md.",
    )
    sockets: tuple[SocketsSpec, ...] = Field(
        default=(),
        description="Settings by class of traffic and distance; of the entries that fit a connection the first that "
        "says something counts, key by key.",
    )
    timeout_s: Timeout = Field(default=30.0, alias="timeout", description="How long to wait for a peer.")
    software_cost: SoftwareCostSpec = Field(
        default=SoftwareCostSpec(), description="What messages cost their hosts under the virtual clock."
    )

    def checks(self) -> Iterator[Finding]:
        """What the kernel does not pass on to MPTCP's subflows is not asked of them."""
        if not self.sockets and self.options is None:
            return
        kinds = registry("transports")
        kind = kinds.get(self.kind)  # None for one of a file, which says itself what it does not know
        if kind is None:
            return
        if self.options is not None and not kind.known_options:
            yield Finding(("options",), f"options with {self.kind}", "them with a transport that takes some")
        for position, entry in enumerate(self.sockets):
            for key in SOCKET_KEYS:
                if getattr(entry, key) is not None and key not in kind.socket_keys:
                    taking = sorted(name for name, one in kinds.items() if key in one.socket_keys)
                    expected = f"it with {' or '.join(taking)}"
                    yield Finding(("sockets", position, key), f"{key} with {self.kind}", expected)
