"""Which of equal links a flow takes: Open vSwitch's own figures, so that the in-memory table decides as a switch does.

Facts of its `bundle` action with `symmetric_l3l4+udp` and `hrw` (openvswitch.org, lib/flow.c, lib/bundle.c and
lib/hash.h): words are mixed in as MurmurHash3 does it (Appleby, public domain), each link's number is hashed with the
flow's, and the largest wins (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates").
"""

from __future__ import annotations

from collections.abc import Iterable

TCP, UDP = 6, 17
_WORD = 0xFFFF_FFFF
_TWO_WORDS = 8  # bytes: what hashes of two words end with


def flow_hash(
    source: int, destination: int, ip_proto: int, source_port: int, destination_port: int, basis: int
) -> int:
    """Of addresses and ports as numbers, the same for both directions of a flow."""
    found = _mixed(basis, _as_read(source ^ destination, 4))
    found = _mixed(found, ip_proto)
    if ip_proto in (TCP, UDP):
        found = _mixed(found, _as_read(source_port ^ destination_port, 2))
    return _finished(found ^ basis)


def select_member(numbers: Iterable[int], flow: int) -> int:
    """The one of these numbers, in rising order, that has the highest weight for a flow of this hash."""
    return max(numbers, key=lambda number: _finished(_mixed(_mixed(number, 0), flow) ^ _TWO_WORDS))


def _as_read(value: int, size: int) -> int:
    """A number in network order as a processor of the usual order reads it."""
    return int.from_bytes(value.to_bytes(size, "big"), "little")


def _mixed(found: int, word: int) -> int:
    if word:  # nothing mixed in is no change
        word = _rotated(word * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    return (_rotated(found ^ word, 13) * 5 + 0xE6546B64) & _WORD


def _finished(found: int) -> int:
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    return found ^ found >> 16


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _WORD
