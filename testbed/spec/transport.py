"""How ranks exchange messages: transport, sockets, datagrams and their loss recovery, and what software costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.plugins import registry
from testbed.spec import value_types
from testbed.spec.base_model import Finding, Form, StrictModel
from testbed.spec.buildings import Host
from testbed.spec.keywords import BDP, PLANNED
from testbed.spec.topology import Topology
from testbed.spec.value_types import (
    DscpsOrNone,
    Duration,
    DurationOrNone,
    Flag,
    Fraction,
    Size,
    Timeout,
    choice,
    pattern,
    whole,
)

RECOVERIES = ("go_back_n", "selective_repeat", "nack", "erasure", "xor")
CONTROLS = ("window", "credits", "aimd", "dcqcn", "swift", "none")
SPRAYS = ("none", "packet")
GO_BACK_N, PACKET = "go_back_n", "packet"
MOST_GROUP_PACKETS = 256

Window = Annotated[int | str, value_types.or_word(BDP, value_types.SIZE)]


class ErasureSpec(StrictModel):
    """Groups of packets of recoveries erasure and xor; a group ends with its message, its parity in proportion."""

    data: Annotated[int, whole(1, 255)] = Field(default=32, description="Packets of data in a whole group.")
    parity: Annotated[int, whole(1, 255)] = Field(default=8, description="Packets of parity for these.")

    def checks(self) -> Iterator[Finding]:
        """The code has as many symbols as a byte has values."""
        if self.data + self.parity > MOST_GROUP_PACKETS:
            yield Finding(
                ("parity",),
                f"{self.data} + {self.parity}",
                f"at most {MOST_GROUP_PACKETS} packets of a group",
            )


class DatagramSpec(StrictModel):
    """Of `kind: datagram`."""

    recovery: Annotated[str, choice("a recovery", RECOVERIES)] = Field(
        default="selective_repeat",
        description="go_back_n: all behind a lost packet is sent again. selective_repeat: what is lost, three round "
        "trips after it was sent. nack: what is lost, as soon as something sent later has come. erasure: parity goes "
        "with each group of packets, which mends any `parity` losses of it; xor: one loss in each of `parity` classes; "
        "what they do not mend is sent again.",
    )
    erasure: ErasureSpec = Field(default=ErasureSpec(), description="Groups of recoveries erasure and xor.")
    control: Annotated[str, choice("a control", CONTROLS)] = Field(
        default="window",
        description="What a sender may have under way. window: so many bytes, see `window`. credits: what the receiver "
        "grants, all senders together at its card's rate. aimd: TCP Reno's window. dcqcn: a rate, by ECN marks. swift: "
        "a window, by delay. none: whatever the card takes.",
    )
    window: Window = Field(
        default=BDP,
        description="Of control window. bdp: 1.25 times the product of rate and round trip of the empty path.",
    )
    spray: Annotated[str, choice("a spray", SPRAYS)] = Field(
        default="none",
        description="packet: each packet takes the next of `paths` source ports, those that lose or mark less often.",
    )
    paths: Annotated[int, whole(2, 64)] = Field(default=4, description="Source ports that are sprayed over.")

    def checks(self) -> Iterator[Finding]:
        """Who takes packets in order only cannot be sprayed at."""
        if self.recovery == GO_BACK_N and self.spray == PACKET:
            yield Finding(
                ("spray",), f"packet with recovery {GO_BACK_N}", "none: its receiver drops what is not next"
            )


POOLED, LAZY = REGISTRATION_MODES = ("pooled", "lazy")


class RegistrationSpec(StrictModel):
    """What it takes to register an array with the network card, where messages go straight from and into it."""

    mode: Annotated[str, choice("a mode", REGISTRATION_MODES)] = Field(
        default=POOLED,
        description="pooled: all memory is, before the job begins. lazy: each array when it is first used, which "
        "operations wait for.",
    )
    least_s: Duration = Field(
        default=0.1e-3,
        alias="least",
        description="Of most arrays, evenly drawn by the scenario's seed, at least.",
    )
    most_s: Duration = Field(default=1e-3, alias="most", description="And at most.")
    rare_s: Duration = Field(default=0.1, alias="rare", description="Of a few.")
    rare_share: Fraction = Field(default=0.001, description="How many those are, as a share.")

    def checks(self) -> Iterator[Finding]:
        """Least is no more than most."""
        if self.least_s > self.most_s:
            yield Finding(("least",), f"{self.least_s:g} s", f"at most `most`, {self.most_s:g} s")


class SoftwareCostSpec(StrictModel):
    """What messages cost the software of a real host, paid at both ends under the virtual clock only.

    There computing takes no time of its own; under the real clock the ranks' own software costs what it costs.
    The defaults: half of the 9.6 us that NCCL's own tuning model gives for one hop of a ring over a network with its
    Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`), and one copy at 450 GB/s (NVLink of an H100). All else
    is nothing unless said; `preset` has figures for it.
    """

    per_message_s: Duration = Field(
        default=4.8e-6,
        alias="per_message",
        description="For every message, whatever its size; of protocol staged for every chunk. A rank's messages take "
        "this one after another.",
    )
    per_gigabyte_s: Duration = Field(
        default=2.2e-3, alias="per_gigabyte", description="For every 10^9 real bytes of a message."
    )
    copy_per_gigabyte_s: Duration = Field(
        default=0.0,
        alias="copy_per_gigabyte",
        description="As much more where the protocol copies (staged).",
    )
    per_note_s: DurationOrNone = Field(
        default=None,
        alias="per_note",
        description="For every note of a protocol, that a buffer is ready or a slot free; default: as per_message.",
    )
    handover_s: Duration = Field(
        default=0.0,
        alias="handover",
        description="Until a message is handed over between device and host, while others go on.",
    )
    launch_s: Duration = Field(
        default=0.0,
        alias="launch",
        description="For every operation (a collective, one end of a message between two ranks), before it begins: the "
        "launch of its kernel.",
    )
    completion_s: Duration = Field(
        default=0.0,
        alias="completion",
        description="For every operation, from its last message until who waits for it is told.",
    )
    synchronisation_s: Duration = Field(
        default=0.0,
        alias="synchronisation",
        description="Before an operation for which the host has to read counts from the device.",
    )
    registration: RegistrationSpec = Field(
        default=RegistrationSpec(),
        description="Of ranks' arrays, where messages go straight into them (rendezvous).",
    )
    sm_cost: Fraction = Field(
        default=0.0,
        description="Share of a rank's speed of computing that is lost while one of its operations is under way, where "
        "the protocol copies (staged): its kernels take part of the accelerator. By either clock.",
    )


class StagingSpec(StrictModel):
    """The window of protocol staged."""

    chunk_bytes: Size = Field(
        default=256 * 1024,
        alias="chunk",
        description="What a slot holds, in real bytes: of NCCLX's copies 128 to 512 KiB.",
    )
    slots: Annotated[int, whole(1, 4096)] = Field(
        default=8, description="Slots of a message; the receiver says when one is free again."
    )
    announced: Flag = Field(
        default=False,
        description="Whether they are free only once the receiver waits for the message and has said so, as of NCCL's "
        "network plugins; else from the beginning.",
    )


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


class StripeSpec(StrictModel):
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


class StripesSpec(StrictModel):
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


class SocketsSpec(StrictModel):
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


class RdmaSpec(StrictModel):
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


class TransportSpec(StrictModel):
    """How ranks talk to each other."""

    kind: Annotated[str, value_types.named("transports")] = Field(
        default="tcp",
        description="tcp: one connection per pair of ranks. striped: several, as `stripes` says. mptcp: one, which the "
        "kernel spreads over its `subflows`. rdma: as striped, over reliable connections of RDMA: "
        "docs/reference/rdma.md. datagram: UDP, whose losses the ranks mend and whose pace they keep, as "
        "`datagram` says. Or one of your own: docs/how-to/plugins/transports.md.",
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
