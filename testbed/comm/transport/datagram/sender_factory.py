"""The sending half of a pair, made for a path, a card and a clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.clock import clock_here
from testbed.comm.transport.datagram.controls import CONTROLS, LEAST_PACKETS, Limits
from testbed.comm.transport.datagram.packets import MOST_AHEAD
from testbed.comm.transport.datagram.recoveries import RECOVERIES
from testbed.comm.transport.datagram.round_trips import LATE_PEER_RTO_S, LEAST_RTO_S, RoundTrips
from testbed.comm.transport.datagram.sender import ASK_EVERY, Sender
from testbed.comm.transport.datagram.settings import DatagramSettings

# By the real clock ranks wait for a processor, longer than packets are under way. Of a window of one size what covers
# for that, for all peers together: the shortest queues hold 64 packets.
LATE_HOST_PACKETS = 48
LATE_HOST_S = 0.005  # what they add to a round trip
# and now and then: windows grow by what a card sends meanwhile, as long as nothing is lost
LATE_PEER_S = 0.030


class Route(NamedTuple):
    """What is known of a pair's path. window_bytes: of control `window`. line_bps: of this rank's card.

    path_bps, empty_s: of its narrowest link, and its round trip when nothing else is there; 0, infinite: not known.
    peers: how many ranks there are beside this one.
    """

    window_bytes: int
    line_bps: float
    path_bps: float
    empty_s: float
    peers: int


def sender_for(settings: DatagramSettings, packet_bytes: int, round_trip_s: float, route: Route) -> Sender:
    """A sender of packets of so many bytes, as links count them. round_trip_s: a first guess."""
    window_bytes, line_bps, path_bps, empty_s, peers = route
    exact = clock_here() == "free"
    host_s, least_rto_s, least_packets, late_packets = 0.0, LEAST_RTO_S, LEAST_PACKETS, 0.0
    if not exact:
        host_s, least_rto_s = LATE_HOST_S, LATE_PEER_RTO_S
        least_packets = max(LEAST_PACKETS, LATE_HOST_PACKETS / peers)
        late_packets = min(LATE_PEER_S * line_bps / 8 / packet_bytes, MOST_AHEAD / 8)
    if settings.window_bytes is not None:
        least_packets, late_packets, path_bps = 1.0, 0.0, 0.0
    # a packet is heard of when all that goes with it has left, and takes as long as the empty path at least
    least_rto_s = max(least_rto_s, ASK_EVERY * packet_bytes * 8 / line_bps)
    if empty_s < math.inf:
        round_trip_s = max(round_trip_s, empty_s)
    limits = Limits(
        packet_bytes,
        window_bytes,
        line_bps,
        settings.rate_scale,
        host_s,
        least_packets,
        late_packets,
        path_bps,
        empty_s,
    )
    round_trips = RoundTrips(round_trip_s, least_rto_s)
    kind = RECOVERIES[settings.recovery]
    groups = {} if kind.code is None else {"data": settings.data, "parity": settings.parity}
    return Sender(kind(round_trips, **groups), CONTROLS[settings.control](limits, round_trips))
