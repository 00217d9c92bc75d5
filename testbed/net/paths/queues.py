"""Queues that are too short for what is under way: where windows open they overflow, of which a fluid knows nothing."""

from __future__ import annotations

from typing import NamedTuple

from testbed.spec.topology import Topology

ENOUGH = 0.99  # of a round trip's bytes; rounding is no shortage


class ShortQueue(NamedTuple):
    """A direction of a link between buildings, what its queue holds, and what is under way on it in a round trip."""

    here: str
    there: str
    queue_bytes: int
    under_way_bytes: int


def short_queues(topology: Topology) -> list[ShortQueue]:
    """Those that hold less than a round trip of bytes, alike ones once; figures as in `topology`."""
    found = [
        ShortQueue(here, there, direction.queue_bytes, round(direction.rate_bps / 8 * link.round_trip_s))
        for link in topology.wan
        for here, there, direction in link.ways
    ]
    return [one for one in dict.fromkeys(found) if one.queue_bytes < ENOUGH * one.under_way_bytes]
