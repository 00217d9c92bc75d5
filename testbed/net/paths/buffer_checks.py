"""Checks of a topology's buffers: cyclic pause dependencies, queues below a bandwidth-delay product.

A frame that stands at the head of a pausing link's queue keeps room in the switch before it, and so stops who sends
there. Where packets go on from each link of a circle to the next, all of them can stand for ever: Dally and Seitz 1987;
of pauses in data centers, Hu et al. 2016, "Deadlocks in Datacenter Networks: Why Do They Form, and How to Avoid Them".
"""

from __future__ import annotations

import graphlib
import itertools
from typing import NamedTuple

from testbed.net.controller.policy_view import View
from testbed.spec.topology import Topology

Hop = tuple[str, str]  # from a building to the next


def find_pause_cycle(topology: Topology) -> list[str]:
    """The buildings of such a circle on the paths of least delay, the first one last again; none where there is none.

    Inside a building packets go up and then down, which makes no circle.
    """
    ways = [way for link in topology.wan for way in link.ways]
    pausing: set[Hop] = {(here, there) for here, there, direction in ways if direction.pause}
    view = View(topology)
    after: dict[Hop, set[Hop]] = {}
    for here, there in view.pairs():
        route = view.route(here, there)
        hops = list(itertools.pairwise(route))
        for first, second in itertools.pairwise(hops):
            if first in pausing and second in pausing:
                after.setdefault(first, set()).add(second)
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError as error:
        return [hop[0] for hop in reversed(error.args[1])]
    return []


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
