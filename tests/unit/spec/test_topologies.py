"""The topologies that come with the testbed, and the same for Mininet's own command line."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from testbed.spec.links import WanLink
from testbed.spec.topology import Topology, load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"


def test_two_buildings_are_oversubscribed_as_they_say() -> None:
    topology = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
    assert [len(building.hosts) for building in topology.buildings] == [4, 4]
    assert [(link.a, link.b, link.plane) for link in topology.wan] == [
        ("east", "west", 0),
        ("east", "west", 1),
    ]
    nics_bps = sum(host.nic.rate_bps for host in topology.buildings[0].hosts)
    assert nics_bps / sum(link.a_to_b.rate_bps for link in topology.wan) == pytest.approx(2.8, rel=1e-3)


def test_three_buildings_are_unequal_and_carry_without_scaling() -> None:
    topology = load_topology(TOPOLOGIES / "three-buildings.yaml").resolve()
    assert len({len(building.hosts) for building in topology.buildings}) == 3
    assert len({frozenset((link.a, link.b)) for link in topology.wan}) == 3
    assert len({(link.a_to_b.rate_bps, link.a_to_b.delay_s) for link in topology.wan}) == 3
    asymmetric = [link for link in topology.wan if link.a_to_b != link.b_to_a]
    assert len(asymmetric) == 1
    assert asymmetric[0].a_to_b.rate_bps != asymmetric[0].b_to_a.rate_bps
    assert asymmetric[0].a_to_b.delay_s != asymmetric[0].b_to_a.delay_s
    rates = [host.nic.rate_bps for host in topology.hosts] + [link.a_to_b.rate_bps for link in topology.wan]
    assert max(rates) <= 200e6


def test_the_ring_and_the_pair_of_regions_are_as_they_say() -> None:
    ring = load_topology(TOPOLOGIES / "ring-of-four.yaml").resolve()
    ends = Counter(end for link in ring.wan for end in (link.a, link.b))
    assert (len(ring.wan), set(ends.values())) == (4, {2})
    assert ring.wan[0].a_to_b.delay_s == pytest.approx(80 * 4.9e-6)
    assert _ratio(ring, "north", ring.wan) == pytest.approx(2)
    pair = load_topology(TOPOLOGIES / "region-pair.yaml").resolve()
    near = [link for link in pair.wan if link.a[:-1] == link.b[:-1]]
    far = [link for link in pair.wan if link not in near]
    assert _ratio(pair, "iowa1", near) == pytest.approx(2.8, rel=1e-3)
    assert _ratio(pair, "iowa1", far) == pytest.approx(7, rel=1e-2)
    assert min(link.a_to_b.delay_s for link in far) > 40 * max(link.a_to_b.delay_s for link in near)


def _ratio(topology: Topology, building: str, links: Sequence[WanLink]) -> float:
    hosts_bps = sum(host.nic.rate_bps for host in topology.building(building).hosts)
    return hosts_bps / sum(link.a_to_b.rate_bps for link in links if building in (link.a, link.b))


@pytest.fixture(scope="module")
def mininet_topos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mininet_topos", TOPOLOGIES / "mininet_topos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wan(topo: Any) -> list[tuple[str, str, Any]]:
    """(switch, switch, parameters) of links between switches."""
    links = topo.links(sort=True, withInfo=True)
    return [(one, other, shape) for one, other, shape in links if topo.isSwitch(one) and topo.isSwitch(other)]


def test_mininet_gets_every_host_and_rates_it_can_shape(mininet_topos: ModuleType) -> None:
    topo = mininet_topos.topos["two_buildings"]()
    assert topo.hosts() == [f"{building}{number}" for building in ("east", "west") for number in (1, 2, 3, 4)]
    assert topo.nodeInfo("west3")["ip"] == "10.1.0.3/8"
    assert topo.nodeInfo("west3")["mac"] == "02:00:0a:01:00:03"
    ((_, _, shape),) = wan(topo)
    assert shape["params1"]["bw"] == pytest.approx(714.25)
    assert shape["params1"]["delay"] == "2500us"
    nics = [shape["bw"] for one, _, shape in topo.links(withInfo=True) if not topo.isSwitch(one)]
    assert nics == [1000.0] * 8


def test_mininet_directions_differ_where_the_file_says_so(mininet_topos: ModuleType) -> None:
    links = wan(mininet_topos.topos["three_buildings"](mesh=1))
    assert [(one, other) for one, other, _ in links] == [("s1", "s2"), ("s2", "s3"), ("s3", "s1")]
    coast_to_north, north_to_coast = links[2][2]["params1"], links[2][2]["params2"]
    assert (coast_to_north["bw"], coast_to_north["delay"]) == (40.0, "6000us")
    assert (north_to_coast["bw"], north_to_coast["delay"]) == (20.0, "12000us")


def test_mininet_links_close_no_loop_unless_asked(mininet_topos: ModuleType) -> None:
    assert [link[:2] for link in wan(mininet_topos.topos["three_buildings"]())] == [
        ("s1", "s2"),
        ("s3", "s1"),
    ]
    assert len(wan(mininet_topos.topos["two_buildings"]())) == 1
    assert len(wan(mininet_topos.topos["two_buildings"](planes=2))) == 2


def test_mininet_scale_can_be_chosen(mininet_topos: ModuleType) -> None:
    ((_, _, shape),) = wan(mininet_topos.topos["two_buildings"](size_scale=4000))
    assert shape["params2"]["bw"] == pytest.approx(71.425)


def test_mininet_says_why_a_file_cannot_be_read(mininet_topos: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"nowhere\.yaml: got no such file, expected a YAML file"):
        mininet_topos.resolve_topology("nowhere.yaml", 1)
