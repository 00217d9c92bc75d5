"""What RoCEv2's packets are on the wire, in bytes."""

from __future__ import annotations

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
