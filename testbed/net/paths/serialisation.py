"""What frames wait for beside delays: a hop that stores and forwards has all of a frame before it passes it on. Pure.

Packets of a message follow each other through all hops at once, so only the slowest takes its time for every byte, each
other one for a frame. A packet replay is what it is held against in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES


@dataclass(frozen=True)
class Serialisation:
    """The hops of a path that hold frames. byte_s: seconds per byte on the wire of each, in their order.

    packet_bytes: payload of a full packet.
    """

    byte_s: tuple[float, ...] = ()
    packet_bytes: int = 1

    def whole_s(self, size_bytes: float) -> float:
        """From when a message's first frame begins to leave until all of it has come, but for delays."""
        return _whole_s(self.byte_s, self.packet_bytes, size_bytes)

    def beyond_s(self, size_bytes: float) -> float:
        """What of that is more than the message's bytes at the slowest hop, a full packet's share of headers each."""
        if not self.byte_s:
            return 0.0
        frames = size_bytes * (1 + PACKET_HEADERS_BYTES / self.packet_bytes)
        return max(0.0, self.whole_s(size_bytes) - frames * max(self.byte_s))


NOTHING_HELD = Serialisation()


@lru_cache(maxsize=1 << 12)
def serialisation_of(
    rates_bps: tuple[float, ...], held: tuple[bool, ...], packet_bytes: int
) -> Serialisation:
    """Of a path over hops of these rates, of which those hold frames; the slowest takes its time in any case.

    A frame that a hop sends on while it comes in, to a hop no quicker, is there when it would have been without it.
    """
    slowest = min(range(len(held)), key=lambda hop: (rates_bps[hop], not held[hop]))
    kept = [rate for hop, rate in enumerate(rates_bps) if held[hop] or hop == slowest]
    return Serialisation(tuple(8 / rate for rate in kept), packet_bytes)


@lru_cache(maxsize=1 << 16)
def _whole_s(byte_s: tuple[float, ...], packet_bytes: int, size_bytes: float) -> float:
    """The longest path through all frames and hops, each frame after the one before it and after its own hop before.

    All but the last frame are full: n of them are through the first hops when one has been through each and the others
    through the slowest of those. The last one follows them from some hop on.
    """
    packets = max(1, math.ceil(size_bytes / packet_bytes))
    last_bytes = size_bytes - (packets - 1) * packet_bytes + PACKET_HEADERS_BYTES
    rest = sum(byte_s)
    if packets == 1:
        return last_bytes * rest
    full_bytes = packet_bytes + PACKET_HEADERS_BYTES
    latest_s = come = slowest = 0.0
    for own in byte_s:
        come += own
        slowest = max(slowest, own)
        full_s = full_bytes * (come + (packets - 2) * slowest)
        latest_s = max(latest_s, full_s + last_bytes * rest)
        rest -= own
    return latest_s
