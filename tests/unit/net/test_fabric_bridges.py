"""Switches within a building: each packet finds its way, up no further than it must; rates are what the ratios say."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from testbed.net.fabric.bridges import NIC, UPLINK, Cable, bridges, cables
from testbed.net.fabric.plan import Plan
from testbed.spec.base_model import validate
from testbed.spec.buildings import Host
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology, TopologySpec, load_topology
from testbed.spec.yaml_loader import Document, Origin

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
CLOS = {
    "zones": 2,
    "leaves": 2,
    "spines": 2,
    "leaf": {"oversubscription": "1:2"},
    "spine": {"delay": "40 us"},
}


def spec(**clos: Any) -> dict[str, Any]:
    building = {"hosts": 8, "nic": {"rate": "100 Gbit/s"}, "clos": {**CLOS, **clos}}
    wan = [{"a": "east", "b": "west", "rate": "100 Gbit/s", "delay": "1 ms"}]
    return {"name": "t", "buildings": {"east": building, "west": building}, "wan": wan}


def topology(**clos: Any) -> Topology:
    return TopologySpec.model_validate(spec(**clos)).resolve()


class Paths:
    """Follows packets through bridges and cables by their tables alone."""

    def __init__(self, of: Topology) -> None:
        self.cables: list[Cable] = list(cables(of))
        self.other = {cable.a: cable.b for cable in self.cables} | {c.b: c.a for c in self.cables}
        self.table = {
            bridge.name: {mac: port.interface for port in bridge.ports for mac in port.macs}
            for bridge in bridges(of)
        }

    def path(self, source: Host, target: Host) -> list[str]:
        """Switches on the way; ends at the core where the packet leaves the building."""
        node, _ = self.other[source.name, NIC]
        passed = [node]
        while True:
            port = self.table[node][target.mac]
            if port == UPLINK:
                return passed
            node, interface = self.other[node, port]
            if node == target.name:
                assert interface == NIC
                return passed
            assert node not in passed, passed
            passed.append(node)


def kinds(path: list[str]) -> list[str]:
    return [name.split("-")[1].rstrip("0123456789") for name in path]


def test_every_pair_of_a_building_meets_at_the_lowest_switch_they_share() -> None:
    of = topology()
    paths = Paths(of)
    for one, other in permutations(of.buildings[0].hosts, 2):
        found = kinds(paths.path(one, other))
        if one.index // 2 == other.index // 2:
            assert found == ["leaf"]
        elif one.index // 4 == other.index // 4:
            assert found == ["leaf", "spine", "leaf"]
        else:
            assert found == ["leaf", "spine", "core", "spine", "leaf"]


def test_packets_leave_by_the_core_and_come_in_again_there() -> None:
    of = topology()
    paths = Paths(of)
    east, west = of.buildings
    for host in east.hosts:
        assert kinds(paths.path(host, west.hosts[3])) == ["leaf", "spine", "core"]
        port = paths.table[east.core][host.mac]
        assert paths.other[east.core, port][0] in east.spines


def test_destinations_are_spread_over_the_spines() -> None:
    of = topology()
    paths = Paths(of)
    first = of.hosts[0]
    used = Counter(paths.path(first, other)[1] for other in of.buildings[1].hosts)
    assert used == {"east-spine1": 4, "east-spine2": 4}


def test_uplinks_share_what_the_ratio_leaves() -> None:
    clos = topology().buildings[0].clos
    assert clos is not None
    assert clos.leaf_uplink.rate_bps == pytest.approx(2 * 100e9 / 2 / 2)  # 2 hosts, 1:2, 2 spines
    assert clos.spine_uplink.rate_bps == pytest.approx(2 * clos.leaf_uplink.rate_bps)  # 2 leaves, 1:1
    assert clos.leaf_uplink.delay_s == 0
    assert clos.spine_uplink.delay_s == pytest.approx(40e-6)


def test_a_cable_that_takes_time_is_the_link_engines_and_another_is_shaped() -> None:
    of = topology()
    plan = Plan(of, "tbabcd")
    wires = {wire.name: wire for wire in plan.wires()}
    assert next(iter(wires)) == "east-west-0"
    timed = wires["east-spine1-east-core"]
    assert (timed.node_a, timed.outer_a, timed.node_b, timed.outer_b) == (
        "east-spine1",
        "u0",
        "east-core",
        "d0",
    )
    assert len({name for wire in plan.wires() for name in (wire.inner_a, wire.inner_b)}) == 2 * len(wires)
    assert ("east-spine1", "u0") not in plan.shapes
    assert plan.shapes["east-leaf1", "u0"].rate_bps == pytest.approx(50e9)
    assert plan.shapes["east1", NIC].rate_bps == 100e9


def test_a_building_without_tiers_is_one_switch() -> None:
    of = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
    assert of.switches == ("east-leaf", "east-edge", "west-leaf", "west-edge")
    assert len(Plan(of, "tbabcd").wires()) == len(of.wan)


def test_the_training_regions_latencies_and_ratios_are_those_it_names() -> None:
    of = load_topology(TOPOLOGIES / "training-region.yaml").resolve()
    paths = Paths(of)
    delays = {frozenset((c.a[0], c.b[0])): c.direction.delay_s for c in paths.cables if c.direction}
    first, rack, zone, building = (of.hosts[index] for index in (0, 1, 4, 8))

    def latency_us(one: Host, other: Host) -> float:
        nodes = [one.name, *paths.path(one, other), other.name]
        return 1e6 * sum(delays[frozenset(pair)] for pair in pairwise(nodes))

    classes = [latency_us(first, other) for other in (rack, zone, building)]
    up_us = 1e6 * sum(
        delays[frozenset(pair)]
        for nodes in [[first.name, *paths.path(first, of.hosts[16])]]
        for pair in pairwise(nodes)
    )
    classes.append(2 * up_us + of.wan[0].a_to_b.delay_s * 1e6)
    assert [round(value / 10, 6) for value in classes] == [1, 7, 15, 30]
    clos = of.buildings[0].clos
    assert clos is not None
    hosts_bps = sum(host.nic.rate_bps for host in of.buildings[0].hosts)
    assert len(of.buildings[0].spines) * clos.spine_uplink.rate_bps == pytest.approx(hosts_bps / 2.8)
    wan_bps = sum(link.a_to_b.rate_bps for link in of.wan if "hall1" in (link.a, link.b))
    assert hosts_bps / wan_bps == pytest.approx(2.8, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"leaves": 3}, "buildings.east.hosts: got 8, expected a multiple of 6, the number of leaves"),
        (
            {"leaf": {"oversubscription": "2:1"}},
            "got '2:1', expected a ratio of 1 to at least 1, such as 1:2.8",
        ),
        ({"leaf": {"oversubscription": 2.8}}, "got 2.8, expected a ratio of 1 to at least 1, such as 1:2.8"),
        ({"spines": 0}, "clos.spines: got 0, expected a whole number from 1 to 64"),
        (
            {"spine": {"queue": "1 kB"}},
            "east.clos.spine.queue: got '1 kB', expected auto, or at least the mtu",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(TopologySpec, Document("t", spec(**change), {(): Origin("t", None)}))
    assert expected in str(caught.value)


def test_the_scale_divides_rates_of_all_tiers_and_stretches_their_delays() -> None:
    built = TopologySpec.model_validate(spec()).resolve(Scale(10, 2)).buildings[0].clos
    real = topology().buildings[0].clos
    assert built is not None
    assert real is not None
    assert built.leaf_uplink.rate_bps == pytest.approx(real.leaf_uplink.rate_bps / 20)
    assert built.spine_uplink.delay_s == pytest.approx(80e-6)


def test_uplinks_have_the_queue_that_is_said_or_a_millisecond_of_their_rate() -> None:
    built = TopologySpec.model_validate(spec(spine={"queue": "64 MB"})).resolve(Scale(4)).buildings[0].clos
    assert built is not None
    assert built.leaf_uplink.queue_bytes == pytest.approx(built.leaf_uplink.rate_bps * 1e-3 / 8, rel=1e-6)
    assert built.spine_uplink.queue_bytes == 16e6
