"""Policies that spread traffic over the parallel links to the next building."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.net.controller.policies.base import (
    POLICIES,
    LinkPolicy,
    Policy,
    Route,
    nearest,
    repeat_by_rate,
    spread_round_robin,
)
from testbed.net.controller.policy_view import LinkEnd, View, with_reverse_flows


@POLICIES.register("shortest")
class Shortest(LinkPolicy):
    """A policy that sends all traffic over the link of least delay; among equals, the lowest plane."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """Return the link of least delay on the lowest plane."""
        return nearest(ends)[:1]


@POLICIES.register("ecmp")
class Ecmp(LinkPolicy):
    """A policy that spreads flows over all links of least delay by a hash of their 5-tuple."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """Return all links of least delay."""
        return nearest(ends)


@POLICIES.register("wcmp")
class Wcmp(LinkPolicy):
    """A weighted ECMP policy: a link with twice the rate gets twice the flows."""

    goes_by_sizes = False

    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """Return all links of least delay, repeated in proportion to their rates."""
        return repeat_by_rate(nearest(ends))


@POLICIES.register("qp_aware")
class QpAware(Policy):
    """A policy that assigns connections to planes round-robin, within each pair of hosts and across pairs.

    It is E-ECMP, which puts the queue pair's number into the hash, without hash collisions. Packets of undeclared
    connections are routed as with ecmp.
    """

    finds_paths = True
    goes_by_sizes = False

    def routes(self, view: View) -> Iterable[Route]:
        """Yield the routes of ecmp, and one per declared flow at each building on its path."""
        yield from Ecmp().routes(view)
        yield from spread_round_robin(view, with_reverse_flows(view.crossing), nearest)


@POLICIES.register("spray")
class Spray(Policy):
    """A policy that assigns connections round-robin to all parallel links, whatever their delay, weighted by rate.

    This is the finest granularity that the datapath has: Open vSwitch has no action that spreads the packets of one
    connection over several links. With a striped transport in `spray` mode, the segments of each message alternate
    between its connections, and so between all links.
    """

    finds_paths = True
    goes_by_sizes = False

    def routes(self, view: View) -> Iterable[Route]:
        """Yield a route per pair of buildings, and one per declared flow at each building on its path."""
        for here, there in view.pairs():
            links = tuple(end.name for end in repeat_by_rate(view.towards(here, there)))
            yield Route(here, view.to(there), links, comment=f"to {there} on all links")
        yield from spread_round_robin(
            view, with_reverse_flows(view.crossing), lambda ends: interleave(repeat_by_rate(ends))
        )


def interleave(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """Reorder repeated links so that each is spaced as evenly as possible."""
    total = {end: ends.count(end) for end in ends}
    placed = dict.fromkeys(total, 0)
    order = []
    for position in range(1, len(ends) + 1):
        due = max(total, key=lambda end: (total[end] * position / len(ends) - placed[end], -end.plane))
        placed[due] += 1
        order.append(due)
    return order
