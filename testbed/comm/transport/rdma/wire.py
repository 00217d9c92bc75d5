"""What RoCEv2's packets are on the wire, in bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from testbed.comm.transport.reassembly import SEQUENCES

PAYLOADS_BYTES = (4096, 2048, 1024, 512, 256)  # that cards know
HEADERS_BYTES = 14 + 20 + 8 + 12 + 4  # Ethernet, IPv4, UDP, transport header, its checksum
_ROOM_BYTES = 80  # that soft-RoCE leaves of an interface's MTU for the longest headers (RXE_MAX_HDR_LENGTH)
# after going back the requester goes by no second word of a hole until something is acknowledged, which the responder
# is asked to do at a message's end and once in so many packets (RXE_MAX_PKT_PER_ACK, rxe_comp.c's started_retry)
PACKETS_PER_ACK = 66


def payload_bytes(mtu_bytes: int) -> int:
    """Of a full packet, on an interface of this MTU."""
    room = mtu_bytes - _ROOM_BYTES
    return next((size for size in PAYLOADS_BYTES if size <= room), PAYLOADS_BYTES[-1])


ROCE_PORT = 4791
FIRST_SOURCE_PORT = 0xC000  # what cards choose from: the upper 14 bits' worth
SOURCE_PORTS = 1 << 14


def udp_port(port: int) -> int:
    """The one that stands for a connection that would otherwise come from this port; 0, any, stays 0."""
    return FIRST_SOURCE_PORT | (port % SOURCE_PORTS or 1) if port else 0


def flow_label(port: int) -> int:
    """By which a card is told the port; 0 leaves it the choice."""
    return port - FIRST_SOURCE_PORT if port else 0


SLOTS = 1 << 6  # of a pair's receives that are announced at one time
_SLOT_BIT, _FAST, _NOTIFY = 24, 1 << 30, 1 << 31


class Immediate(NamedTuple):
    """What they say."""

    sequence: int = 0
    slot: int = 0
    fast: bool = False
    notify: bool = False


def pack_immediate(immediate: Immediate) -> int:
    """As a number of 32 bits. ValueError for what they cannot say."""
    sequence, slot, fast, notify = immediate
    if not (0 <= sequence < SEQUENCES and 0 <= slot < SLOTS):
        raise ValueError(f"immediate: got {immediate}, expected a sequence below 2**24, a slot below {SLOTS}")
    return sequence | slot << _SLOT_BIT | fast * _FAST | notify * _NOTIFY


def unpack_immediate(value: int) -> Immediate:
    """The inverse."""
    slot = value >> _SLOT_BIT & SLOTS - 1
    return Immediate(value & SEQUENCES - 1, slot, bool(value & _FAST), bool(value & _NOTIFY))


HEADER = struct.Struct("<BxHIQQQI")
MESSAGE, ANNOUNCE, ASK, REFUSE, DISCARD = 1, 2, 3, 4, 5


class Frame(NamedTuple):
    """A header.

    MESSAGE: a message of `tag`, whole; its payload follows. ANNOUNCE: a receive of `tag` for `length` bytes, to be
    written to `address` by `key` as slot `slot`. ASK: a message of `tag` and `length` waits for its receive. REFUSE:
    for `slot` there is a message of another `length`. DISCARD: the message of `tag` that was asked for is not wanted.
    announced: how many receives the sender of a MESSAGE or ASK has been told of so far; of an ANNOUNCE its number.
    """

    kind: int
    slot: int = 0
    announced: int = 0
    tag: int = 0
    length: int = 0
    address: int = 0
    key: int = 0


def pack_frame(frame: Frame) -> bytes:
    """As it goes out."""
    return HEADER.pack(*frame)


def unpack_frame(data: memoryview) -> Frame:
    """The inverse. ValueError for what is none."""
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, expected a header of {HEADER.size}")
    frame = Frame(*HEADER.unpack_from(data))
    if not MESSAGE <= frame.kind <= DISCARD:
        raise ValueError(f"a frame of kind {frame.kind}")
    return frame
