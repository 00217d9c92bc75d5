"""What a connection was given and has not sent yet: bytes, which go into packets as they leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from testbed.prediction.packets.scoreboard import Packet

Action = Callable[[], None]


class Unsent:
    """In order, as packets that are full but for the last one. full_bytes: of a full one."""

    def __init__(self, full_bytes: int) -> None:
        self._full_bytes, self._given_bytes = full_bytes, 0
        self._packets: deque[Packet] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def is_part(self) -> bool:
        """Whether it is less than a packet."""
        return len(self._packets) == 1 and self._packets[0].size_bytes < self._full_bytes

    def give(self, size_bytes: int, left: Action, come: Action) -> None:
        """A message: its first bytes fill the last packet. left, come: called when it was sent, when it is there."""
        packets, full_bytes, rest = self._packets, self._full_bytes, size_bytes
        packet = packets[-1] if packets else None
        if packet is not None:
            some = min(rest, full_bytes - packet.size_bytes)
            packet.size_bytes += some
            rest -= some
        while rest:
            packet = Packet(self._given_bytes + size_bytes - rest, full_bytes if rest > full_bytes else rest)
            packets.append(packet)
            rest -= packet.size_bytes
        assert packet is not None
        packet.ends = (*packet.ends, come)
        packet.left = (*packet.left, left)
        self._given_bytes += size_bytes

    def take(self, most_bytes: int) -> Packet:
        """The next packet, of as much as goes into it now (`tcp_grow_skb`)."""
        packets = self._packets
        packet = packets.popleft()
        if packet.size_bytes > most_bytes:
            packets.appendleft(packet.cut(most_bytes))
        while packet.size_bytes < most_bytes and packets:
            behind, room_bytes = packets.popleft(), most_bytes - packet.size_bytes
            if behind.size_bytes > room_bytes:
                packets.appendleft(behind.cut(room_bytes))
            packet.size_bytes += behind.size_bytes
            packet.ends, packet.left = (*packet.ends, *behind.ends), (*packet.left, *behind.left)
        return packet
