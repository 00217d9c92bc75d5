"""A link there and one back, packet by packet, for tests of the connections over it."""

from __future__ import annotations

import heapq
import math
from random import Random

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.paths.congestion import Growth
from testbed.net.paths.congestion.reno import RenoGrowth
from testbed.net.paths.hops import PacketHop, PacketPath
from testbed.prediction.events import Event, EventQueue
from testbed.prediction.packets.links import LinkQueue
from testbed.prediction.packets.sender import Sender

PAYLOAD = 8934
FRAME = PAYLOAD + PACKET_HEADERS_BYTES  # 9000 bytes
RATE_BPS = FRAME * 8 * 10_000.0  # 10,000 full packets a second
PACKET_S = 1e-4


class Clock(EventQueue):
    """Time, and who acts when."""

    def run(self) -> None:
        while self.heap:
            self.now_s, _, action = heapq.heappop(self.heap)
            action()


class Never(Random):
    """Loses those packets of a line, by their number, that it is told of."""

    def __init__(self, *lost: int) -> None:
        super().__init__(0)
        self.lost, self._next = set(lost), 0

    def random(self) -> float:
        self._next += 1
        return 0.0 if self._next - 1 in self.lost else 1.0


class Path:
    """One link there and one back, and the connections over it."""

    def __init__(
        self, delay_s: float, queue_packets: float = math.inf, loss: float = 0.0, draw: Random | None = None
    ) -> None:
        self.clock = Clock()
        self.hop = PacketHop("there", RATE_BPS, delay_s, queue_packets * FRAME, loss)
        self.back = PacketHop("back", RATE_BPS, delay_s, math.inf)
        # a card ten times as quick, whose queue has room for all
        self.card = PacketHop("card", 10 * RATE_BPS, 0.0, math.inf)
        self.line, self.back_line = LinkQueue(self.hop, draw), LinkQueue(self.back, None)

    def sender(self, growth: type[Growth] | None = RenoGrowth) -> Sender:
        path = PacketPath((self.card, self.hop), (self.back,), growth, PAYLOAD)
        lines = [LinkQueue(self.card, None), self.line]
        return Sender(self.clock, path, lines, [self.back_line], math.inf, Random(1))

    def took_s(self, packets: float, growth: type[Growth] | None = RenoGrowth) -> float:
        """Of one message, until all of it is there."""
        there: list[float] = []
        sender = self.sender(growth)
        sender.send(packets * PAYLOAD, Event(), lambda: None, lambda: there.append(self.clock.now_s))
        self.clock.run()
        assert len(there) == 1
        self.retransmitted = sender.retransmitted
        return there[0]
