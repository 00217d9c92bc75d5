"""Wire formats of the RDMA transport: sizes of RoCEv2 packets, UDP ports, immediates, and frames of the fast path.

RoCEv2 packets go to UDP port 4791. Their source port, which ECMP hashes, is chosen per connection.

An immediate is the 32-bit value that comes with each write and each fast message, laid out as in NCCLX. Bits 0 to 23
number a pair's segments, bit 30 marks the fast path, bit 31 the last segment of a message. Bits 24 to 29 say to which
announced receive a segment belongs; NCCLX infers that from the order of its transfers.

A frame is one message on the fast path: a header and an optional payload.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from testbed.comm.transport.reassembly import SEQUENCES

PAYLOADS_BYTES = (4096, 2048, 1024, 512, 256)  # the MTUs of RoCE
HEADERS_BYTES = 14 + 20 + 8 + 12 + 4  # Ethernet, IPv4, UDP, base transport header, ICRC
_ROOM_BYTES = 80  # soft-RoCE reserves this much of an interface's MTU for headers (RXE_MAX_HDR_LENGTH)
# After a go-back, the requester ignores further NAKs until an acknowledgement, which it requests at a message's end and
# once per this many packets (RXE_MAX_PKT_PER_ACK, rxe_comp.c's started_retry).
PACKETS_PER_ACK = 66


def payload_bytes(mtu_bytes: int) -> int:
    """Return the payload of a full packet, on an interface of this MTU."""
    room = mtu_bytes - _ROOM_BYTES
    return next((size for size in PAYLOADS_BYTES if size <= room), PAYLOADS_BYTES[-1])


ROCE_PORT = 4791
FIRST_SOURCE_PORT = 0xC000  # NICs choose the lower 14 bits
SOURCE_PORTS = 1 << 14


def udp_port(port: int) -> int:
    """Return the RoCE source port that stands in for this source port; 0 (any port) stays 0."""
    return FIRST_SOURCE_PORT | (port % SOURCE_PORTS or 1) if port else 0


def flow_label(port: int) -> int:
    """Return the flow label that makes a NIC use the port; 0 lets the NIC choose."""
    return port - FIRST_SOURCE_PORT if port else 0


SLOTS = 1 << 6  # maximum of concurrently announced receives of a pair
_SLOT_BIT, _FAST, _NOTIFY = 24, 1 << 30, 1 << 31


class Immediate(NamedTuple):
    """The fields of an immediate."""

    sequence: int = 0
    slot: int = 0
    fast: bool = False
    notify: bool = False


def pack_immediate(immediate: Immediate) -> int:
    """Return the immediate as a number of 32 bits. Raises ValueError if a field is out of range."""
    sequence, slot, fast, notify = immediate
    if not (0 <= sequence < SEQUENCES and 0 <= slot < SLOTS):
        raise ValueError(f"immediate: got {immediate}, expected a sequence below 2**24, a slot below {SLOTS}")
    return sequence | slot << _SLOT_BIT | fast * _FAST | notify * _NOTIFY


def unpack_immediate(value: int) -> Immediate:
    """Return the inverse of `pack_immediate`."""
    slot = value >> _SLOT_BIT & SLOTS - 1
    return Immediate(value & SEQUENCES - 1, slot, bool(value & _FAST), bool(value & _NOTIFY))


HEADER = struct.Struct("<BxHIQQQI")
MESSAGE, ANNOUNCE, ASK, REFUSE, DISCARD = 1, 2, 3, 4, 5


class Frame(NamedTuple):
    """A frame header.

    - MESSAGE: a whole message with `tag`; its payload follows.
    - ANNOUNCE: a posted receive for `tag` and `length` bytes, to be written to `address` with `key` as slot `slot`.
    - ASK: a message with `tag` and `length` is waiting for a matching receive.
    - REFUSE: the message for `slot` has a different length, given in `length`.
    - DISCARD: the message with `tag` announced by an ASK is not wanted.

    `announced` is the number of receives that the sender of a MESSAGE or ASK knows of. In an ANNOUNCE, it is the
    receive's own number.
    """

    kind: int
    slot: int = 0
    announced: int = 0
    tag: int = 0
    length: int = 0
    address: int = 0
    key: int = 0


def pack_frame(frame: Frame) -> bytes:
    """Return the encoded header."""
    return HEADER.pack(*frame)


def unpack_frame(data: memoryview) -> Frame:
    """Return the inverse of `pack_frame`. Raises ValueError if it is invalid."""
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, expected a header of {HEADER.size}")
    frame = Frame(*HEADER.unpack_from(data))
    if not MESSAGE <= frame.kind <= DISCARD:
        raise ValueError(f"a frame of kind {frame.kind}")
    return frame
