"""Ethernet frames with IPv4 in them: the congestion mark."""

from __future__ import annotations

_IPV4 = b"\x08\x00"
_CONGESTION_EXPERIENCED = 3


def marked(frame: bytes) -> tuple[bytes, bool]:
    """The frame with Congestion Experienced (RFC 3168) if it is ECN-capable IPv4, and whether that changed it."""
    if frame[12:14] != _IPV4 or len(frame) < 34 or frame[15] & 3 in (0, _CONGESTION_EXPERIENCED):
        return frame, False
    changed = bytearray(frame)
    changed[15] |= _CONGESTION_EXPERIENCED
    # RFC 1624: the checksum moves by what the first word of the header moved, in one's complement
    total = (~int.from_bytes(frame[24:26], "big") & 0xFFFF) + (~_word(frame) & 0xFFFF) + _word(changed)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed), True


def _word(frame: bytes | bytearray) -> int:
    return int.from_bytes(frame[14:16], "big")
