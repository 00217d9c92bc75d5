"""What a policy is: it says where packets go (routes), how they are marked, and what waits for what (classes)."""

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
    """At one building: where the packets that `match` covers leave.

    links: names of its links. Of several a hash of the 5-tuple chooses, one that stands there twice twice as often;
    or, if `first_up`, the first that is up. rank: of several routes that cover a packet the one of the highest rank
    counts; 0 to 150.
    """

    at: str
    match: Match
    links: tuple[str, ...]
    first_up: bool = False
    rank: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Mark:
    """Packets that come from a host get a traffic class on their way out of its building."""

    host: str
    dscp: int


class Policy(ABC):
    """A transport policy. Derive, and say in `routes` where packets go. Everything here is pure.

    Options of the scenario arrive as attributes `options`. An exception in any method is one clear error, and the
    network goes on under the rules it has.
    """

    replan = False
    """Whether it is asked again, with the links that are down left out, when a link goes down or comes back."""

    known_options: tuple[str, ...] = ()
    """What `options` may hold."""

    needed_options: tuple[str, ...] = ()
    """Which of them must be there."""

    finds_paths = False
    """Whether policies that are about something else can leave the paths to it (`over`)."""

    goes_by_sizes = True
    """Whether what it says may be something else where flows carry more, or less; it is not inherited."""

    def __init__(self, **options: Any) -> None:
        if unknown := sorted(set(options) - set(self.known_options)):
            known = ", ".join(self.known_options) or "none"
            raise PolicyError(f"option {unknown[0]!r} is unknown; expected: {known}")
        self.options = options

    @abstractmethod
    def routes(self, view: View) -> Iterable[Route]:
        """Where packets go. What no route covers is dropped."""

    def marks(self, view: View) -> Iterable[Mark]:
        """Hosts whose packets are marked."""
        return ()

    def classes(self, view: View) -> Sequence[QueueClass]:
        """The queues in front of every WAN link; none: one for all packets."""
        return ()


POLICIES: Registry[type[Policy]] = Registry(
    "policy", "testbed.net.controller.policies", "testbed.policies", derived_from(Policy)
)
"""All that have a name. Each registers where it stands: `@POLICIES.register("ecmp")`."""


class LinkPolicy(Policy):
    """A policy that says for each pair of buildings, and for each declared flow, which parallel links are taken."""

    finds_paths = True

    @abstractmethod
    def choose(self, ends: Sequence[LinkEnd]) -> Sequence[LinkEnd]:
        """Of the parallel links to the next building those that packets are spread over."""

    def routes(self, view: View) -> Iterable[Route]:
        """One for each pair of buildings."""
        for here, there in view.pairs():
            chosen = tuple(end.name for end in self.choose(view.towards(here, there)))
            comment = f"to {there} on {', '.join(sorted(set(chosen)))}"
            yield Route(here, view.to(there), chosen, comment=comment)


def nearest(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """Those of least delay."""
    least = min((end.delay_ps for end in ends), default=0)
    return [end for end in ends if end.delay_ps == least]


def by_rate(ends: Sequence[LinkEnd]) -> list[LinkEnd]:
    """Each as often as its rate asks for, in the smallest whole numbers that keep the proportions well."""
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
    """Connections dealt out to links in turn, at every building on their way.

    Both directions of a connection are dealt alike. spread: from the parallel links to the next building to the order
    in which they are dealt out.
    """
    seen: dict[tuple[str, str], dict[Any, int]] = {}
    for flow in sorted(flows, key=lambda flow: flow.connection):
        here, there = view.ends(flow)
        for at, following in zip(path := view.route(here, there), path[1:], strict=False):
            numbers = seen.setdefault((min(at, following), max(at, following)), {})
            number = numbers.setdefault(flow.connection, len(numbers))
            ends = spread(view.towards(at, there))
            end = ends[number % len(ends)]
            yield Route(at, view.of(flow), (end.name,), rank=FLOW_RANK, comment=f"{flow} on {end.name}")
