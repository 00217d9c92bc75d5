"""What RoCEv2's reliable connections get of a line, in closed form: headers, a window, losses mended by going back.

A lost packet is told of by the one after it; until word of that has come all that was sent behind it is thrown away.
That is go-back-N with a window as long as the path (Bertsekas, Gallager: Data Networks, 2nd edition, section 2.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.comm.transport.rdma.wire import HEADERS_BYTES, PAYLOADS_BYTES

PACKET_BYTES = PAYLOADS_BYTES[0]  # of payload
# more in a write's first packet, and in the last of one with an immediate
WRITE_BYTES, IMMEDIATE_BYTES = 16, 4


def wire_bytes(segment_bytes: int) -> int:
    """What a write of so many bytes, with an immediate, takes on the wire."""
    packets = max(1, math.ceil(segment_bytes / PACKET_BYTES))
    return segment_bytes + packets * HEADERS_BYTES + WRITE_BYTES + IMMEDIATE_BYTES


@dataclass(frozen=True)
class ReliablePath:
    """An idle path, and how a card deals with it.

    rate_bps: of its slowest link. round_trip_s: of a full packet and its acknowledgement. loss: share of packets, on
    the way there. window_packets: that may be under way.
    """

    rate_bps: float
    round_trip_s: float
    loss: float = 0.0
    window_packets: int = 1 << 22

    def goodput_bps(self, segment_bytes: int) -> float:
        """Of writes of so many bytes, one after the other, without end."""
        packet_s = 8 * (PACKET_BYTES + HEADERS_BYTES) / self.rate_bps
        line_bps = self.rate_bps * segment_bytes / wire_bytes(segment_bytes)
        on_the_way = self.round_trip_s / packet_s
        windowed = min(1.0, self.window_packets / max(1.0, on_the_way))
        thrown_away = self.loss * min(on_the_way, self.window_packets)
        return line_bps * windowed * (1 - self.loss) / (1 - self.loss + thrown_away)
