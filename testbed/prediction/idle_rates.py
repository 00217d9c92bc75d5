"""The time of each kind of traffic on an otherwise idle network with all groups of that kind busy at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from testbed.comm.collectives import AUTO, PlanRequest, algorithm_of, collective_of
from testbed.net.paths import Members, Network

UNIT = 1 << 20  # array size in bytes for which link loads are computed
LARGE = 1 << 30  # array size in bytes for which `auto` chooses


@dataclass(frozen=True)
class IdleCost:
    """The time of one kind of traffic with all groups busy: the busiest part or the longest chain of dependent blocks.

    Attributes:
        latency_s: Latency in seconds.
        byte_s: Seconds per byte of an array on the busiest part.
        way: Latency and seconds per byte along the longest chain of dependent blocks.
        parts: Seconds per byte of an array, for each part of the network.
    """

    latency_s: float = 0.0
    byte_s: float = 0.0
    way: tuple[float, float] = (0.0, 0.0)
    parts: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, size_bytes: float) -> float:
        """Return the time for an array of this size; 0 for an empty one."""
        if not size_bytes:
            return 0.0
        latency_s, byte_s = self.way
        return max(self.latency_s + size_bytes * self.byte_s, latency_s + size_bytes * byte_s)


def collective_cost(
    network: Network, groups: Sequence[Members], collective: str, algorithm: str, near: Sequence[object]
) -> IdleCost:
    """Return the cost of a kind of collective; `near` is the locality of each rank.

    Messages share the parts that they cross, and blocks wait for earlier rounds.
    """
    loads: dict[tuple[int, int], float] = {}
    latency_s, way = 0.0, (0.0, 0.0)
    for members in groups:
        of_members = tuple(near[member] for member in members)
        pattern = _pattern(collective, algorithm, tuple(of_members.index(name) for name in of_members))
        loads |= {(members[here], members[there]): size for (here, there), size in pattern.loads.items()}
        # a block does not cross between buildings in every round
        ways = [(0.0, 0.0)] * len(members)
        for sends in pattern.rounds:
            before = ways.copy()
            for here, there, size in sends:
                path = network.paths[members[here], members[there]]
                own_s, (waited_s, busy_s) = path.latency_s(size), before[here]
                latency_s = max(latency_s, own_s)
                slowest = min(network.capacities[part] for part in path.parts)
                ways[there] = max(ways[there], (waited_s + own_s, busy_s + size / slowest / UNIT))
        way = max(way, *ways)
    parts = _busy(network, loads)
    return IdleCost(latency_s, max(parts.values(), default=0.0), way, parts)


@dataclass(frozen=True)
class _Pattern:
    """A collective on an array of `UNIT` bytes: bytes per pair of members, and each round's simultaneous messages."""

    loads: Mapping[tuple[int, int], float]
    rounds: Sequence[Sequence[tuple[int, int, int]]]


@cache
def _pattern(collective: str, algorithm: str, buildings: tuple[int, ...]) -> _Pattern:
    """Return a collective's pattern; `buildings` has the building of each member."""
    size = len(buildings)
    known = collective_of(collective)
    numel = known.part(UNIT, size)
    if algorithm == AUTO:
        algorithm = known.automatic(LARGE, buildings)
    made = algorithm_of(known, algorithm)
    blocks = known.blocks(size)
    loads: Counter[tuple[int, int]] = Counter()
    at_once: dict[tuple[int, int], set[tuple[int, int, int]]] = {}  # channels and strands run in parallel
    for own in range(size):
        plan = made(PlanRequest(own, buildings))
        bounds = plan.bounds(numel * blocks)
        rounds = (
            ((stage, number), step)
            for stages in plan.channels
            for stage, strands in enumerate(stages)
            for strand in strands
            for number, step in enumerate(strand)
        )
        for index, step in rounds:
            for peer, runs in step.sends:
                count = sum(bounds[end] - bounds[start] for start, end in runs)
                loads[own, peer] += count
                at_once.setdefault(index, set()).add((own, peer, count))
    return _Pattern(loads, [sorted(at_once[index]) for index in sorted(at_once)])


def pairs_cost(network: Network, pairs: Iterable[tuple[int, int]]) -> IdleCost:
    """Return the cost of simultaneous messages between these pairs of ranks."""
    loads = dict.fromkeys(pairs, UNIT)
    latency_s = max((network.paths[ends].latency_s(UNIT) for ends in loads), default=0.0)
    parts = _busy(network, loads)
    return IdleCost(latency_s, max(parts.values(), default=0.0), parts=parts)


def _busy(network: Network, loads: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Return each part's time for these bytes per pair of ranks, in seconds per byte of a `UNIT` array."""
    through: dict[str, float] = {}
    for ends, size_bytes in loads.items():
        for part in network.paths[ends].parts:
            through[part] = through.get(part, 0.0) + size_bytes
    return {part: size / network.capacities[part] / UNIT for part, size in through.items()}
