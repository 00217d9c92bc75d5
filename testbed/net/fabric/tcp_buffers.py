"""How much TCP may hold at each end of a connection: what a host's namespace is set to, and a model has to know."""

from __future__ import annotations

import math

from testbed.spec.buildings import Building
from testbed.spec.topology import Topology
from testbed.spec.wan_links import ETHERNET_HEADER_BYTES

LINUX_RECEIVE_BUFFER_BYTES, LINUX_SEND_BUFFER_BYTES = 6 << 20, 4 << 20
IN_CARD_BYTES = 1 << 20  # of one connection, at the most
LARGEST_BUFFER_BYTES = 1 << 30  # TCP's largest window


def buffer_sysctls(topology: Topology) -> dict[str, str]:
    """How far TCP may widen its buffers.

    A receive buffer has its largest size from the start: Linux would widen it by what was read in one round trip, which
    newer versions count in microseconds and without what waits. Where acknowledgements queue behind data on a short
    path, a window then stays a third too small (6.12 and 7.3; not 6.1, where this makes no difference).
    """
    received = _receive_buffer_bytes(topology)
    return {
        "net.ipv4.tcp_rmem": f"4096 {received} {received}",
        "net.ipv4.tcp_wmem": f"4096 16384 {send_buffer_bytes(topology)}",
        # how much of one connection may wait in its card: Linux's own up to 6.17, then four times as much
        "net.ipv4.tcp_limit_output_bytes": str(IN_CARD_BYTES),
    }


def _receive_buffer_bytes(topology: Topology) -> int:
    return max(LINUX_RECEIVE_BUFFER_BYTES, _wanted_bytes(topology))


def receive_window_bytes(topology: Topology) -> int:
    """Payload that a receiver lets be under way: packets count with all of their memory, about twice that."""
    return _receive_buffer_bytes(topology) // 2


def send_buffer_bytes(topology: Topology) -> int:
    """Of a connection, at the most: what is in it was sent, as its sender sees it."""
    return max(LINUX_SEND_BUFFER_BYTES, _wanted_bytes(topology))


def _wanted_bytes(topology: Topology) -> int:
    """Twice the largest bandwidth-delay product.

    The window of one connection must cover rate x round trip of its path and a frame in each switch on it, which
    has all of that before it sends any; and the kernel counts a packet's whole memory against a receive buffer, up to
    twice its payload.
    """
    rate_bps = max(host.nic.rate_bps for host in topology.hosts)
    round_trip_s = max((link.round_trip_s for link in topology.wan), default=0.0)
    farthest = max(1, len(topology.buildings) // 2)  # the way round a ring of buildings
    round_trip_s *= farthest
    round_trip_s += 4 * max(_delay_inside_s(building) for building in topology.populated)
    tiers = 6 if any(building.clos for building in topology.buildings) else 2
    frames = (tiers + farthest) * (topology.mtu + ETHERNET_HEADER_BYTES)
    return min(LARGEST_BUFFER_BYTES, math.ceil(4 * (rate_bps / 8 * round_trip_s + frames)))


def _delay_inside_s(building: Building) -> float:
    """From a host up to its building's edge."""
    tiers = (building.clos.leaf_uplink, building.clos.spine_uplink) if building.clos else ()
    return max(host.nic.delay_s for host in building.hosts) + sum(link.delay_s for link in tiers)
