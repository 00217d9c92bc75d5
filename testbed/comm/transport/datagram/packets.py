"""Packet formats of a datagram pair. Little-endian; packet numbers and serials count from 0 and never wrap.

All packets carry the pair's `secret`, which the ends exchange over their control connection. Anything else that
arrives at the port is dropped. A `number` counts a pair's data packets, and is the same when a packet is resent. A
`serial` counts transmissions on one path, and is new each time. So a packet is lost if it has not arrived when a later
serial of its path has, whatever other paths do.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# kind, flags, path, secret, serial, message, first or only number, tag, offset in the message, size of the message
DATA = struct.Struct("<BBHIIIQQQQ")
WORDS = DATA.size // 8  # 8-byte words, for vectorised packing
# follows DATA in a parity packet: the number of the group's data packets, of its parity packets, and of this one
PARITY = struct.Struct("<BBBx")
HEADER_ROOM = DATA.size + PARITY.size
# kind, flags, path, secret, latest serial, packets received, packets marked, number below which all have arrived
ACK = struct.Struct("<BBHIIIIQ")
# kind, flags, path, secret, packets requested or granted since the start
CREDIT = struct.Struct("<BBHIQ")

DATA_KIND, PARITY_KIND, ACK_KIND, WANTED_KIND, GRANTED_KIND = 1, 2, 3, 4, 5
ACK_REQUESTED = 1  # flag of data and parity packets: acknowledge at once
NAK = 1  # flag of acknowledgements: a packet was out of order and was dropped

# IPv4 and UDP; Ethernet, as links count it
UDP_HEADERS_BYTES, ETHERNET_HEADER_BYTES = 28, 14
MAX_PATHS = 256
# limit on how far received numbers are ahead of the first missing one: an acknowledgement has a bit for each
MAX_AHEAD = 8192


class Data(NamedTuple):
    """The header of a data packet or, with the number of its group's first packet, of a parity packet."""

    kind: int
    flags: int
    path: int
    secret: int
    serial: int
    message: int
    number: int
    tag: int
    offset: int
    total: int


class Ack(NamedTuple):
    """An acknowledgement: what the receiver has seen on one path, and which of the pair's packets have arrived.

    Attributes:
        path: The path.
        latest_serial: The latest serial that arrived on it.
        received: The number of packets that arrived on it.
        marked: The number of these packets with an ECN mark.
        low: All numbers below have arrived.
        bits: Bit i is set if number low + i has arrived.
        nak: See NAK.
    """

    path: int
    latest_serial: int
    received: int
    marked: int
    low: int
    bits: int
    nak: bool = False

    def pack(self, secret: int) -> bytes:
        """Return the packet."""
        flags = NAK if self.nak else 0
        head = ACK.pack(
            ACK_KIND, flags, self.path, secret, self.latest_serial, self.received, self.marked, self.low
        )
        return head + self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")


def unpack_ack(packet: memoryview) -> Ack:
    """Return the inverse of Ack.pack, for a packet of sufficient size. Kind and secret are checked by the caller."""
    _, flags, path, _, latest_serial, received, marked, low = ACK.unpack_from(packet)
    bits = int.from_bytes(packet[ACK.size : ACK.size + MAX_AHEAD // 8], "little")
    return Ack(path, latest_serial, received, marked, low, bits, bool(flags & NAK))
