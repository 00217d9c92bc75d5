"""How ranks talk to each other, as a scenario says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from testbed.config.buildings import Host
from testbed.config.forms import Duration, Size, Timeout, choice, pattern, whole
from testbed.config.model import Strict
from testbed.config.topology import Topology

KINDS = ("tcp", "striped", "mptcp")
PROTOCOLS = ("eager", "rendezvous", "staged")
BOOTSTRAPS = ("static", "star", "ring_hybrid")
STRIPE_MODES = ("dqplb", "spray")


class SoftwareCostSpec(Strict):
    """What messages cost the software of a real host, paid at both ends under the virtual clock only.

    There computing takes no time of its own; under the real clock the ranks' own software costs what it costs.
    The defaults: half of the 9.6 us that NCCL's own tuning model gives for one hop of a ring over a network with its
    Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`), and one copy at 450 GB/s (NVLink of an H100).
    """

    per_message_s: Duration = Field(
        default=4.8e-6, alias="per_message", description="For every message, whatever its size."
    )
    per_gigabyte_s: Duration = Field(
        default=2.2e-3, alias="per_gigabyte", description="For every 10^9 real bytes of a message."
    )


# how far apart two ranks may be, and what a striped transport goes by
DISTANCES = ("same_rack", "same_building", "same_region", "other_region")


def distance(topology: Topology, one: Host, other: Host) -> str:
    """One of DISTANCES. Hosts of a building without tiers of switches have no racks: they share a building."""
    here, there = topology.building(one.building), topology.building(other.building)
    if here != there:
        return "same_region" if here.region == there.region else "other_region"
    if here.clos is None:
        return "same_building"
    first = here.hosts[0].index
    racks = {(host.index - first) // here.hosts_per_leaf for host in (one, other)}
    return "same_rack" if len(racks) == 1 else "same_building"


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
    mode: Annotated[str, choice("a mode", STRIPE_MODES)] = Field(
        default="dqplb",
        description="dqplb: segments are numbered through, messages end in their order. spray: they are not, and each "
        "message's end is announced apart.",
    )


class StripesSpec(Strict):
    """Connections of a striped transport, by how far apart two ranks are."""

    same_rack: StripeSpec = Field(default=StripeSpec(connections=1), description="On one leaf switch.")
    same_building: StripeSpec = Field(default=StripeSpec(connections=2), description="In one building.")
    same_region: StripeSpec = Field(default=StripeSpec(), description="In buildings of one region.")
    other_region: StripeSpec = Field(
        default=StripeSpec(connections=8), description="In buildings of different regions."
    )


class TransportSpec(Strict):
    """How ranks talk to each other."""

    kind: Annotated[str, choice("a transport", KINDS)] = Field(
        default="tcp",
        description="tcp: one connection per pair of ranks. striped: several, as `stripes` says. mptcp: one, which the "
        "kernel may spread over several ways.",
    )
    protocol: Annotated[str, choice("a protocol", PROTOCOLS)] = Field(
        default="eager",
        description="eager: messages go out at once. rendezvous: when their receive was announced, straight into it. "
        "staged: in chunks, copied through a window of slots.",
    )
    bootstrap: Annotated[str, choice("a bootstrap", BOOTSTRAPS)] = Field(
        default="static",
        description="static: ranks are told all addresses. star: all tell rank 0, which tells all, and everybody "
        "connects to everybody. ring_hybrid: addresses go round a ring, connections are made when used.",
    )
    stripes: StripesSpec = Field(default=StripesSpec(), description="Connections of a striped transport.")
    congestion_control: Annotated[
        str,
        pattern(
            r"[a-z][a-z0-9_-]{0,14}", "a TCP congestion control by its kernel name, such as cubic or bbr"
        ),
    ] = Field(default="cubic", description="TCP congestion control of every connection.")
    timeout_s: Timeout = Field(default=30.0, alias="timeout", description="How long to wait for a peer.")
    software_cost: SoftwareCostSpec = Field(
        default=SoftwareCostSpec(), description="What messages cost their hosts under the virtual clock."
    )
