"""What peers say to each other on the fast path, each in one message of its own: a header, and a payload or none."""

from __future__ import annotations

import struct
from typing import NamedTuple

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


def pack(frame: Frame) -> bytes:
    """As it goes out."""
    return HEADER.pack(*frame)


def unpack(data: memoryview) -> Frame:
    """The inverse. ValueError for what is none."""
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, expected a header of {HEADER.size}")
    frame = Frame(*HEADER.unpack_from(data))
    if not MESSAGE <= frame.kind <= DISCARD:
        raise ValueError(f"a frame of kind {frame.kind}")
    return frame
