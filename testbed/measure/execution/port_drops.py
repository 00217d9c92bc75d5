"""What queues inside the buildings dropped while steps were measured: those of switch ports and of hosts' cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.execution.job_run import JobRun, LinkSample
from testbed.measure.fidelity.link_invariants import PortDrops
from testbed.net.fabric.bridges import CARD, Cable, End, cables
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.link_engine import EngineStats
from testbed.spec.link_direction import DIRECTIONS
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology, TopologySpec

Span = tuple[float, float]


@dataclass(frozen=True)
class PortCounts:
    """What all ports had counted at one moment: those of the kernel's shapers, and those of a link engine."""

    nodes: Mapping[str, NodeCounts]
    account: EngineStats

    def drops(self, cable: Cable, end: int) -> int:
        """Of the queue at the cable's end a (0) or b (1)."""
        if cable.takes_time:
            return self.account.directions[cable.name, DIRECTIONS[end]].dropped
        node, interface = (cable.a, cable.b)[end]
        return self.nodes[node].ports[interface].dropped


def port_drops(spec: TopologySpec, topology: Topology, job: JobRun, steps: Sequence[Span]) -> list[PortDrops]:
    """Every port inside the buildings whose queue dropped packets in these steps, the worst first.

    Hosts' cards are counted over the whole run: their queues are the hosts' memory, which never fills up. So is
    everything where nobody read at the steps' edges.
    """
    whole = PortCounts(job.before, job.samples[0].account), PortCounts(job.after, job.samples[-1].account)
    windows = list(_windows(job.samples, steps))
    given = set().union(*(spec.buildings[one.name].given_queues(one) for one in topology.buildings))
    found = []
    for cable in cables(topology):
        assert cable.direction is not None
        for end, (here, there) in enumerate(((cable.a, cable.b), (cable.b, cable.a))):
            own = [whole] if here[1] == CARD or len(windows) < len(steps) else windows
            if packets := sum(late.drops(cable, end) - early.drops(cable, end) for early, late in own):
                given_here = cable.a[0] in given and here[1] != CARD
                found.append(PortDrops(_place(here, there), cable.direction.queue_bytes, given_here, packets))
    return sorted(found, key=lambda drops: -drops.packets)


def port_record(drops: PortDrops, scale: Scale) -> dict[str, Any]:
    """As `testbed.measure.results.port_drops.DroppingPort` has it, in real units."""
    return {
        "place": drops.place,
        "queue_bytes": round(scale.real_bytes(drops.queue_bytes)),
        "given": drops.given,
        "drops": drops.packets,
    }


def _place(here: End, there: End) -> str:
    return f"the card of {here[0]}" if here[1] == CARD else f"the port of {here[0]} to {there[0]}"


def _windows(samples: Sequence[LinkSample], steps: Sequence[Span]) -> Iterator[tuple[PortCounts, PortCounts]]:
    """The readings around each step, of those steps at whose edges somebody has read."""
    edges = [sample for sample in samples if sample.switches]
    for start_s, end_s in steps:
        before = [sample for sample in edges if sample.time_s <= start_s]
        after = [sample for sample in edges if sample.time_s >= end_s]
        if before and after:
            yield (
                PortCounts(before[-1].switches, before[-1].account),
                PortCounts(after[0].switches, after[0].account),
            )
