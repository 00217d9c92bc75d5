"""Whether pauses can wait for each other in a circle: buffers that depend on each other, from link to link. Pure.

A frame that stands at the head of a pausing link's queue keeps room in the switch before it, and so stops who sends
there. Where packets go on from each link of a circle to the next, all of them can stand for ever: Dally and Seitz 1987;
of pauses in data centers, Hu et al. 2016, "Deadlocks in Datacenter Networks: Why Do They Form, and How to Avoid Them".
"""

from __future__ import annotations

import graphlib
import itertools

from testbed.net.controller.policy_view import View
from testbed.spec.topology import Topology

Hop = tuple[str, str]  # from a building to the next


def pausing_circle(topology: Topology) -> list[str]:
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
