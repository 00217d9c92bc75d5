"""How ranks exchange messages: transport, sockets, datagrams and their loss recovery, and software costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.plugins import registry
from testbed.spec import value_types
from testbed.spec.base_model import Finding, StrictModel, ValueFormat
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
    integer,
    pattern,
)

POOLED, LAZY = REGISTRATION_MODES = ("pooled", "lazy")


class RegistrationSpec(StrictModel):
    """Cost of registering arrays with the NIC, for protocols that send from and receive into them directly."""

    mode: Annotated[str, choice("a mode", REGISTRATION_MODES)] = POOLED
    """pooled: all memory is registered before the job begins. lazy: each array is registered when it is first used,
    while its operation waits.
    """
    least_s: Duration = 0.1e-3
    """Shortest time for most arrays; uniformly drawn with the scenario's seed, up to `most`."""
    most_s: Duration = 1e-3
    """Longest time for most arrays."""
    rare_s: Duration = 0.1
    """Time for a few slow arrays."""
    rare_share: Fraction = 0.001
    """Share of arrays that take `rare`."""

    def checks(self) -> Iterator[Finding]:
        """Check that the range is not empty."""
        if self.least_s > self.most_s:
            yield Finding(("least",), f"{self.least_s:g} s", f"at most `most`, {self.most_s:g} s")


class SoftwareCostSpec(StrictModel):
    """Cost of messages in the software of a real host, paid at both ends under the virtual clock only.

    Under the virtual clock, software takes no time by itself; on the real clock, the ranks' own software takes real
    time. The defaults are half of the 9.6 us that NCCL's tuning model gives for one hop of a ring over a network with
    its Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`), and one copy at 450 GB/s (NVLink of an H100). All
    other costs are zero by default; `preset` has figures for them.
    """

    per_message_s: Duration = 4.8e-6
    """Time per message of any size, or per chunk with protocol staged. A rank's messages are processed one at a time.
    """
    per_gigabyte_s: Duration = 2.2e-3
    """Time per 10^9 real bytes of a message."""
    copy_per_gigabyte_s: Duration = 0.0
    """Additional time per 10^9 real bytes if the protocol copies (staged)."""
    per_note_s: DurationOrNone = None
    """Time per control message of a protocol (buffer ready, slot free); default: `per_message`."""
    handover_s: Duration = 0.0
    """Time to hand a message over between device and host; other messages proceed meanwhile."""
    launch_s: Duration = 0.0
    """Time before every operation begins (a collective, or one end of a point-to-point message): its kernel launch."""
    completion_s: Duration = 0.0
    """Time from an operation's last message until its waiter is notified."""
    synchronisation_s: Duration = 0.0
    """Time before an operation for which the host must read counts from the device."""
    registration: RegistrationSpec = RegistrationSpec()
    """Registration of ranks' arrays, for protocols that write into them directly (rendezvous)."""
    sm_cost: Fraction = 0.0
    """Share of a rank's compute speed that is lost while one of its operations is in progress, if the protocol copies
    (staged): its kernels occupy part of the accelerator. Applies under either clock.
    """


RECOVERIES = ("go_back_n", "selective_repeat", "nack", "erasure", "xor")
CONTROLS = ("window", "credits", "aimd", "dcqcn", "swift", "none")
SPRAYS = ("none", "packet")
GO_BACK_N, PACKET = "go_back_n", "packet"
MAX_GROUP_PACKETS = 256

Window = Annotated[int | str, value_types.or_keyword(BDP, value_types.SIZE)]


class ErasureSpec(StrictModel):
    """Packet groups of recoveries erasure and xor. A message ends its last group, whose parity is proportional."""

    data: Annotated[int, integer(1, 255)] = 32
    """Data packets in a full group."""
    parity: Annotated[int, integer(1, 255)] = 8
    """Parity packets in a full group."""

    def checks(self) -> Iterator[Finding]:
        """Check the size of a group: the code has 256 symbols, one per value of a byte."""
        if self.data + self.parity > MAX_GROUP_PACKETS:
            yield Finding(
                ("parity",),
                f"{self.data} + {self.parity}",
                f"at most {MAX_GROUP_PACKETS} packets in a group",
            )


class DatagramSpec(StrictModel):
    """Options of `kind: datagram`."""

    recovery: Annotated[str, choice("a recovery", RECOVERIES)] = "selective_repeat"
    """go_back_n: retransmit everything from a lost packet on. selective_repeat: retransmit a lost packet three round
    trips after it was sent. nack: retransmit a lost packet as soon as a later one arrives. erasure: add parity to each
    group of packets, which repairs any `parity` losses. xor: parity repairs one loss in each of `parity` classes. With
    both, packets that parity cannot repair are retransmitted.
    """
    erasure: ErasureSpec = ErasureSpec()
    """Packet groups of recoveries erasure and xor."""
    control: Annotated[str, choice("a control", CONTROLS)] = "window"
    """Limit of a sender's data in flight. window: a fixed number of bytes, see `window`. credits: packets that the
    receiver grants, to all senders together at the rate of its NIC. aimd: TCP Reno's window. dcqcn: a rate controlled
    by ECN marks. swift: a window controlled by delay. none: as much as the NIC accepts.
    """
    window: Window = BDP
    """Window of control `window`. bdp: 1.25 times the bandwidth-delay product of the idle path."""
    spray: Annotated[str, choice("a spray", SPRAYS)] = "none"
    """packet: packets use `paths` source ports in turn, avoiding those with losses and marks."""
    paths: Annotated[int, integer(2, 64)] = 4
    """Number of source ports to spray over."""

    def checks(self) -> Iterator[Finding]:
        """Check that packets are not sprayed to a receiver that needs them in order."""
        if self.recovery == GO_BACK_N and self.spray == PACKET:
            yield Finding(
                ("spray",),
                f"packet with recovery {GO_BACK_N}",
                "none: its receiver drops packets out of order",
            )


class StagingSpec(StrictModel):
    """Slots of protocol staged."""

    chunk_bytes: Size = 256 * 1024
    """Size of a slot, in real bytes; NCCLX copies 128 to 512 KiB at a time."""
    slots: Annotated[int, integer(1, 4096)] = 8
    """Slots per message; the receiver announces when one is free again."""
    announced: Flag = False
    """Slots are free only once the receiver has posted the receive and announced it, as with NCCL's network plugins;
    default: free from the start.
    """


STRIPE_MODES = ("dqplb", "spray")
MAX_SUBFLOWS = 8  # the kernel's own limit


# distances between two ranks; a striped transport has settings for each
DISTANCES = ("same_rack", "same_zone", "same_building", "same_region", "other_region")


def distance(topology: Topology, one: Host, other: Host) -> str:
    """Return how far apart two hosts are, as one of DISTANCES.

    Hosts of a building without switch tiers have no racks, and a building with one zone has no zones: they are
    `same_building`.
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
    """How messages to peers at one distance are cut into segments and spread over connections."""

    connections: Annotated[int, integer(1, 255)] = 4
    """Connections per pair of ranks."""
    segment_bytes: Size = 512 * 1024
    """Maximum size of a segment, the unit that each connection gets in turn."""
    outstanding: Annotated[int, integer(1, 65_536)] = 128
    """Segments per connection that may await acknowledgement."""
    together: Annotated[int | None, integer(1, 65_536)] = None
    """Segments that may await acknowledgement over all of a rank's connections at this distance; free slots go to the
    peers in turn. Default: only each connection's `outstanding` limits them.
    """
    mode: Annotated[str, choice("a mode", STRIPE_MODES)] = "dqplb"
    """dqplb: segments are numbered, and messages complete in order. spray: segments have no numbers, and the end of
    each message is announced separately.
    """


class StripesSpec(StrictModel):
    """Connections of a striped transport, by the distance between two ranks."""

    same_rack: StripeSpec = StripeSpec(connections=1)
    """Between ranks on one leaf switch."""
    same_zone: StripeSpec | None = None
    """Between ranks in one zone of a building with several; default: as same_building."""
    same_building: StripeSpec = StripeSpec(connections=2)
    """Between ranks in one building."""
    same_region: StripeSpec = StripeSpec()
    """Between buildings of one region."""
    other_region: StripeSpec = StripeSpec(connections=8)
    """Between buildings of different regions."""


_CONGESTION_CONTROL = pattern(
    r"[a-z][a-z0-9_-]{0,14}", "a TCP congestion control by its kernel name, such as cubic or bbr"
)
SOCKET_KEYS = ("congestion_control", "pacing", "buffers")
_MODEL = value_types.registered_name("congestion_controls")


def _parse_models(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping from a congestion control's kernel name to its model")
    return {str(_CONGESTION_CONTROL.parse(name)): str(_MODEL.parse(model)) for name, model in value.items()}


_MODELS = ValueFormat(_parse_models, lambda: {"type": "object", "additionalProperties": _MODEL.json_schema})
_PACING = value_types.or_keyword(PLANNED, value_types.RATE)
_BUFFERS = value_types.or_keyword(BDP, value_types.SIZE)


class SocketsSpec(StrictModel):
    """Socket options of some connections, at both ends. Without dscp and distance: of all connections."""

    dscp: DscpsOrNone = None
    """Only for connections whose packets have this DSCP, or one of a list."""
    distance: Annotated[str | None, choice("a distance", DISTANCES)] = None
    """Only for connections between ranks at this distance; same_building includes ranks in one zone of it."""
    congestion_control: Annotated[str | None, _CONGESTION_CONTROL] = None
    """TCP congestion control, by its kernel name."""
    pacing: Annotated[float | str | None, _PACING] = None
    """Highest rate at which a connection sends (SO_MAX_PACING_RATE). planned: the rate that policy te assigns to it
    between buildings, so that all finish together with the busiest link.
    """
    buffers: Annotated[int | str | None, _BUFFERS] = None
    """Largest window; send and receive buffers are twice as large. bdp: twice the bandwidth-delay product of the idle
    path. Default: the kernel sizes the buffers, up to twice the topology's largest bandwidth-delay product.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that at least one option is set."""
        if all(getattr(self, key) is None for key in SOCKET_KEYS):
            yield Finding((), "nothing", "congestion_control, pacing or buffers")


class RdmaSpec(StrictModel):
    """Reliable connections of transport rdma. Their number is set in `stripes`."""

    ack_timeout_s: Timeout = 0.067
    """Time after which a NIC retransmits unacknowledged packets; after 8 timeouts without a response the peer is lost.
    NICs support 4.096 us times a power of two: 67 ms is the 14th power, NCCL's default is the 20th (4.3 s).
    """
    window_packets: Annotated[int, integer(1, 1 << 23)] = Field(default=1 << 22, alias="window")
    """Packets of 4096 bytes that a queue pair may have in flight. All NICs under one clock have the same value."""


class TransportSpec(StrictModel):
    """How ranks exchange messages."""

    kind: Annotated[str, value_types.registered_name("transports")] = "tcp"
    """tcp: one connection per pair of ranks. striped: several connections, see `stripes`. mptcp: one connection, which
    the kernel spreads over its `subflows`. rdma: like striped, over reliable RDMA connections, see
    docs/reference/rdma.md. datagram: UDP with loss recovery and congestion control in the ranks, see `datagram`. Or
    your own, see docs/how-to/plugins/transports.md.
    """
    options: Annotated[Mapping[str, Any] | None, value_types.OPTIONS] = None
    """Options of your own transport."""
    protocol: Annotated[str, value_types.registered_name("protocols")] = "eager"
    """eager: messages are sent at once. rendezvous: they are sent once their receive is announced, directly into its
    buffer. staged: they are sent in chunks, copied through a window of slots.
    """
    staging: StagingSpec = StagingSpec()
    """Slots of protocol staged."""
    bootstrap: Annotated[str, value_types.registered_name("bootstraps")] = "static"
    """How ranks connect. static: ranks know all addresses. star: all ranks send their addresses to rank 0, which sends
    the list to all; every pair connects. ring_hybrid: addresses are passed around a ring; connections are made on first
    use.
    """
    stripes: StripesSpec = StripesSpec()
    """Connections of transport striped, or queue pairs of transport rdma."""
    rdma: RdmaSpec = RdmaSpec()
    """NIC settings of transport rdma."""
    subflows: Annotated[int, integer(1, MAX_SUBFLOWS)] = 4
    """mptcp: TCP subflows per connection; each has its own path."""
    datagram: DatagramSpec = DatagramSpec()
    """Loss recovery and congestion control of transport datagram."""
    congestion_control: Annotated[str, _CONGESTION_CONTROL] = "cubic"
    """TCP congestion control of connections that have none in `sockets`."""
    congestion_models: Annotated[Mapping[str, str] | None, _MODELS] = None
    """Which model predicts a congestion-control algorithm that the step model does not know by its kernel name: a known
    one, or your own class, see docs/how-to/plugins/congestion-controls.md.
    """
    sockets: tuple[SocketsSpec, ...] = ()
    """Socket options by traffic class and distance. For each option, the first entry that matches a connection and sets
    it wins.
    """
    timeout_s: Timeout = 30.0
    """How long to wait for a peer."""
    software_cost: SoftwareCostSpec = SoftwareCostSpec()
    """Cost of messages in host software, under the virtual clock."""

    def checks(self) -> Iterator[Finding]:
        """Check that options and sockets have only keys that the transport supports."""
        if not self.sockets and self.options is None:
            return
        kinds = registry("transports")
        kind = kinds.get(self.kind)  # None for one from a file, which checks its options itself
        if kind is None:
            return
        if self.options is not None and not kind.known_options:
            yield Finding(("options",), f"options with {self.kind}", "a transport that takes options")
        for position, entry in enumerate(self.sockets):
            for key in SOCKET_KEYS:
                if getattr(entry, key) is not None and key not in kind.socket_keys:
                    supporting = sorted(name for name, one in kinds.items() if key in one.socket_keys)
                    expected = f"it only with {' or '.join(supporting)}"
                    yield Finding(("sockets", position, key), f"{key} with {self.kind}", expected)
