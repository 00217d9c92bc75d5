"""What queues inside buildings dropped in measured steps, from counts of switches and of the link engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from testbed.measure.execution.job_run import LinkSample
from testbed.measure.execution.network_evidence import port_drops
from testbed.net.fabric.bridges import NIC, cables
from testbed.net.fabric.running_fabric import FabricCounters
from testbed.net.links.interfaces import NodeCounts, PortCounts
from testbed.net.links.link_engine import DirectionStats, EngineStats
from testbed.spec.scale import UNSCALED
from testbed.spec.topology import TopologySpec

SPEC = TopologySpec.model_validate(
    {
        "name": "t",
        "buildings": {
            "east": {
                "hosts": 4,
                "nic": {"rate": "1 Gbit/s"},
                "unlike": [{"hosts": [2], "nic": {"rate": "1 Gbit/s", "queue": "1 MB"}}],
                "clos": {"leaves": 2, "spines": 1, "leaf": {"delay": "1 ms", "queue": "2 MB"}},
            },
            "west": {"hosts": 1, "nic": {"rate": "1 Gbit/s"}},
        },
        "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
    }
)
TOPOLOGY = SPEC.resolve()
CABLES = list(cables(TOPOLOGY))


def nodes(dropped: dict[tuple[str, str], int], hosts: bool = False) -> dict[str, NodeCounts]:
    found: dict[str, dict[str, PortCounts]] = {}
    for node, interface in (end for cable in CABLES for end in (cable.a, cable.b)):
        if hosts or interface != NIC:
            count = dropped.get((node, interface), 0)
            found.setdefault(node, {})[interface] = PortCounts(0, 0, 0, 0, dropped=count)
    return {node: NodeCounts(ports) for node, ports in found.items()}


def account(time_s: float, up: int) -> EngineStats:
    """The engine carries the leaves' uplinks: so many packets dropped by the first one's queue."""
    directions = {}
    for cable in (cable for cable in CABLES if cable.needs_engine):
        for which in ("a_to_b", "b_to_a"):
            dropped = up if cable.a[0] == "east-leaf1" and which == "a_to_b" else 0
            directions[cable.name, which] = DirectionStats(0, 0, 0, 0, 0, 0, 0, dropped, 0, 0, 0, 0)
    return EngineStats(time_s, directions)


def sample(time_s: float, edge: str, up: int, **ports: int) -> LinkSample:
    """ports: what those of east's first leaf had dropped."""
    dropped = {("east-leaf1", port): count for port, count in ports.items()}
    switches = nodes(dropped) if edge else {}
    return LinkSample(time_s, FabricCounters((), {}, 0), account(time_s, up), edge, switches)


def job(*samples: LinkSample, cards: int = 0) -> Any:
    after = nodes({("east-leaf1", "p0"): 99, ("west1", NIC): cards}, hosts=True)
    return SimpleNamespace(samples=list(samples), before=nodes({}, hosts=True), after=after)


def test_ports_are_counted_in_steps_alone_and_told_by_whether_their_queue_was_given() -> None:
    read = job(
        sample(0.0, "", 0),
        sample(0.9, "start", 5, p0=10, p1=1),  # in the warm-up
        sample(2.0, "end", 8, p0=10, p1=4),
        sample(2.5, "", 8),
        sample(2.9, "start", 8, p0=20, p1=4),  # between two steps
        sample(4.0, "end", 9, p0=21, p1=4),
    )
    found = port_drops(SPEC, TOPOLOGY, read, [(1.0, 2.0), (3.0, 4.0)], UNSCALED)
    assert [(drops.place, drops.drops, drops.given, drops.queue_bytes) for drops in found] == [
        ("the port of east-leaf1 to east-spine1", 4, True, 2_000_000),
        ("the port of east-leaf1 to east2", 3, True, 1_000_000),
        ("the port of east-leaf1 to east1", 1, False, 576_000),
    ]


def test_cards_and_steps_at_whose_edges_nobody_read_are_counted_over_the_whole_run() -> None:
    read = job(sample(0.0, "", 0), sample(9.0, "", 2), cards=6)
    found = port_drops(SPEC, TOPOLOGY, read, [(1.0, 2.0)], UNSCALED)
    assert [(drops.place, drops.drops, drops.given) for drops in found] == [
        ("the port of east-leaf1 to east1", 99, False),
        ("the NIC of west1", 6, False),
        ("the port of east-leaf1 to east-spine1", 2, True),
    ]
