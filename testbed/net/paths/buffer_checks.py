"""Checks of a topology's buffers: cyclic pause dependencies, and queues below a bandwidth-delay product.

A frame at the head of a paused link's queue occupies buffer space in the upstream switch, which then pauses its own
senders. If packets go from each link of a cycle to the next, all of these links can deadlock: Dally and Seitz 1987; for
PAUSE in data centers, Hu et al. 2016, "Deadlocks in Datacenter Networks: Why Do They Form, and How to Avoid Them".
"""

from __future__ import annotations

import graphlib
import itertools
from collections import defaultdict
from typing import NamedTuple

from testbed.net.controller.policy_view import View
from testbed.spec.topology import Topology

Hop = tuple[str, str]  # (building, next building)


def find_pause_cycle(topology: Topology) -> list[str]:
    """Return the buildings of a pause cycle on the least-delay paths, with the first repeated at the end.

    The list is empty if there is no cycle. Within a building packets go up and then down, so they form no cycle.
    """
    directions = [direction for link in topology.wan for direction in link.directions]
    pausing: set[Hop] = {(here, there) for here, there, direction in directions if direction.pause}
    view = View(topology)
    after: dict[Hop, set[Hop]] = defaultdict(set)
    for here, there in view.pairs():
        for first, second in itertools.pairwise(itertools.pairwise(view.route(here, there))):
            if first in pausing and second in pausing:
                after[first].add(second)
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError as error:
        return [hop[0] for hop in reversed(error.args[1])]
    return []


MIN_BDP_SHARE = 0.99  # tolerates rounding


class ShortQueue(NamedTuple):
    """A direction of a WAN link whose queue is shorter than its bandwidth-delay product, both in bytes."""

    here: str
    there: str
    queue_bytes: int
    bdp_bytes: int


def short_queues(topology: Topology) -> list[ShortQueue]:
    """Return the WAN directions with a queue below their bandwidth-delay product, without duplicates, unscaled."""
    found = [
        ShortQueue(here, there, direction.queue_bytes, round(direction.rate_bps / 8 * link.round_trip_s))
        for link in topology.wan
        for here, there, direction in link.directions
    ]
    return [one for one in dict.fromkeys(found) if one.queue_bytes < MIN_BDP_SHARE * one.bdp_bytes]
