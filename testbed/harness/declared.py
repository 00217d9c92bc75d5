"""The traffic of a job, declared to the network's policy before the first packet: who sends how much on which ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from testbed.controller import Flow
from testbed.harness.wiring import LISTEN_PORT, Wiring
from testbed.transport import BEST_EFFORT, TrafficClass
from testbed.transport.wire import ConnectionKey

Pairs = Mapping[tuple[int, int], float]


def total(parts: Iterable[Pairs]) -> Pairs:
    """The sum of several, in bytes per ordered pair of ranks."""
    found: Counter[tuple[int, int]] = Counter()
    for part in parts:
        found.update(part)
    return found


def flows_of(
    wiring: Wiring, pairs: Pairs, traffic: TrafficClass = BEST_EFFORT, job: str = "job"
) -> list[Flow]:
    """What each connection carries in each direction, of one traffic class; pairs: emulated bytes per step.

    The higher rank of two dials. What a pair sends is taken to be spread evenly over its connections.
    """
    flows = []
    for (source, target), size_bytes in sorted(pairs.items()):
        if source == target:
            continue
        lanes = wiring.lanes(source, target)
        for lane in range(lanes):
            key = ConnectionKey(traffic, lane, lanes if wiring.kind == "striped" else 0)
            dialled = wiring.source_port(max(source, target), min(source, target), key)
            ports = (dialled, LISTEN_PORT) if source > target else (LISTEN_PORT, dialled)
            hosts = wiring.ranks[source].host, wiring.ranks[target].host
            flows.append(Flow(*hosts, lane, size_bytes / lanes, *ports, traffic.dscp, job))
    return flows
