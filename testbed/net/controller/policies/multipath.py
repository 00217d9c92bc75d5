"""Policies that spread traffic over the parallel links to the next building."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.net.controller.policies.base import (
    POLICIES,
    LinkPolicy,
    Policy,
    Route,
    by_rate,
    nearest,
    spread_round_robin,
)
from testbed.net.controller.policy_view import LinkEnd, View, both_ways


@POLICIES.register("shortest")
class Shortest(LinkPolicy):
    """All traffic on the link of least delay, on the lowest plane among equals."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """The nearest link on the lowest plane."""
        return nearest(ends)[:1]


@POLICIES.register("ecmp")
class Ecmp(LinkPolicy):
    """Flows spread over all links of least delay, by a hash of their 5-tuple."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """All links of least delay."""
        return nearest(ends)


@POLICIES.register("wcmp")
class Wcmp(LinkPolicy):
    """As ecmp, but a link with twice the rate gets twice the flows."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """All that are as near, by their rates."""
        return by_rate(nearest(ends))


@POLICIES.register("qp_aware")
class QpAware(Policy):
    """Every connection has a plane of its own: those of a pair of hosts, and the pairs, are dealt out in turn.

    The idea of E-ECMP, which puts the number of the queue pair into the hash, without the hash's luck. Packets that
    belong to no declared connection go as with ecmp.
    """

    finds_paths = True
    goes_by_sizes = False

    def routes(self, view: View) -> Iterable[Route]:
        """Ecmp's, and one for each declared connection at each building on its way."""
        yield from Ecmp().routes(view)
        yield from spread_round_robin(view, both_ways(view.crossing), nearest)


@POLICIES.register("spray")
class Spray(Policy):
    """The finest spreading that this datapath has: connections in turn on all parallel links, near or far, by rate.

    Open vSwitch has no action that puts packets of one connection on several links. With a striped transport in `spray`
    mode the segments of each message take turns on its connections, and so on all links.
    """

    finds_paths = True
    goes_by_sizes = False

    def routes(self, view: View) -> Iterable[Route]:
        """As with qp_aware, over more links."""
        for here, there in view.pairs():
            links = tuple(end.name for end in by_rate(view.towards(here, there)))
            yield Route(here, view.to(there), links, comment=f"to {there} on all links")
        yield from spread_round_robin(view, both_ways(view.crossing), lambda ends: interleaved(by_rate(ends)))


def interleaved(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """The same links in an order in which each comes round as evenly as can be."""
    total = {end: ends.count(end) for end in ends}
    placed = dict.fromkeys(total, 0)
    order = []
    for position in range(1, len(ends) + 1):
        due = max(total, key=lambda end: (total[end] * position / len(ends) - placed[end], -end.plane))
        placed[due] += 1
        order.append(due)
    return order
