"""The 32 bits that come with each write and each fast message, after NCCLX's.

Bits 0 to 23 number a pair's segments through, bit 30 marks the fast path, bit 31 the last segment of a message. Between
them stands which of its announced receives a segment is of: NCCLX knows that by the order of its transfers.
"""

from __future__ import annotations

from typing import NamedTuple

from testbed.comm.transport.segment_order import SEQUENCES

SLOTS = 1 << 6  # of a pair's receives that are announced at one time
_SLOT_BIT, _FAST, _NOTIFY = 24, 1 << 30, 1 << 31


class Immediate(NamedTuple):
    """What they say."""

    sequence: int = 0
    slot: int = 0
    fast: bool = False
    notify: bool = False


def pack(immediate: Immediate) -> int:
    """As a number of 32 bits. ValueError for what they cannot say."""
    sequence, slot, fast, notify = immediate
    if not (0 <= sequence < SEQUENCES and 0 <= slot < SLOTS):
        raise ValueError(f"immediate: got {immediate}, expected a sequence below 2**24, a slot below {SLOTS}")
    return sequence | slot << _SLOT_BIT | fast * _FAST | notify * _NOTIFY


def unpack(value: int) -> Immediate:
    """The inverse."""
    slot = value >> _SLOT_BIT & SLOTS - 1
    return Immediate(value & SEQUENCES - 1, slot, bool(value & _FAST), bool(value & _NOTIFY))
