"""What each packet of a connection goes through, hop by hop, there and back, and what its TCP is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.paths.congestion import Growth
from testbed.net.paths.hops import Hop
from testbed.spec.link_direction import QueueClass


class PacketHop(NamedTuple):
    """One direction of a link, or of a cable. rate_bps: of frames; loss: share of them, 0 to 1.

    held: whether it has all of a frame before it passes it on; early_s: what it takes if not. classes: that have queues
    of their own in front, as long as that each; number: of these the connection's.
    """

    name: str
    rate_bps: float
    delay_s: float
    queue_bytes: float
    loss: float = 0.0
    held: bool = True
    early_s: float = 0.0
    classes: tuple[QueueClass, ...] = ()
    number: int = 0


class PacketPath(NamedTuple):
    """Of one connection, in one direction. growth: of its congestion control; None: BBR.

    payload_bytes: of a full packet. window_bytes: that its sockets have at the most. back: what acknowledgements take.
    stripes: how messages are dealt out to it and others.
    """

    hops: tuple[PacketHop, ...]
    back: tuple[PacketHop, ...]
    growth: type[Growth] | None
    payload_bytes: int
    window_bytes: float = math.inf
    stripes: StripeSettings | None = None

    @property
    def frame_bytes(self) -> int:
        """Of a full packet on the wire."""
        return self.payload_bytes + PACKET_HEADERS_BYTES


def is_plain(hops: Sequence[Hop]) -> bool:
    """Whether all that happens to packets on links is known here: they wait, are dropped or lost, one by one."""
    directions = [direction for hop in hops for direction in hop.links]
    return not any(
        own.pause or own.jitter_s or own.loss_bursts or own.duplicate or own.reorder or own.corrupt
        for own in directions
    )


def packet_hops(hops: Sequence[Hop]) -> tuple[PacketHop, ...]:
    """Of a path's, of one link each. What a host's own card cannot send yet waits in the host's memory."""
    found = []
    for place, hop in enumerate(hops):
        (direction,) = hop.links
        queue_bytes = float(direction.queue_bytes) if place and not direction.queue_packets else math.inf
        found.append(
            PacketHop(
                hop.name,
                direction.rate_bps,
                direction.delay_s,
                queue_bytes,
                direction.mean_loss,
                hop.held,
                hop.early_s,
            )
        )
    return tuple(found)
