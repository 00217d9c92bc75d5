"""How quickly given traffic can go at best: what its most loaded link needs for the payload. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.controller.policy_view import View
from testbed.spec.buildings import Host
from testbed.spec.links import ETHERNET_HEADER_BYTES
from testbed.spec.topology import Topology


def payload_share(mtu: int) -> float:
    """Of a link's rate, what full packets leave for TCP's payload."""
    frame = mtu + ETHERNET_HEADER_BYTES
    return (frame - PACKET_HEADERS_BYTES) / frame


def bottleneck_s(
    topology: Topology, hosts: Sequence[Host], traffic: Mapping[tuple[int, int], float]
) -> float:
    """Seconds that the most loaded link needs for these payload bytes, per pair of ranks (source, target).

    Links of the NICs, leaves and spines, and between buildings, each direction apart; parallel ones share evenly.
    """
    bits: defaultdict[tuple[str, ...], float] = defaultdict(float)
    rates: dict[tuple[str, ...], float] = {}
    hops = View(topology).next_hops

    def load(link: tuple[str, ...], rate_bps: float, size_bytes: float) -> None:
        bits[link] += 8 * size_bytes
        rates[link] = rate_bps

    for (source, target), size_bytes in traffic.items():
        one, other = hosts[source], hosts[target]
        load((one.name, "sends"), one.nic.rate_bps, size_bytes)
        load((other.name, "receives"), other.nic.rate_bps, size_bytes)
        here, there = topology.building(one.building), topology.building(other.building)
        for host, building, direction in ((one, here, "up"), (other, there, "down")):
            if (clos := building.clos) is None:
                continue
            leaf = building.leaf_of(host)
            far = None if here != there else building.leaf_of(one if host is other else other)
            if far != leaf:
                load(
                    (building.name, f"leaf {leaf}", direction),
                    clos.spines * clos.leaf_uplink.rate_bps,
                    size_bytes,
                )
            zone = leaf // clos.leaves
            if far is None or far // clos.leaves != zone:
                load(
                    (building.name, f"zone {zone}", direction),
                    clos.spines * clos.spine_uplink.rate_bps,
                    size_bytes,
                )
        at = here.name
        while at != there.name:
            onward = hops[at][there.name]
            forth = sum(link.a_to_b.rate_bps for link in topology.wan if (link.a, link.b) == (at, onward))
            back = sum(link.b_to_a.rate_bps for link in topology.wan if (link.b, link.a) == (at, onward))
            load((at, onward), forth + back, size_bytes)
            at = onward
    share = payload_share(topology.mtu)
    return max((count / rates[link] / share for link, count in bits.items()), default=0.0)
