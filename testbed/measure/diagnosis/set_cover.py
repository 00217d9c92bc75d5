"""Which parts of a network explain that these pairs are bad and those are not: the fewest that cover the bad ones.

A part that healthy pairs cross is exonerated. Of equal explanations the more specific is meant: a card before a link, a
link before a plane, a plane before a switch; only where parts as wholes do not suffice, one way of a part is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Pair = tuple[int, int]
"""A rank that sends, and the one that it sends to."""

SPECIFICITY = ("nic", "host", "link", "plane", "switch")
MOST_TRIED = 200_000  # combinations of parts; beyond, parts are taken one by one


@dataclass(frozen=True)
class Part:
    """A part, or one way through it: "" for both, else such as "from switch a-edge"."""

    name: str
    way: str = ""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """What is meant first among equals."""
        kind = self.name.split(" ", 1)[0]
        rank = SPECIFICITY.index(kind) if kind in SPECIFICITY else len(SPECIFICITY)
        return bool(self.way), rank, self.name, self.way

    def __str__(self) -> str:
        return f"{self.name}, {self.way}" if self.way else self.name


@dataclass(frozen=True)
class Explanation:
    """One part of an explanation: bad pairs that it covers, healthy ones that cross it all the same.

    instead: parts that would do as well; within: those that would, because all that crosses this one crosses them.
    """

    part: Part
    covers: tuple[Pair, ...]
    healthy: tuple[Pair, ...]
    instead: tuple[Part, ...]
    within: tuple[Part, ...]

    @property
    def names_instead(self) -> list[str]:
        """Of parts that would do as well, but for ways of this one."""
        return list(dict.fromkeys(part.name for part in self.instead if part.name != self.part.name))

    @property
    def doubts(self) -> list[str]:
        """Lines for people: what else it could be."""
        lines = []
        if others := self.names_instead:
            lines.append(f"as well it could be {', '.join(others[:5])}")
        if self.within:
            names = dict.fromkeys(part.name for part in self.within)
            lines.append(f"no pair tells it from {', '.join(names)}")
        return lines

    def certainty(self, most: float) -> float:
        """Less than `most` as more parts would do as well."""
        return round(max(most / (1 + len(self.names_instead)), 0.1), 2)


Crossed = Mapping[Pair, Sequence[Sequence[str]]]
"""The parts that each pair's messages go through, in order; of each of its connections."""


def explain(
    bad: Sequence[Pair], healthy: Sequence[Pair], crossed: Crossed, tolerated: float = 0.0
) -> tuple[tuple[Explanation, ...], tuple[Pair, ...]]:
    """The fewest parts that cover all bad pairs which can be covered, and the pairs that cannot.

    tolerated: the share of pairs across a part that may be healthy without exonerating it. A pair with several
    connections is bad by any of them, and healthy on all.
    """
    found: list[Explanation] = []
    left = [pair for pair in dict.fromkeys(bad) if crossed.get(pair)]
    for ways in (False, True):
        parts = _candidates(left, healthy, crossed, tolerated, ways)
        chosen = _fewest(parts)
        covered = {pair for own in chosen for pair in parts[own][0]}
        for own in chosen:
            covers, through = parts[own]
            others = sorted((o for o in parts if o != own and parts[o][0] == covers), key=_order)
            around = {part for part in others if _contains(crossed, part, own)}
            instead = tuple(part for part in others if part not in around)
            within = tuple(part for part in others if part in around)
            found.append(Explanation(own, tuple(sorted(covers)), tuple(sorted(through)), instead, within))
        left = [pair for pair in left if pair not in covered]
    unknown = [pair for pair in dict.fromkeys(bad) if not crossed.get(pair)]
    return tuple(found), tuple(sorted([*left, *unknown]))


def _contains(crossed: Crossed, large: Part, small: Part) -> bool:
    """Whether all that crosses the one crosses the other as well: a link's plane, a host's leaf."""
    return all(
        large.name in components
        for ways in crossed.values()
        for components in ways
        if small.name in components
    )


def _order(part: Part) -> tuple[bool, int, str, str]:
    return part.order


def parts_of(components: Sequence[str], ways: bool) -> set[Part]:
    """The parts on a path, or the ways through them; a plane or switch has no ways of its own."""
    if not ways:
        return set(map(Part, components))
    found = set()
    for place, name in enumerate(components):
        kind = name.split(" ", 1)[0]
        if kind in ("nic", "host"):
            found.add(Part(name, "receiving" if place else "sending"))
        elif kind == "link":
            before = next((one for one in components[place - 1 :: -1] if one.startswith("switch")), "")
            found.add(Part(name, f"from {before}" if place and before else "one way"))
    return found


def _candidates(
    bad: Sequence[Pair], healthy: Sequence[Pair], crossed: Crossed, tolerated: float, ways: bool
) -> dict[Part, tuple[set[Pair], set[Pair]]]:
    """Parts that are not exonerated: the bad pairs that each covers, and healthy ones that cross it all the same."""
    covers: dict[Part, set[Pair]] = {}
    crossing: dict[Part, set[Pair]] = {}
    for pairs, found in ((bad, covers), (healthy, crossing)):
        for pair in pairs:
            for components in crossed.get(pair, ()):
                for part in parts_of(components, ways):
                    found.setdefault(part, set()).add(pair)
    kept = {}
    for part, own in covers.items():
        through = crossing.get(part, set()) - own
        if len(through) <= tolerated * (len(through) + len(own)):
            kept[part] = (own, through)
    return kept


def _fewest(parts: Mapping[Part, tuple[set[Pair], set[Pair]]]) -> list[Part]:
    """The fewest parts that cover what all do; of as few, with the fewest healthy pairs, then the more specific."""
    universe = {pair for covers, _ in parts.values() for pair in covers}
    ordered = sorted(parts, key=lambda part: (len(parts[part][1]), part.order))
    # of parts that cover the same the first stands for all; what covers less than another is not needed
    useful: list[Part] = []
    for part in ordered:
        own = parts[part][0]
        if not any(own == parts[other][0] for other in useful):
            useful.append(part)
    useful = [part for part in useful if not any(parts[part][0] < parts[other][0] for other in useful)]
    tried = 0
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            tried += 1
            if tried > MOST_TRIED:
                return _greedily(useful, parts, universe)
            if set().union(*(parts[part][0] for part in chosen)) == universe:
                return list(chosen)
    return []


def _greedily(
    useful: Sequence[Part], parts: Mapping[Part, tuple[set[Pair], set[Pair]]], universe: set[Pair]
) -> list[Part]:
    left, chosen = set(universe), []
    while left:
        best = max(useful, key=lambda part: (len(parts[part][0] & left), -useful.index(part)))
        chosen.append(best)
        left -= parts[best][0]
    return chosen
