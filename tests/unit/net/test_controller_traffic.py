"""Policies that know the traffic: declared flows go where they should, shares are as asked, failures are survived."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.net.controller import Flow, PolicyChoice, PolicyError, View, compute
from testbed.net.controller.policies import POLICIES
from testbed.net.controller.policies.base import repeat_by_rate
from testbed.net.controller.policies.explicit import Te
from testbed.net.controller.policies.multipath import interleave
from testbed.net.controller.policy_view import with_reverse_flows
from testbed.net.controller.table_simulator import Network, PacketTrace, wires
from testbed.spec.link_direction import QueueClass
from testbed.spec.topology import Topology
from tests.unit.net.controller_topologies import Link, edge_ports, rated, topology

GBPS = 1e9


def flows(topo: Topology, channels: int = 1, size_bytes: float = 1e6, pairs: Any = None) -> list[Flow]:
    """One flow a channel from each host to each of other buildings (or for these pairs of names), one direction."""
    found = []
    for here, there in pairs or product(topo.hosts, topo.hosts):
        source, target = (
            (here, there)
            if pairs is None
            else (next(h for h in topo.hosts if h.name == name) for name in (here, there))
        )
        if source.building == target.building or source.index > target.index:
            continue
        found += [
            Flow(source.name, target.name, channel, size_bytes, 33000 + 16 * source.index + channel, 29500)
            for channel in range(channels)
        ]
    return found


class Emulated:
    """A policy's rules for a topology with declared traffic, in the in-memory network."""

    def __init__(self, topo: Topology, own: list[Flow], policy: str, **options: Any) -> None:
        self.view = View(topo, own, seed=3)
        edges = edge_ports(topo)
        self.computed = compute(PolicyChoice(policy, options), self.view, edges)
        self.network = Network(self.computed.rules, wires(topo, edges))
        self.edges = {edge.building: edge for edge in edges}
        self.links = {}
        for link in topo.wan:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                self.links[self.edges[here].dpid, self.edges[here].wan[there, link.plane]] = link.name

    def send(self, flow: Flow) -> PacketTrace:
        here, _ = self.view.ends(flow)
        start = self.edges[here].entry
        return self.network.forward(self.view.packet(flow), start, flow.size_bytes)

    def path(self, flow: Flow) -> list[str]:
        return [self.links[hop] for hop in self.send(flow).hops if hop in self.links]

    def load(self) -> dict[str, float]:
        """Bytes per link, both directions, when every declared flow has sent its own."""
        for flow in self.view.crossing:
            self.send(flow)
        found: dict[str, float] = defaultdict(float)
        for end, size in self.network.bytes.items():
            if end in self.links:
                found[self.links[end]] += size
        return found


FOUR_PLANES = topology({"east": 4, "west": 4}, [("east", "west", 0.002)] * 4)


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_qp_aware_deals_connections_out_evenly(channels: int) -> None:
    pairs = [("east1", "west1"), ("east2", "west2"), ("east3", "west3"), ("east4", "west4")]
    emulated = Emulated(FOUR_PLANES, flows(FOUR_PLANES, channels, pairs=pairs), "qp_aware")
    loads = emulated.load()
    assert set(loads.values()) == {channels * 1e6}
    ring = [("east4", "west1"), ("east1", "west4")]
    few = Emulated(FOUR_PLANES, flows(FOUR_PLANES, channels, pairs=ring), "qp_aware").load()
    assert max(few.values()) - min(few.get(link.name, 0.0) for link in FOUR_PLANES.wan) <= 1e6


@pytest.mark.parametrize("policy", ["qp_aware", "spray", "te"])
def test_both_directions_of_a_connection_take_the_same_link_where_they_are_dealt_out(policy: str) -> None:
    own = with_reverse_flows(flows(FOUR_PLANES, 3))
    emulated = Emulated(FOUR_PLANES, own, policy)
    if policy == "te":
        return  # which gives each direction the path that is best for it
    taken: dict[Any, set[str]] = defaultdict(set)
    for flow in own:
        taken[flow.connection].update(emulated.path(flow))
    assert all(len(links) == 1 for links in taken.values())


UNEQUAL = rated(
    {"east": 2, "west": 2}, [("east", "west", 0.002, 28 * GBPS), ("east", "west", 0.002, 10 * GBPS)]
)


def test_wcmp_spreads_by_rate() -> None:
    emulated = Emulated(UNEQUAL, [], "wcmp")
    many = [Flow("east1", "west1", 0, 1.0, port, 29500) for port in range(20000, 22000)]
    used = Counter(emulated.path(flow)[0] for flow in many)
    assert used["east-west-0"] / len(many) == pytest.approx(28 / 38, abs=0.05)


def test_weights_keep_the_proportions_of_rates() -> None:
    ends = View(UNEQUAL).towards("east", "west")
    weights = Counter(end.plane for end in repeat_by_rate(ends))
    assert weights[0] / weights[1] == pytest.approx(2.8, rel=0.02)
    order = [end.plane for end in interleave(repeat_by_rate(ends))]
    assert Counter(order) == weights
    assert max(len(run) for run in "".join(map(str, order)).split("1")) <= 3


def test_te_fills_links_by_their_rates() -> None:
    own = flows(UNEQUAL, channels=8)
    emulated = Emulated(UNEQUAL, own, "te")
    loads = emulated.load()
    total = sum(loads.values())
    assert loads["east-west-0"] / total == pytest.approx(28 / 38, abs=0.04)
    notes = emulated.computed.notes
    assert notes["bound"] == pytest.approx(total / (38 * GBPS), rel=1e-6)
    assert notes["bound"] <= notes["reached"] <= 1.1 * notes["bound"]


def test_te_is_never_worse_than_dealing_out() -> None:
    own = [
        Flow("east1", f"west{number % 4 + 1}", number, size, 33000 + number, 29500)
        for number, size in enumerate([9e6, 7e6, 6e6, 5e6, 5e6, 4e6, 2e6, 2e6])
    ]
    te = Emulated(FOUR_PLANES, own, "te")
    busiest = max(te.load().values())
    assert busiest <= max(Emulated(FOUR_PLANES, own, "qp_aware").load().values())
    assert te.computed.notes["reached"] == pytest.approx(busiest / 1e8)


def test_te_takes_detours_only_when_it_may_and_they_help() -> None:
    ring: list[Link] = [("a", "b", 0.001), ("b", "c", 0.001), ("a", "c", 0.001)]
    topo = topology({"a": 1, "b": 1, "c": 1}, ring)
    own = [Flow("a1", "b1", number, 1e6, 33000 + number, 29500) for number in range(4)]
    assert set(Emulated(topo, own, "te").load()) == {"a-b-0"}
    loads = Emulated(topo, own, "te", detours=1).load()
    assert loads == {"a-b-0": 2e6, "a-c-0": 2e6, "b-c-0": 2e6}


def test_te_of_nothing_is_nothing() -> None:
    te = Te()
    assert te.assign(View(UNEQUAL), [], {}) == {}
    assert te.reached == 0.0


def test_pinned_paths_are_taken_both_ways_and_the_first_entry_counts() -> None:
    ring: list[Link] = [("a", "b", 0.001), ("b", "c", 0.001), ("a", "c", 0.001), ("a", "c", 0.001)]
    topo = topology({"a": 2, "b": 1, "c": 1}, ring)
    paths = [
        {"from": "a1", "to": "c1", "links": ["a-b-0", "b-c-0"]},
        {"from": "a", "to": "c", "links": ["a-c-1"]},
    ]
    emulated = Emulated(topo, [], "pinned", paths=paths)
    assert emulated.path(Flow("a1", "c1")) == ["a-b-0", "b-c-0"]
    assert emulated.path(Flow("c1", "a1")) == ["b-c-0", "a-b-0"]
    assert emulated.path(Flow("a2", "c1")) == ["a-c-1"]
    assert emulated.path(Flow("b1", "c1")) == ["b-c-0"]


def test_a_channel_can_be_pinned_alone() -> None:
    own = flows(FOUR_PLANES, 2, pairs=[("east1", "west1")])
    paths = [{"from": "east1", "to": "west1", "channel": 1, "links": ["east-west-3"]}]
    emulated = Emulated(FOUR_PLANES, own, "pinned", paths=paths)
    assert emulated.path(own[1]) == ["east-west-3"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"from": "east", "to": "west", "links": ["east-west-7"]}, "paths[0].links: got 'east-west-7'"),
        ({"from": "north", "to": "west", "links": ["east-west-0"]}, "paths[0].from: got 'north'"),
        ({"from": "east", "to": "west", "links": []}, "got the path east, expected one to west"),
        ({"from": "east", "to": "west", "links": ["east-west-0", "east-west-1"]}, "no building twice"),
    ],
)
def test_paths_that_cannot_be_are_named(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Emulated(FOUR_PLANES, [], "pinned", paths=[entry])
    assert words in str(caught.value)


def test_priority_has_a_queue_for_each_class_and_the_rest_comes_last() -> None:
    classes = Emulated(FOUR_PLANES, [], "priority", over="shortest").computed.classes
    assert classes == (
        QueueClass("pipeline", (46,), 0),
        QueueClass("gradients", (26,), 1),
        QueueClass("rest", (), 2),
    )


def test_isolate_marks_what_hosts_send_and_shares_out() -> None:
    jobs = [{"name": "ours", "hosts": ["east1", "west1"], "share": 0.6}]
    emulated = Emulated(FOUR_PLANES, [], "isolate", jobs=jobs)
    assert emulated.computed.classes == (QueueClass("ours", (40,), share=0.6), QueueClass("rest", share=0.4))
    marked = emulated.network.switches[emulated.edges["east"].dpid]
    packet = emulated.view.packet(Flow("east1", "west1", dscp=7))
    [(_, sent)] = marked.outputs(packet, emulated.edges["east"].entry[1])
    assert sent.ip_dscp == 40
    other = emulated.view.packet(Flow("east2", "west1", dscp=7))
    [(_, sent)] = marked.outputs(other, emulated.edges["east"].entry[1])
    assert sent.ip_dscp == 7


def test_limit_holds_some_packets_back() -> None:
    limits = [{"name": "background", "dscp": [8, 9], "limit": 0.25}]
    classes = Emulated(FOUR_PLANES, [], "limit", limits=limits).computed.classes
    assert classes == (QueueClass("background", (8, 9), limit=0.25), QueueClass("rest"))


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("isolate", {"jobs": [{"name": "a", "hosts": ["east1"], "share": 1.2}]}, "share 1.2 and limit 1"),
        (
            "isolate",
            {
                "jobs": [
                    {"name": "a", "hosts": ["east1"], "share": 0.7},
                    {"name": "b", "hosts": ["east2"], "share": 0.5},
                ]
            },
            "shares of 120.0000% in total, expected at most 100 %",
        ),
        (
            "isolate",
            {"jobs": [{"name": "a", "hosts": ["east9"], "share": 0.2}]},
            "got 'east9', expected a host",
        ),
        ("priority", {"classes": [{"name": "a", "dscp": 64}]}, "got DSCP 64, expected 0 to 63"),
        ("priority", {"over": "fastest"}, "over: got 'fastest', expected"),
        ("shortest", {"over": "ecmp"}, "option 'over' is unknown; expected: none"),
        ("fastest", {}, "policy: got 'fastest', expected"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(policy: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Emulated(FOUR_PLANES, [], policy, **options)
    assert words in str(caught.value)


OWN = '''
from testbed.net.controller import LinkPolicy, Policy, Route


class LastPlane(LinkPolicy):
    """All traffic on the highest plane."""

    def choose(self, ends):
        return ends[-1:]


class Absent(Policy):
    def routes(self, view):
        for here, there in view.pairs():
            yield Route(here, view.to(there), ("east-west-9",))


class Circles(Policy):
    def routes(self, view):
        yield from LastPlane().routes(view)
        yield Route("a", view.to("c"), ("a-b-0",), rank=1)
        yield Route("b", view.to("c"), ("a-b-1",), rank=1)


class Nothing(Policy):
    def routes(self, view):
        return []


class Broken(LinkPolicy):
    def choose(self, ends):
        return ends[99]


class Twice(Policy):
    def routes(self, view):
        for here, there in view.pairs():
            for link in ("east-west-0", "east-west-1"):
                yield Route(here, view.to(there), (link,))
'''


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_policy_of_ones_own_is_taken_from_its_file(own_file: Path) -> None:
    emulated = Emulated(FOUR_PLANES, [], f"{own_file}:LastPlane")
    assert emulated.path(Flow("east1", "west1")) == ["east-west-3"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Absent", "got 'east-west-9', expected one of east's links: east-west-0"),
        ("Nothing", "packets from east to west would be dropped"),
        ("Broken", "IndexError: list index out of range (FILE, line 32)"),
        ("Twice", "two routes at east for ipv4_dst=10.1.0.0/16: expected different ranks"),
        ("Missing", "got no Missing in the file, expected a name in it: LastPlane, Absent"),
    ],
)
def test_what_is_wrong_with_ones_own_policy_is_said_with_its_place(
    own_file: Path, name: str, words: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Emulated(FOUR_PLANES, [], f"{own_file}:{name}")
    assert words in str(caught.value).replace(str(own_file), "FILE")
    assert str(caught.value).startswith(f"policy {own_file}:{name}: ")


def test_a_policy_that_sends_packets_in_circles_is_refused(own_file: Path) -> None:
    topo = topology({"a": 1, "b": 1, "c": 1}, [("a", "b", 0.001), ("a", "b", 0.001), ("b", "c", 0.001)])
    with pytest.raises(PolicyError, match="packets from a to c would loop"):
        Emulated(topo, [], f"{own_file}:Circles")


BACKBONE = rated(
    {"east": 2, "north": 0, "west": 2, "south": 0},
    [
        ("east", "north", 0.003, GBPS),
        ("north", "west", 0.004, GBPS),
        ("east", "south", 0.005, GBPS),
        ("south", "west", 0.006, GBPS),
    ],
)
NORTHERN, SOUTHERN = ["east-north-0", "north-west-0"], ["east-south-0", "south-west-0"]


def test_traffic_engineering_takes_both_paths_through_transit_sites_and_shortest_takes_one() -> None:
    own = flows(BACKBONE, 2, pairs=[("east1", "west1"), ("east2", "west2")])
    shortest, te = Emulated(BACKBONE, own, "shortest"), Emulated(BACKBONE, own, "te")
    assert {tuple(shortest.path(flow)) for flow in own} == {tuple(NORTHERN)}
    assert sorted(te.path(flow) for flow in own) == [NORTHERN] * 2 + [SOUTHERN] * 2


def test_failover_goes_by_the_other_transit_site_where_its_path_is_the_one_left() -> None:
    own = flows(BACKBONE, 1, pairs=[("east1", "west1")])
    view = View(BACKBONE, own, ["north-west-0"])
    computed = compute(PolicyChoice("failover"), view, edge_ports(BACKBONE))
    emulated = Emulated(BACKBONE, own, "failover")
    emulated.network = Network(computed.rules, wires(BACKBONE, edge_ports(BACKBONE)))
    assert [emulated.path(flow) for flow in own] == [SOUTHERN]


def test_a_path_by_hand_leads_through_a_transit_site_but_not_to_one() -> None:
    own = flows(BACKBONE, 1, pairs=[("east1", "west1")])
    pinned = Emulated(BACKBONE, own, "pinned", paths=[{"from": "east", "to": "west", "links": SOUTHERN}])
    assert [pinned.path(flow) for flow in own] == [SOUTHERN]
    with pytest.raises(
        PolicyError, match=r"paths\[0\].to: got 'north', expected a building with hosts or a host"
    ):
        Emulated(BACKBONE, own, "pinned", paths=[{"from": "east", "to": "north", "links": NORTHERN[:1]}])


@st.composite
def loaded(draw: st.DrawFn) -> View:
    """A connected topology with unequal planes, some buildings transit sites, and traffic between its hosts."""
    count = draw(st.integers(2, 5))
    names = [f"b{index}" for index in range(count)]
    pairs = [(names[draw(st.integers(0, index - 1))], names[index]) for index in range(1, count)]
    extra = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=6)
    pairs += [pair for pair in draw(extra) if pair[0] != pair[1]]
    rate, delay = st.sampled_from([1 * GBPS, 2.8 * GBPS, 10 * GBPS]), st.sampled_from([0.001, 0.002])
    topo = rated(
        {name: draw(st.integers(0 if name in names[1:-1] else 1, 2)) for name in names},
        [(a, b, draw(delay), draw(rate)) for a, b in pairs],
    )
    return View(topo, flows(topo, draw(st.integers(1, 3)), draw(st.sampled_from([1e3, 1e6]))))


@settings(max_examples=40, deadline=None)
@given(loaded(), st.sampled_from(sorted(POLICIES)))
def test_on_any_topology_every_declared_flow_arrives_once_and_nothing_is_flooded(
    view: View, policy: str
) -> None:
    emulated = Emulated(view.topology, list(view.flows), policy)
    for flow in with_reverse_flows(view.crossing):
        trace = emulated.send(flow)
        there = emulated.edges[view.ends(flow)[1]]
        assert trace.delivered == (there.entry,)
        assert not trace.looped
        assert len(trace.hops) == len(set(trace.hops)) <= len(view.buildings)


@settings(max_examples=40, deadline=None)
@given(loaded(), st.sampled_from(["shortest", "ecmp", "qp_aware", "te"]), st.data())
def test_failover_survives_any_link_that_leaves_another_of_its_pair(
    view: View, over: str, data: st.DataObject
) -> None:
    emulated = Emulated(view.topology, list(view.flows), "failover", over=over)
    link = data.draw(st.sampled_from(view.topology.wan))
    spares = [other for other in view.topology.wan if {other.a, other.b} == {link.a, link.b}]
    if len(spares) < 2:
        return
    edge = emulated.edges[link.a]
    emulated.network.cut((edge.dpid, edge.wan[link.b, link.plane]))
    for flow in view.crossing:
        assert emulated.send(flow).delivered, f"{flow} without {link.name}"


def test_failover_leaves_paths_as_they_are_and_spares_take_turns() -> None:
    own = flows(FOUR_PLANES, 4, pairs=[("east1", "west1")])
    intact = {flow.channel: Emulated(FOUR_PLANES, own, "qp_aware").path(flow) for flow in own}
    emulated = Emulated(FOUR_PLANES, own, "failover", over="qp_aware")
    assert {flow.channel: emulated.path(flow) for flow in own} == intact
    edge = emulated.edges["east"]
    emulated.network.cut((edge.dpid, edge.wan["west", 1]))
    after = {flow.channel: emulated.path(flow) for flow in own}
    moved = [channel for channel in intact if after[channel] != intact[channel]]
    assert [intact[channel] for channel in moved] == [["east-west-1"]] * len(moved)
    assert [after[channel] for channel in moved] == [["east-west-2"]] * len(moved)


@settings(max_examples=40, deadline=None)
@given(loaded(), st.sampled_from(sorted(POLICIES)), st.data())
def test_planned_anew_any_single_failure_is_survived_where_there_is_a_path(
    view: View, policy: str, data: st.DataObject
) -> None:
    link = data.draw(st.sampled_from(view.topology.wan))
    graph = networkx.MultiGraph()
    graph.add_nodes_from(view.buildings)
    graph.add_edges_from((other.a, other.b) for other in view.topology.wan if other != link)
    edges = edge_ports(view.topology)
    computed = compute(PolicyChoice(policy), replace(view, down=[link.name]), edges)
    network = Network(computed.rules, wires(view.topology, edges))
    by_name = {edge.building: edge for edge in edges}
    network.cut((by_name[link.a].dpid, by_name[link.a].wan[link.b, link.plane]))
    for flow in view.crossing:
        here, there = view.ends(flow)
        trace = network.forward(view.packet(flow), by_name[here].entry)
        assert bool(trace.delivered) == networkx.has_path(graph, here, there)
        assert not trace.looped


@settings(max_examples=25, deadline=None)
@given(loaded())
def test_te_keeps_to_its_bound(view: View) -> None:
    emulated = Emulated(view.topology, list(view.flows), "te")
    notes = emulated.computed.notes
    rates = {link.name: link.a_to_b.rate_bps for link in view.topology.wan}
    for flow in view.crossing:
        emulated.send(flow)
    busiest = max(
        (
            size / rates[emulated.links[end]]
            for end, size in emulated.network.bytes.items()
            if end in emulated.links
        ),
        default=0.0,
    )
    assert busiest == pytest.approx(notes["reached"], abs=1e-12)
    assert notes["reached"] >= notes["bound"] * (1 - 1e-6) - 1e-12
