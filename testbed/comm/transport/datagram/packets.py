"""Packets of a datagram pair as bytes. Little-endian; numbers of packets and of sendings count from 0 and never wrap.

All carry the pair's `secret`, which its ends told each other over their connection: whatever else comes to the port is
dropped. A `number` counts a pair's packets of data, the same when one is sent again; a `serial` counts what was sent
on one path, each time anew, so that what has not come when a later serial has is lost, whatever other paths do.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# kind, flags, path, secret, serial, message, first or only number, tag, offset in the message, size of the message
DATA = struct.Struct("<BBHIIIQQQQ")
WORDS = DATA.size // 8  # of eight bytes each, for many packets at once
# after DATA of a packet of parity: data packets in the group, parity packets, which of them
PARITY = struct.Struct("<BBBx")
HEADER_ROOM = DATA.size + PARITY.size
# kind, flags, path, secret, serial heard last, packets come, packets marked, number below which all have come
ACK = struct.Struct("<BBHIIIIQ")
# kind, flags, path, secret, packets: wanted in all by a sender, or granted in all to one
CREDIT = struct.Struct("<BBHIQ")

DATA_KIND, PARITY_KIND, ACK_KIND, WANTED_KIND, GRANTED_KIND = 1, 2, 3, 4, 5
ACK_REQUESTED = 1  # a flag of data and parity: acknowledge at once
NAK = 1  # a flag of an acknowledgement: what came was not the next, and is dropped

# in IPv4 and UDP, and the Ethernet header that links count
UDP_HEADERS_BYTES, ETHERNET_HEADER_BYTES = 28, 14
MAX_PATHS = 256
# numbers that may be known to have come above one that has not, at most: an acknowledgement has a bit for each
MAX_AHEAD = 8192


class Data(NamedTuple):
    """The header of a packet of data, or, with the number of its group's first packet, of parity."""

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
    """What a receiver says: of one path how much it has seen there, of the pair which packets have come.

    heard: the latest serial. low: all numbers below have come; bits: bit i for low + i. refuses: see REFUSES.
    """

    path: int
    heard: int
    came: int
    marked: int
    low: int
    bits: int
    refuses: bool = False

    def pack(self, secret: int) -> bytes:
        """As bytes."""
        flags = NAK if self.refuses else 0
        head = ACK.pack(ACK_KIND, flags, self.path, secret, self.heard, self.came, self.marked, self.low)
        return head + self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")


def unpack_ack(packet: memoryview) -> Ack:
    """The inverse of Ack.pack, of a packet long enough. Its kind and secret have been looked at."""
    _, flags, path, _, heard, came, marked, low = ACK.unpack_from(packet)
    bits = int.from_bytes(packet[ACK.size : ACK.size + MAX_AHEAD // 8], "little")
    return Ack(path, heard, came, marked, low, bits, bool(flags & NAK))
