"""What one collective alone on the network should take, by the alpha-beta model, to be held against what it takes.

A message of s bytes from one rank to the next takes alpha + s x beta: latency of the path, and time per byte of its
slowest part (Hockney 1994, "The communication challenge for MPP"). The model holds where nothing else is on the
network and TCP's windows are open: so each run does one such collective before its steps. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.config import Building, Host, Topology
from testbed.config.wan import ETHERNET_HEADER_BYTES
from testbed.controller.view import View
from testbed.directions import Direction
from testbed.fidelity.verdict import Invariant

HEADER_BYTES = 66  # Ethernet, IPv4 and TCP with timestamps, of each packet
TRANSFER_S = 0.1  # what bytes alone should take: long enough to be seen beside latency
LEAST_PACKETS = 4  # per message
FASTER, SLOWER, SLOWER_REAL_CLOCK = 0.9, 1.1, 1.35
ABSOLUTE_S, ABSOLUTE_REAL_CLOCK_S = 0.0005, 0.01


@dataclass(frozen=True)
class Step:
    """From one rank of a ring to the next: latency in seconds, seconds per byte of payload."""

    alpha_s: float
    beta_s: float


Hops = Mapping[str, Mapping[str, str]]
"""From each building, on the way to each other one, the next."""
Planes = Callable[[Sequence[Direction]], Direction]
"""Of the parallel links to the next building, what stands for the way that a message takes."""


def nearest_plane(planes: Sequence[Direction]) -> Direction:
    """The one of least delay; of several the quickest."""
    return min(planes, key=lambda way: (way.delay_s, -way.rate_bps))


def worst_plane(planes: Sequence[Direction]) -> Direction:
    """The largest delay and the lowest rate of them: no policy can do worse."""
    slow = min(planes, key=lambda way: way.rate_bps)
    return replace(slow, delay_s=max(way.delay_s for way in planes))


def all_planes(planes: Sequence[Direction]) -> Direction:
    """The least delay, and the rates of all: nothing that spreads a message can do better."""
    return replace(nearest_plane(planes), rate_bps=sum(way.rate_bps for way in planes))


def ring_steps(topology: Topology, hosts: Sequence[Host], planes: Planes = nearest_plane) -> list[Step]:
    """The ring's steps, from each host to the next and from the last to the first; figures as in `topology`."""
    hops = View(topology).next_hops
    return [
        _step(topology, one, hosts[(number + 1) % len(hosts)], hops, planes)
        for number, one in enumerate(hosts)
    ]


def bdp_bytes(topology: Topology, hosts: Sequence[Host]) -> list[list[float]]:
    """Per host and other host the payload that is under way when the empty path between them is full; 0 to itself."""
    hops = View(topology).next_hops
    ways = {
        (one, other): _step(topology, one, other, hops, nearest_plane)
        for one in hosts
        for other in hosts
        if one != other
    }

    def product(one: Host, other: Host) -> float:
        if one == other:
            return 0.0
        forth, back = ways[one, other], ways[other, one]
        return (forth.alpha_s + back.alpha_s) / forth.beta_s

    return [[product(one, other) for other in hosts] for one in hosts]


def _step(topology: Topology, one: Host, other: Host, hops: Hops, planes: Planes) -> Step:
    links = [planes(ways) for _, ways in links_between(topology, one, other, hops)]
    rate_bps = min(link.rate_bps for link in links)
    # packets follow each other through all parts at once: only the slowest takes its time per byte
    return Step(sum(link.delay_s for link in links), 8 / rate_bps * frame_per_payload(topology))


def frame_per_payload(topology: Topology) -> float:
    """Bytes on the wire per byte of payload, of full packets."""
    return (topology.mtu + ETHERNET_HEADER_BYTES) / packet_payload_bytes(topology)


def packet_payload_bytes(topology: Topology) -> int:
    """Of a full packet."""
    return topology.mtu + ETHERNET_HEADER_BYTES - HEADER_BYTES


def links_between(
    topology: Topology, one: Host, other: Host, hops: Hops
) -> list[tuple[str, list[Direction]]]:
    """What a message goes through, from one host to another: a name for each, and the parallel links there are."""
    found = []
    here, target = one.building, other.building
    while here != target:
        there = hops[here][target]
        found.append((f"WAN {here} to {there}", _wan(topology, here, there)))
        here = there
    *first, last = links_inside(topology, one, other)
    return [*first, *found, last]


def links_inside(topology: Topology, one: Host, other: Host) -> list[tuple[str, list[Direction]]]:
    """As `links_between`, without those between buildings."""
    here, target = topology.building(one.building), topology.building(other.building)
    inside = _inside(here, one, other) if here == target else [*_way_up(here), *_way_up(target)]
    found = [(f"{one.name} sending", [one.nic])]
    found += [(f"inside, {one.name} to {other.name}, {number}", [link]) for number, link in enumerate(inside)]
    return [*found, (f"{other.name} receiving", [other.nic])]


def _inside(building: Building, one: Host, other: Host) -> list[Direction]:
    """The links between two hosts' switches in one building."""
    if (clos := building.clos) is None:
        return []
    first = building.hosts[0].index
    leaf, other_leaf = ((host.index - first) // building.hosts_per_leaf for host in (one, other))
    if leaf == other_leaf:
        return []
    if leaf // clos.leaves == other_leaf // clos.leaves:
        return [clos.leaf_uplink] * 2
    return _way_up(building) * 2


def _way_up(building: Building) -> list[Direction]:
    return [building.clos.leaf_uplink, building.clos.spine_uplink] if building.clos else []


def _wan(topology: Topology, here: str, there: str) -> list[Direction]:
    forth = [link.a_to_b for link in topology.wan if (link.a, link.b) == (here, there)]
    return forth + [link.b_to_a for link in topology.wan if (link.b, link.a) == (here, there)]


def calibration_bytes(steps: Sequence[Step], mtu: int, largest_bytes: float) -> int:
    """Size of a message between neighbours of the ring for which bytes take some TRANSFER_S in all.

    No larger than those of the workload itself, which are what memory was made for, but for some packets.
    """
    rounds = 2 * (len(steps) - 1)
    wanted = TRANSFER_S / rounds / max(step.beta_s for step in steps)
    return max(LEAST_PACKETS * mtu, round(min(wanted, largest_bytes)))


def ring_all_reduce_s(
    steps: Sequence[Step], message_bytes: float, overhead_s: float, lanes: int = 1
) -> float:
    """What a ring all-reduce takes in which every message has so many bytes.

    Reduce-scatter and all-gather, n - 1 rounds each: a rank sends what it got in the round before, as soon as it has
    it and has sent all before. lanes: pieces into which messages are cut that go round independently, one of which is
    sent while others are on their way; each costs its two ends `overhead_s`.
    """
    size, piece_bytes = len(steps), message_bytes / lanes
    rounds = 2 * (size - 1)
    sent = [0.0] * size
    last_s = 0.0
    ready = [(0.0, 0, lane, rank) for lane in range(lanes) for rank in range(size)]
    heapq.heapify(ready)
    while ready:
        since_s, number, lane, rank = heapq.heappop(ready)
        sent[rank] = max(since_s, sent[rank]) + piece_bytes * steps[rank].beta_s
        there_s = sent[rank] + steps[rank].alpha_s + overhead_s
        if number + 1 < rounds:
            heapq.heappush(ready, (there_s, number + 1, lane, (rank + 1) % size))
        last_s = max(last_s, there_s)
    return last_s


def model_agreement(
    measured_s: float | None,
    model_s: float,
    exact: bool,
    slowest_s: float | None = None,
    lossy: bool = False,
) -> Invariant:
    """Whether the collective took what the model says; `exact` under the virtual clock, where nothing else does.

    slowest_s: the same on the worst of parallel links, where it depends on the policy which one is taken. lossy:
    packets are lost on the way, which no such model knows of, and which may make it as slow as TCP is then.
    """
    slower, absolute_s = (SLOWER, ABSOLUTE_S) if exact else (SLOWER_REAL_CLOCK, ABSOLUTE_REAL_CLOCK_S)
    slowest_s = max(slowest_s or 0.0, model_s)
    low_s, high_s = FASTER * model_s - absolute_s, slower * slowest_s + absolute_s
    made = f"{model_s * 1e3:.4g}"
    if slowest_s > 1.01 * model_s:
        made += f" to {slowest_s * 1e3:.4g}, by the plane that it takes"
    bound = f"{FASTER - 1:+.0%} to {slower - 1:+.0%}, or {absolute_s * 1e3:g} ms"
    if lossy:
        high_s = math.inf
        bound = f"at least {FASTER - 1:+.0%}, or {absolute_s * 1e3:g} ms"
        made += "; links lose packets, which makes it longer"
    if measured_s is None:
        return Invariant("model_agreement", bound, "not applicable", None, "There is one rank only.")
    return Invariant(
        "model_agreement",
        bound=bound,
        measured=f"{measured_s / model_s - 1:+.1%}",
        ok=low_s <= measured_s <= high_s,
        sentence=f"A ring all-reduce alone on the network, before the steps, took {measured_s * 1e3:.4g} ms; "
        f"latency and bandwidth of its paths make {made}.",
        severity="caution",
    )
