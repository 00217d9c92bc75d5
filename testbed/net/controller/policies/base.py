"""The interface of a policy: where packets go (routes), how they are marked, and which queues they use (classes)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.net.controller.policy_view import Flow, LinkEnd, View
from testbed.net.controller.rules import Match
from testbed.net.errors import PolicyError
from testbed.plugins import Registry, derived_from
from testbed.spec.link_direction import QueueClass

MAX_WEIGHT_ENTRIES = 64
FLOW_RANK, MAX_RANK = 100, 150


@dataclass(frozen=True)
class Route:
    """The outgoing links for packets that match, at one building.

    Attributes:
        at: The building.
        match: The packets.
        links: Names of the building's links. A hash of the 5-tuple picks one; a link listed twice is picked twice as
            often.
        first_up: Whether to take the first link that is up instead.
        rank: 0 to 150; the matching route of the highest rank applies.
        comment: A description for people.
    """

    at: str
    match: Match
    links: tuple[str, ...]
    first_up: bool = False
    rank: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Mark:
    """A DSCP to set on packets from a host as they leave its building."""

    host: str
    dscp: int


class Policy(ABC):
    """The base class of transport policies. Subclasses implement `routes`; all methods must be pure.

    The scenario's options are in the attribute `options`. An exception in any method becomes one error message, and the
    network keeps its current rules.
    """

    replan = False
    """Whether the policy is computed again, without the links that are down, when a link goes down or comes up."""

    known_options: tuple[str, ...] = ()
    """The names of the options that the policy accepts."""

    needed_options: tuple[str, ...] = ()
    """The names of the options that are mandatory."""

    finds_paths = False
    """Whether other policies can delegate their paths to this one, with option `over`."""

    goes_by_sizes = True
    """Whether the result depends on the sizes of flows. Subclasses do not inherit this attribute."""

    def __init__(self, **options: Any) -> None:
        if unknown := sorted(set(options) - set(self.known_options)):
            known = ", ".join(self.known_options) or "none"
            raise PolicyError(f"option {unknown[0]!r} is unknown; expected: {known}")
        self.options = options

    @abstractmethod
    def routes(self, view: View) -> Iterable[Route]:
        """Return where packets go; packets without a route are dropped."""

    def marks(self, view: View) -> Iterable[Mark]:
        """Return the hosts whose packets are marked."""
        return ()

    def classes(self, view: View) -> Sequence[QueueClass]:
        """Return the queues of every WAN link; empty for a single queue."""
        return ()


POLICIES: Registry[type[Policy]] = Registry(
    "policy", "testbed.net.controller.policies", "testbed.policies", derived_from(Policy)
)
"""The policies by name. Each registers in its own module: `@POLICIES.register("ecmp")`."""


class LinkPolicy(Policy):
    """A policy that chooses, for each pair of buildings, among the parallel links to the next building."""

    finds_paths = True

    @abstractmethod
    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """Return the subset of the parallel links to the next building over which packets are spread."""

    def routes(self, view: View) -> Iterable[Route]:
        """Yield one route per pair of buildings."""
        for here, there in view.pairs():
            chosen = tuple(end.name for end in self.choose(view.towards(here, there)))
            comment = f"to {there} on {', '.join(sorted(set(chosen)))}"
            yield Route(here, view.to(there), chosen, comment=comment)


def nearest(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """Return the links of least delay."""
    least = min((end.delay_ps for end in ends), default=0)
    return [end for end in ends if end.delay_ps == least]


def repeat_by_rate(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """Repeat each link in proportion to its rate, with the smallest integer weights that approximate the rates well."""
    if not ends:
        return []
    total = sum(end.rate_bps for end in ends)
    best = [1] * len(ends)
    least = float("inf")
    for entries in range(len(ends), MAX_WEIGHT_ENTRIES + 1):
        weights = [max(1, round(end.rate_bps / total * entries)) for end in ends]
        pairs = zip(weights, ends, strict=True)
        error = max(abs(weight / sum(weights) - end.rate_bps / total) for weight, end in pairs)
        if error < least - 1e-3:
            best, least = weights, error
    return [end for weight, end in zip(best, ends, strict=True) for _ in range(weight)]


def spread_round_robin(view: View, flows: Iterable[Flow], spread: Any) -> Iterable[Route]:
    """Assign connections to links round-robin, at every building on their paths.

    Both directions of a connection get the same link.

    Args:
        view: The network.
        flows: The flows to assign.
        spread: Maps the parallel links to the next building to the sequence that connections cycle through.
    """
    seen: dict[tuple[str, str], dict[Any, int]] = {}
    for flow in sorted(flows, key=lambda flow: flow.connection):
        here, there = view.ends(flow)
        for at, neighbour in zip(path := view.route(here, there), path[1:], strict=False):
            indices = seen.setdefault((min(at, neighbour), max(at, neighbour)), {})
            index = indices.setdefault(flow.connection, len(indices))
            ends = spread(view.towards(at, there))
            end = ends[index % len(ends)]
            yield Route(at, view.of(flow), (end.name,), rank=FLOW_RANK, comment=f"{flow} on {end.name}")
