"""Open vSwitch's ECMP hash, so that the table simulator picks the same link for a flow as a real switch.

It follows the `bundle` action with `symmetric_l3l4+udp` and `hrw` (openvswitch.org, lib/flow.c, lib/bundle.c and
lib/hash.h). Words are mixed in as in MurmurHash3 (Appleby, public domain). Each member's index is hashed with the
flow hash, and the largest wins (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates").
"""

from __future__ import annotations

from collections.abc import Iterable

TCP, UDP = 6, 17
_WORD_MASK = 0xFFFF_FFFF
_TWO_WORDS = 8  # bytes: the length that hashes of two words are finalized with


def flow_hash(
    source: int, destination: int, ip_proto: int, source_port: int, destination_port: int, basis: int
) -> int:
    """Hash addresses and ports, given as integers; both directions of a flow have the same hash."""
    value = _mix(basis, _swap_bytes(source ^ destination, 4))
    value = _mix(value, ip_proto)
    if ip_proto in (TCP, UDP):
        value = _mix(value, _swap_bytes(source_port ^ destination_port, 2))
    return _finalize(value ^ basis)


def select_member(members: Iterable[int], flow: int) -> int:
    """Return the member index with the highest random weight for a flow hash; indices must be in ascending order."""
    return max(members, key=lambda member: _finalize(_mix(_mix(member, 0), flow) ^ _TWO_WORDS))


def _swap_bytes(value: int, size: int) -> int:
    """Read a big-endian integer as a little-endian CPU does."""
    return int.from_bytes(value.to_bytes(size, "big"), "little")


def _mix(value: int, word: int) -> int:
    word = _rotate_left(word * 0xCC9E2D51 & _WORD_MASK, 15) * 0x1B873593 & _WORD_MASK
    return (_rotate_left(value ^ word, 13) * 5 + 0xE6546B64) & _WORD_MASK


def _finalize(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD_MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD_MASK
    return value ^ value >> 16


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD_MASK
