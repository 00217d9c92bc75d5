"""Policies, seen through the in-memory network: where packets go under the rules that a policy makes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.net.controller.edges import EdgePorts
from testbed.net.controller.policies import POLICIES
from testbed.net.controller.policy_view import View
from testbed.net.controller.rule_compiler import compute_rules
from testbed.net.controller.rules import Ecmp, Packet
from testbed.net.controller.table_simulator import Network, PacketTrace, Port, wires
from testbed.net.errors import ControllerError, NoPathError
from testbed.spec.topology import Topology, probe_address
from tests.unit.net.controller_topologies import Link, edge_ports, topology

UNKNOWN_ADDRESSES = ("10.1.7.7", "10.0.0.200", "10.77.0.1", "10.254.200.1", "192.0.2.1", "255.255.255.255")


class Emulated:
    """A topology's edges with the rules of a policy."""

    def __init__(self, policy: str, topo: Topology, seed: int = 0) -> None:
        self.topology = topo
        self.edges = {edge.building: edge for edge in edge_ports(topo)}
        self.rules = compute_rules(policy, topo, list(self.edges.values()), seed)
        self.network = Network(self.rules, wires(topo, list(self.edges.values())))

    def send(self, packet: Packet, building: str) -> PacketTrace:
        """From a host of a building."""
        return self.network.forward(packet, self.edges[building].entry)

    def probe(self, source: str, target: str, building: str) -> PacketTrace:
        edge = self.edges[building]
        return self.network.forward(Packet(source, target, 17, 40000, 40001), (edge.dpid, edge.probe))

    def links(self, trace: PacketTrace) -> list[str]:
        """Names of the WAN links that a packet took, in order."""
        ends: dict[Port, str] = {}
        for link in self.topology.wan:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                ends[self.edges[here].dpid, self.edges[here].wan[there, link.plane]] = link.name
        return [ends[hop] for hop in trace.hops if hop in ends]

    def between(self, here: str, there: str, **header: int) -> list[str]:
        """The links that a packet takes from a building's first host to another's."""
        source, target = (self.topology.building(name).hosts[0].ip for name in (here, there))
        trace = self.send(Packet(source, target, **header), here)
        assert trace.delivered == (self.edges[there].entry,)
        return self.links(trace)


TRIANGLE: list[Link] = [
    ("north", "east", 0.001),
    ("east", "south", 0.003),
    ("south", "east", 0.001),
    ("north", "south", 0.005),
]
HOSTS = {"north": 2, "east": 1, "south": 3}


def test_shortest_takes_the_path_of_least_delay_through_another_building() -> None:
    emulated = Emulated("shortest", topology(HOSTS, TRIANGLE))
    assert emulated.between("north", "south") == ["north-east-0", "south-east-1"]
    assert emulated.between("south", "north") == ["south-east-1", "north-east-0"]
    assert emulated.between("east", "south") == ["south-east-1"]


def test_shortest_takes_each_direction_for_itself() -> None:
    emulated = Emulated("shortest", topology({"a": 1, "b": 1}, [("a", "b", 0.001, 0.009), ("a", "b", 0.002)]))
    assert emulated.between("a", "b") == ["a-b-0"]
    assert emulated.between("b", "a") == ["a-b-1"]


def test_shortest_takes_the_lowest_plane_among_equals() -> None:
    links: list[Link] = [("a", "b", 0.004), ("a", "b", 0.002), ("b", "a", 0.002), ("a", "b", 0.002)]
    emulated = Emulated("shortest", topology({"a": 1, "b": 1}, links))
    assert {emulated.between("a", "b", source_port=port)[0] for port in range(20)} == {"a-b-1"}
    assert {emulated.between("b", "a", source_port=port)[0] for port in range(20)} == {"a-b-1"}


def test_fewer_links_win_among_equal_delays_then_the_first_building() -> None:
    square: list[Link] = [("a", "c", 0.001), ("c", "d", 0.001), ("a", "b", 0.001), ("b", "d", 0.001)]
    hosts = {"a": 1, "b": 1, "c": 1, "d": 1}
    assert Emulated("shortest", topology(hosts, square)).between("a", "d") == ["a-b-0", "b-d-0"]
    direct = Emulated("shortest", topology(hosts, [*square, ("a", "d", 0.002)]))
    assert direct.between("a", "d") == ["a-d-0"]


def test_delays_are_compared_without_rounding_errors() -> None:
    # 0.1 + 0.2 is not 0.3 in floating point; the direct link must still win by having fewer links
    links: list[Link] = [("a", "b", 0.1), ("b", "c", 0.2), ("a", "c", 0.3)]
    emulated = Emulated("shortest", topology({"a": 1, "b": 1, "c": 1}, links))
    assert emulated.between("a", "c") == ["a-c-0"]


def test_ecmp_uses_all_equal_planes_and_no_others() -> None:
    links: list[Link] = [("a", "b", 0.002), ("b", "a", 0.002), ("a", "b", 0.003), ("a", "b", 0.002)]
    emulated = Emulated("ecmp", topology({"a": 1, "b": 1}, links))
    used = [emulated.between("a", "b", source_port=port, destination_port=5001)[0] for port in range(300)]
    assert set(used) == {"a-b-0", "b-a-1", "a-b-3"}
    assert all(used.count(name) > 60 for name in set(used))


def test_ecmp_keeps_both_directions_of_a_flow_on_one_link_and_follows_the_seed() -> None:
    topo = topology({"a": 1, "b": 1}, [("a", "b", 0.002)] * 4)
    emulated, other = Emulated("ecmp", topo, seed=1), Emulated("ecmp", topo, seed=2)
    there = [emulated.between("a", "b", source_port=port, destination_port=9) for port in range(100)]
    back = [emulated.between("b", "a", source_port=9, destination_port=port) for port in range(100)]
    assert there == back
    assert there != [other.between("a", "b", source_port=port, destination_port=9) for port in range(100)]


def test_ecmp_on_a_single_link_is_a_plain_output() -> None:
    emulated = Emulated("ecmp", topology(HOSTS, [("north", "east", 0.001), ("east", "south", 0.001)]))
    actions = [action for own in emulated.rules.values() for rule in own for action in rule.actions]
    assert not any(isinstance(action, Ecmp) for action in actions)
    assert emulated.between("north", "south") == ["north-east-0", "east-south-0"]


def test_seeds_of_any_size_are_taken() -> None:
    rules = compute_rules(
        "ecmp", (topo := topology(HOSTS, TRIANGLE[:1] * 2 + TRIANGLE[1:])), edge_ports(topo), 2**40 + 3
    )
    seeds = {
        action.seed
        for own in rules.values()
        for rule in own
        for action in rule.actions
        if isinstance(action, Ecmp)
    }
    assert seeds == {3}


def test_transit_does_not_reach_the_hosts_on_the_way() -> None:
    emulated = Emulated("shortest", topology(HOSTS, TRIANGLE))
    source, target = (emulated.topology.building(name).hosts[0].ip for name in ("north", "south"))
    trace = emulated.send(Packet(source, target), "north")
    assert [dpid for dpid, _ in trace.hops] == [
        emulated.edges[name].dpid for name in ("north", "east", "south")
    ]


def test_buildings_without_a_path_are_named() -> None:
    topo = topology({"a": 1, "b": 1, "c": 1}, [("a", "b", 0.001)])
    with pytest.raises(NoPathError, match="topology test: no path from a to c"):
        compute_rules("shortest", topo, edge_ports(topo))


def test_one_building_needs_no_wan() -> None:
    topo = topology({"a": 2}, [])
    rules = compute_rules("ecmp", topo, edge_ports(topo))
    assert [rule.match.ipv4_dst for rule in rules[100]] == ["10.0.0.1/32", "10.0.0.2/32", None]


def test_edges_that_do_not_fit_the_topology_are_refused() -> None:
    topo = topology(HOSTS, TRIANGLE)
    north, east, south = edge_ports(topo)

    def refused(*edges: EdgePorts) -> str:
        with pytest.raises(ControllerError) as caught:
            compute_rules("shortest", topo, edges)
        return str(caught.value)

    assert "expected one edge for each of" in refused(north, east)
    assert "datapath ids [100, 100, 102] are not all different" in refused(
        north, replace(east, dpid=100), south
    )
    assert "edge north: got WAN ports to []" in refused(replace(north, wan={}), east, south)
    assert "edge north: ports" in refused(replace(north, probe=1), east, south)
    assert "edge north: got local port None" in refused(replace(north, local=None), east, south)
    with pytest.raises(
        ControllerError, match=r"policy: got 'fastest', expected FILE\.py:NAME or one of shortest, ecmp"
    ):
        compute_rules("fastest", topo, [north, east, south])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Connected: a random tree of buildings, more links, some of them parallel; few delays, so many are equal.

    Some buildings are transit sites, but not all.
    """
    count = draw(st.integers(2, 7))
    names = [f"b{index}" for index in range(count)]
    pairs = [(names[draw(st.integers(0, index - 1))], names[index]) for index in range(1, count)]
    extra = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=8)
    pairs += [pair for pair in draw(extra) if pair[0] != pair[1]]
    delay = st.sampled_from([0.0, 0.001, 0.002, 0.0035])
    links: list[Link] = [(a, b, draw(delay), draw(delay)) for a, b in draw(st.permutations(pairs))]
    hosts = {name: draw(st.integers(0, 2)) for name in names}
    return topology({**hosts, names[0]: max(1, hosts[names[0]])}, links)


def least_delay_s(topo: Topology) -> dict[str, dict[str, float]]:
    """The least delay between buildings, by another algorithm over another graph."""
    graph = networkx.MultiDiGraph()
    for link in topo.wan:
        graph.add_edge(link.a, link.b, weight=link.a_to_b.delay_s)
        graph.add_edge(link.b, link.a, weight=link.b_to_a.delay_s)
    return {here: dict(row) for here, row in networkx.floyd_warshall(graph).items()}


@settings(max_examples=60, deadline=None)
@given(topologies(), st.sampled_from(sorted(POLICIES)), st.integers(0, 0xFFFF), st.integers(0, 1000))
def test_on_any_topology_packets_arrive_by_the_least_delay_and_nothing_else_moves(
    topo: Topology, policy: str, seed: int, first_port: int
) -> None:
    emulated = Emulated(policy, topo, seed)
    least_s = least_delay_s(topo)
    delays_s = {(link.name, link.a): link.a_to_b.delay_s for link in topo.wan}
    delays_s |= {(link.name, link.b): link.b_to_a.delay_s for link in topo.wan}
    by_dpid = {edge.dpid: name for name, edge in emulated.edges.items()}
    for here, there in permutations(topo.hosts, 2):
        if here.building == there.building:
            continue
        for port in range(first_port, first_port + 3):
            trace = emulated.send(Packet(here.ip, there.ip, 6, port, 29500), here.building)
            target = emulated.edges[there.building]
            assert not trace.looped
            assert trace.delivered == (target.entry,)
            buildings = [by_dpid[dpid] for dpid, _ in trace.hops]
            assert len(set(buildings)) == len(buildings)
            taken = zip(emulated.links(trace), buildings, strict=False)
            if policy != "spray":  # which takes slower planes too
                took_s = sum(delays_s[end] for end in taken)
                assert took_s == pytest.approx(least_s[here.building][there.building])
            assert emulated.send(Packet(here.ip, there.ip, 6, port, 29500), here.building) == trace


@settings(max_examples=30, deadline=None)
@given(topologies(), st.sampled_from(sorted(POLICIES)))
def test_on_any_topology_probes_take_exactly_their_link_and_unknown_packets_are_dropped(
    topo: Topology, policy: str
) -> None:
    emulated = Emulated(policy, topo)
    for index, link in enumerate(topo.wan):
        a, b = probe_address(index, "a"), probe_address(index, "b")
        for here, there, source, target in ((link.a, link.b, a, b), (link.b, link.a, b, a)):
            trace = emulated.probe(source, target, here)
            end = emulated.edges[there]
            assert trace.delivered == ((end.dpid, end.probe),)
            assert emulated.links(trace) == [link.name]
            # a probe that comes in over another link is not taken for this one
            for port in (*filter(None, [end.local]), *end.wan.values()):
                if port != end.wan[here, link.plane]:
                    stray = emulated.network.forward(Packet(source, target), (end.dpid, port))
                    assert stray.delivered == ()
        for building in topo.buildings:
            if building.name not in (link.a, link.b):
                assert emulated.probe(a, b, building.name).hops == ()
    for building in topo.populated:
        for address in UNKNOWN_ADDRESSES:
            trace = emulated.send(Packet(building.hosts[0].ip, address), building.name)
            assert trace.delivered == ()
            assert not trace.looped


@settings(max_examples=30, deadline=None)
@given(topologies())
def test_nothing_is_ever_copied_and_rules_are_the_same_each_time(topo: Topology) -> None:
    for policy in POLICIES:
        rules = compute_rules(policy, topo, edge_ports(topo))
        assert all(len(rule.actions) <= 1 for own in rules.values() for rule in own)
        assert rules == compute_rules(policy, topo, list(reversed(edge_ports(topo))))
    hops = View(topo).next_hops
    assert all(set(row) == set(hops) - {here} for here, row in hops.items())
