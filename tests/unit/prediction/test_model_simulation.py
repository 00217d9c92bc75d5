"""The model of a network: fair shares, latency, order, and collectives that take what their formulas say."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from testbed.comm.collectives import traffic
from testbed.comm.transport import Software
from testbed.net.paths import LossyConnection, Network, Path, network_of
from testbed.net.paths.alpha_beta import ring_all_reduce_s, ring_steps
from testbed.net.paths.congestion import LossResponse
from testbed.net.paths.hops import Paths
from testbed.prediction.fluid import Fluid, fair_rates
from testbed.prediction.simulation import simulate
from testbed.spec.link_direction import QueueClass
from testbed.spec.topology import load_topology
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation
from tests.unit.comm.collective_runs import ALGORITHMS
from tests.unit.workload.test_workload_pipeline_plan import write_topology

BYTES = 4


def send(peer: int, numel: int, tag: int = 0, stream: str = "", after: tuple[int, ...] = ()) -> Message:
    return Message(f"to {peer}", stream or f"to {peer}", "test", after, peer, numel, tag, sends=True)


def recv(peer: int, numel: int, tag: int = 0, after: tuple[int, ...] = ()) -> Message:
    return Message(f"from {peer}", f"from {peer}", "test", after, peer, numel, tag)


def one_link(ranks: int, latency_s: float = 0.0) -> Network:
    """Everybody's card takes 200 bytes a second, the link from rank 0 on 100."""
    capacities = {"link": 100.0}
    paths = {}
    for here in range(ranks):
        for there in range(ranks):
            if here != there:
                names = (f"{here} out", f"{there} in", *(["link"] if here == 0 else []))
                capacities.update(dict.fromkeys(names[:2], 200.0))
                paths[here, there] = Path(latency_s, names)
    return Network(capacities, paths)


def test_a_message_takes_its_bytes_and_then_the_latency() -> None:
    plan = JobPlan(((send(1, 25),), (recv(0, 25),)))
    timeline = simulate(plan, one_link(2, latency_s=0.5), BYTES)
    assert timeline.spans[0][0] == pytest.approx((0.0, 1.0))
    assert timeline.spans[1][0] == pytest.approx((0.0, 1.5))
    slower = simulate(plan, one_link(2, latency_s=0.5), BYTES, Software(message_s=0.1, byte_s=0.001))
    assert slower.step_time_s == pytest.approx(1.5 + 2 * (0.1 + 0.1))


def test_connections_share_evenly_and_what_one_cannot_use_goes_to_the_others() -> None:
    # 0 to 1 and 0 to 2 share the link; 3 to 1 gets what is left of rank 1's card
    plan = JobPlan(((send(1, 25), send(2, 50)), (recv(0, 25), recv(3, 75)), (recv(0, 50),), (send(1, 75),)))
    timeline = simulate(plan, one_link(4), BYTES)
    assert timeline.spans[0][0][1] == pytest.approx(2.0)  # 100 bytes at 50
    assert timeline.spans[0][1][1] == pytest.approx(3.0)  # 100 at 50, then 100 alone
    assert timeline.spans[3][0][1] == pytest.approx(2.0)  # 300 at 150


def test_hosts_of_a_leaf_share_its_uplinks() -> None:
    clos = {"leaves": 2, "spines": 1, "leaf": {"oversubscription": "1:2"}}
    building = {"hosts": 4, "nic": {"rate": "10 Gbit/s"}, "clos": clos}
    topology = load_topology({"name": "one", "buildings": {"east": building}}).resolve()
    network = network_of(topology, topology.hosts)  # the leaf's one uplink takes as much as a card

    def took_s(*pairs: tuple[int, int]) -> float:
        plans: list[tuple[Message, ...]] = [(), (), (), ()]
        for here, there in pairs:
            plans[here], plans[there] = (send(there, 10_000_000),), (recv(here, 10_000_000),)
        return simulate(JobPlan(tuple(plans)), network, BYTES).step_time_s

    alone_s = took_s((0, 2))
    assert took_s((0, 2), (1, 3)) == pytest.approx(2 * alone_s, rel=1e-3)
    assert took_s((0, 2), (3, 1)) == pytest.approx(alone_s)


def test_who_waits_for_several_messages_waits_for_the_latest_of_them() -> None:
    lossy = LossyConnection(
        "bbr", 0.5, 1.0, 1e9, 100.0, LossResponse(recovery=2.0)
    )  # every other message is 2 s late
    sends = [(send(0, 25),) for _ in range(4)]
    plan = JobPlan((tuple(recv(peer, 25) for peer in range(1, 5)), *sends))
    paths = {(peer, 0): Path(0.5, ("link",), lossy) for peer in range(1, 5)}
    network = Network({"link": 1e9}, paths)
    mean = simulate(plan, network, BYTES).step_time_s
    assert mean == pytest.approx(0.5 + 1.0)
    # in fifteen steps of sixteen one of the four is late
    drawn = [simulate(plan, network, BYTES, draws=[Random(number)]).step_time_s for number in range(50)]
    assert {round(step_s, 3) for step_s in drawn} == {0.5, 2.5}
    assert sum(step_s > 2 for step_s in drawn) > 40
    median = simulate(plan, network, BYTES, draws=[Random(number) for number in range(9)])
    assert median.step_time_s == sorted(drawn[:9])[4]


def test_messages_of_a_pair_keep_their_order() -> None:
    plan = JobPlan(((send(1, 25, 1, "a"), send(1, 25, 2, "b")), (recv(0, 25, 2), recv(0, 25, 1))))
    timeline = simulate(plan, one_link(2), BYTES)
    assert [end for _, end in timeline.spans[0]] == pytest.approx([1.0, 2.0])
    assert [end for _, end in timeline.spans[1]] == pytest.approx([2.0, 2.0])


def test_a_receiver_that_is_asked_answers_while_the_messages_before_leave() -> None:
    asked = replace(one_link(2, latency_s=0.25), needs_grants=True)
    one = simulate(JobPlan(((send(1, 25),), (recv(0, 25),))), asked, BYTES)
    assert one.step_time_s == pytest.approx(0.5 + 1.0 + 0.25)
    two = JobPlan(((send(1, 25, 1, "a"), send(1, 25, 2, "b")), (recv(0, 25, 1), recv(0, 25, 2))))
    assert simulate(two, asked, BYTES).step_time_s == pytest.approx(one.step_time_s + 1.0)


def test_a_stream_goes_on_when_its_socket_has_taken_a_message() -> None:
    busy = Computing("busy", "compute", "forward", duration_s=0.5)
    ours = (busy, send(1, 25, 1, "a"), send(1, 25, 2, "a"), send(1, 25, 3, "b", after=(0,)))
    plan = JobPlan((ours, tuple(replace(recv(0, 25, tag), stream=str(tag)) for tag in (1, 2, 3))))

    def ends(buffer_bytes: float) -> list[list[float]]:
        network = replace(one_link(2), send_buffer_bytes=buffer_bytes)
        return [[end for _, end in rank] for rank in simulate(plan, network, BYTES).spans]

    in_turns, half, at_once = (ends(buffer_bytes) for buffer_bytes in (0, 150, 300))
    assert in_turns[0][1:] == pytest.approx([1.0, 3.0, 2.0])
    assert in_turns[1] == pytest.approx([1.0, 3.0, 2.0])
    # the first is taken at once, the second when the first has left
    assert half[0][1:] == pytest.approx([0.0, 1.0, 2.0])
    assert at_once[0][1:] == pytest.approx([0.0, 0.0, 0.5])
    assert half[1] == at_once[1] == pytest.approx([1.0, 2.0, 3.0])


def test_held_messages_leave_when_their_receiver_waits_for_them() -> None:
    busy = Computing("busy", "compute", "forward", duration_s=3.0)
    operations: tuple[Operation, ...] = (busy, recv(0, 25, after=(0,)))
    early = simulate(JobPlan(((send(1, 25),), operations)), one_link(2), BYTES)
    held = simulate(JobPlan(((send(1, 25),), operations), holds_receivers=True), one_link(2), BYTES)
    assert early.step_time_s == pytest.approx(3.0)
    assert held.step_time_s == pytest.approx(4.0)


def test_an_uneven_all_to_all_takes_what_its_busiest_card_does() -> None:
    counts = (
        0,
        100,
        25,
    )  # of 4 bytes, from everybody to ranks 0, 1 and 2, whose cards take 200 bytes a second
    capacities = {f"{rank} {way}": 200.0 for rank in range(3) for way in ("in", "out")}
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    network = Network(capacities, {(a, b): Path(0.5, (f"{a} out", f"{b} in")) for a, b in pairs})

    def took(*, returns: bool) -> float:
        tokens = GroupCollective(
            "tokens", "tokens", "test", (), 0, "all_to_all_v", 300, "late_counts", counts, returns
        )
        return simulate(JobPlan(((tokens,),) * 3, (("all", (0, 1, 2)),)), network, BYTES).step_time_s

    assert took(returns=False) == pytest.approx((2 * 400 + 2 * 8) / 200 + 0.5, rel=0.02)
    assert took(returns=True) == pytest.approx((2 * 400 + 2 * 8) / 200 + 0.5, rel=0.02)


@pytest.mark.parametrize("numel", [8_000, 8_000_000])
def test_a_ring_takes_what_the_alpha_beta_model_says(tmp_path: object, numel: int) -> None:
    topology = load_topology(write_topology(tmp_path, hosts=4)).resolve()
    network = network_of(topology, topology.hosts)
    ring = GroupCollective("ring", "ring", "test", (), 0, "all_reduce", numel, "ring")
    plan = JobPlan(((ring,),) * 8, (("all", tuple(range(8))),))
    took = simulate(plan, network, BYTES).step_time_s
    lanes = 1 if numel < 100_000 else 4
    model = ring_all_reduce_s(ring_steps(Paths(topology), topology.hosts), numel * BYTES / 8, 0.0, lanes)
    assert took == pytest.approx(model, rel=0.05)


def test_a_ring_by_way_of_a_transit_site_takes_what_one_over_a_link_of_the_summed_delay_does() -> None:
    def took(wan: list[dict[str, str]], **sites: dict[str, int]) -> float:
        building = {"hosts": 2, "nic": {"rate": "400 Gbit/s"}}
        links = [{"rate": "100 Gbit/s", **link} for link in wan]
        document = {"name": "two", "buildings": {"east": building, "west": building, **sites}, "wan": links}
        topology = load_topology(document).resolve()
        ring = GroupCollective("ring", "ring", "test", (), 0, "all_reduce", 800_000, "ring")
        plan = JobPlan(((ring,),) * 4, (("all", tuple(range(4))),))
        return simulate(plan, network_of(topology, topology.hosts), BYTES).step_time_s

    direct_s = took([{"a": "east", "b": "west", "delay": "7 ms"}])
    links = [{"a": "east", "b": "relay", "delay": "3 ms"}, {"a": "relay", "b": "west", "delay": "4 ms"}]
    relayed_s = took(links, relay={"hosts": 0})
    frame_s = 9014 * 8 / 100e9
    # of a chunk's six steps three cross, and the transit site takes in a frame more each time
    assert relayed_s - direct_s == pytest.approx(3 * frame_s, rel=1e-6)
    assert direct_s > 3 * 7e-3


def everybody_apart(ranks: int) -> Network:
    """Each pair of ranks has a link of its own, of 100 bytes a second."""
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return Network(
        {f"{a} to {b}": 100.0 for a, b in pairs}, {(a, b): Path(0.0, (f"{a} to {b}",)) for a, b in pairs}
    )


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, algorithm)
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for algorithm in (*ALGORITHMS[collective], "auto")
    ],
)
def test_collectives_send_what_their_formulas_say(
    collective: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[tuple[int, int], float] = {}
    send = Fluid.send

    def counted(self: Fluid, key: Any, ways: Any, size_bytes: float, over: Any, **more: Any) -> None:
        ends, _ = key
        sent[ends] = sent.get(ends, 0.0) + size_bytes
        send(self, key, ways, size_bytes, over, **more)

    monkeypatch.setattr(Fluid, "send", counted)
    buildings, larger = (0, 0, 0, 1, 1, 1), 6 * 70_000
    operation = GroupCollective("all", "all", "test", (), 0, collective, larger, algorithm)
    plan = JobPlan(((operation,),) * 6, (("all", tuple(range(6))),), buildings=tuple(buildings))
    simulate(plan, everybody_apart(6), BYTES)
    block = larger if collective == "all_reduce" else larger // 6
    assert sent == traffic(collective, algorithm, block, BYTES, buildings)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "double_tree"])
def test_a_folded_collective_takes_alone_what_its_messages_take(tmp_path: object, algorithm: str) -> None:
    topology = load_topology(write_topology(tmp_path, hosts=4)).resolve()
    network = network_of(topology, topology.hosts)
    operation = GroupCollective("all", "all", "test", (), 0, "all_reduce", 800_000, algorithm)
    buildings = (0,) * 4 + (1,) * 4
    plan = JobPlan(((operation,),) * 8, (("all", tuple(range(8))),), buildings=buildings)
    software = Software(message_s=2e-6, byte_s=1e-10)
    messages = simulate(plan, network, BYTES, software).step_time_s
    assert simulate(plan, network, BYTES, software, folded=True).step_time_s == pytest.approx(messages)


def test_a_folded_collective_shares_with_others() -> None:
    # the ring and somebody else's message share rank 1's card; a ring is as slow as its slowest link
    pair = GroupCollective("pair", "pair", "test", (), 0, "all_reduce", 100, "ring")
    plan = JobPlan(
        ((pair,), (pair, recv(2, 50)), (send(1, 50),)),
        (("pair", (0, 1)),),
    )
    capacities = {"0 in": 100.0, "1 in": 100.0}
    paths = {(a, b): Path(0.0, (f"{b} in",)) for a in range(3) for b in (0, 1) if a != b}
    network = Network(capacities, paths)
    for folded in (False, True):
        timeline = simulate(plan, network, BYTES, folded=folded)
        assert timeline.spans[2][0] == pytest.approx((0.0, 4.0), rel=0.01)  # 200 bytes at half of 100
        assert timeline.spans[0][0] == pytest.approx((0.0, 6.0), rel=0.05)  # 400 bytes, of which 200 at half


def test_ranks_wait_for_each_other_before_a_folded_collective() -> None:
    late = Computing("late", "compute", "test", duration_s=2.0)
    pair = GroupCollective("pair", "pair", "test", (), 0, "all_reduce", 50, "ring")
    other = GroupCollective("pair", "pair", "test", (0,), 0, "all_reduce", 50, "ring")
    plan = JobPlan(((pair,), (late, other)), (("pair", (0, 1)),))
    timeline = simulate(plan, everybody_apart(2), BYTES, folded=True)
    assert timeline.spans[0][0] == pytest.approx((0.0, 4.0))
    assert timeline.spans[1][1] == pytest.approx((2.0, 4.0))


def test_one_connection_goes_on_several_ways_at_once() -> None:
    paths = Path(0.0, ("card", "plane 0")), Path(0.1, ("card", "plane 1"))
    network = Network(
        {"card": 250.0, "plane 0": 100.0, "plane 1": 50.0}, {(0, 1): paths[0]}, {((0, 1), 0): paths}
    )
    plan = JobPlan(((send(1, 75),), (recv(0, 75),)))
    timeline = simulate(plan, network, BYTES)
    assert timeline.spans[0][0] == pytest.approx((0.0, 2.0))  # 300 bytes at 150
    assert timeline.step_time_s == pytest.approx(2.1)


def test_shares_go_by_what_each_way_loads_parts_with() -> None:
    capacities = {"a": 90.0, "b": 100.0}
    assert fair_rates(capacities, [{"a": 2.0}, {"a": 1.0, "b": 1.0}, {"b": 1.0}]) == pytest.approx(
        [30, 30, 70]
    )


def test_classes_of_traffic_have_connections_of_their_own() -> None:
    collective = GroupCollective("bulk", "bulk", "bulk", (), 0, "all_reduce", 100, "ring")
    small = GroupCollective("small", "small", "small", (), 0, "all_reduce", 2, "ring")
    groups = (("pair", (0, 1)),)
    one = simulate(JobPlan(((collective, small),) * 2, groups), everybody_apart(2), BYTES)
    two = simulate(
        JobPlan(((collective, small),) * 2, groups, dscps={"small": 10}), everybody_apart(2), BYTES
    )
    assert two.spans[0][1][1] < 0.5 * one.spans[0][1][1]


def test_a_short_message_waits_for_what_stands_in_the_queue() -> None:
    # rank 0 has 400 bytes on the link of 100 a second when rank 3 begins to send 4: in fair shares 0.08 s
    paths = {ends: Path(0.0, ("link",)) for ends in ((0, 1), (3, 2))}
    wait = Computing("wait", "wait", "test", duration_s=1.0)
    plan = JobPlan(((send(1, 125),), (recv(0, 125),), (recv(3, 1),), (wait, send(2, 1, after=(0,)))))

    def arrived_s(queue: float, long_s: float = 5.04) -> float:
        network = Network({"link": 100.0}, paths, queues={"link": queue})
        timeline = simulate(plan, network, BYTES)
        assert timeline.spans[1][0][1] == pytest.approx(long_s)
        return timeline.spans[2][0][1] - 1.0

    assert arrived_s(queue=0.0) == pytest.approx(0.08)
    assert arrived_s(queue=100.0) == pytest.approx(1.04)
    assert arrived_s(queue=1e9, long_s=5.0) == pytest.approx(4.04)  # the whole long one is before it


def test_what_waits_in_its_card_comes_to_the_slower_link_later_by_that() -> None:
    # behind 200 bytes that the card sends elsewhere; a hop later it takes its own time at the link's rate
    capacities = {"card": 200.0, "link": 50.0, "other": 200.0}
    paths = {(0, 1): Path(0.0, ("card", "link")), (0, 2): Path(0.0, ("card", "other"))}
    paths |= {(1, 0): Path(0.0, ("card",)), (2, 0): Path(0.0, ("card",))}
    network = Network(capacities, paths, queues=dict.fromkeys(capacities, 1e6))
    plan = JobPlan(((send(2, 50, after=()), send(1, 5, stream="late")), (recv(0, 5),), (recv(0, 50),)))
    assert simulate(plan, network, BYTES).spans[1][0][1] == pytest.approx(200 / 200 + 20 / 50)


def test_messages_one_behind_the_other_have_one_window_together() -> None:
    lossy = LossyConnection("reno", 0.001, 1.0, 1e6, 1000, LossResponse(recovery=0.0))
    window = lossy.window_bytes
    assert lossy.least_s(3 * window) == pytest.approx(
        window / 1e6 + 2.0
    )  # a window at once, two by round trips
    network = Network({"link": 1e6}, {(0, 1): Path(0.0, ("link",), lossy), (1, 0): Path(0.0, ("link",))})
    numel = round(window / BYTES)

    def took_s(*sizes: int) -> float:
        sends = tuple(send(1, size, tag) for tag, size in enumerate(sizes))
        receives = tuple(recv(0, size, tag) for tag, size in enumerate(sizes))
        return simulate(JobPlan((sends, receives)), network, BYTES).step_time_s

    once_s = took_s(3 * numel)
    assert once_s == pytest.approx(window / 1e6 + 2.0, rel=1e-3)
    at_once_s = window / 1e6
    assert took_s(numel, numel, numel) == pytest.approx(once_s, abs=1.01 * at_once_s)
    assert took_s(numel) == pytest.approx(window / 1e6, rel=1e-3)


def test_messages_that_queues_hold_whole_go_one_after_the_other() -> None:
    # 400 bytes each on a link of 100 a second, the second from 1 s on: side by side both are done at the end
    paths = {ends: Path(0.0, ("link",)) for ends in ((0, 1), (3, 2))}
    wait = Computing("wait", "wait", "test", duration_s=1.0)
    plan = JobPlan(((send(1, 100),), (recv(0, 100),), (recv(3, 100),), (wait, send(2, 100, after=(0,)))))

    def arrived_s(queue: float) -> tuple[float, float]:
        spans = simulate(plan, Network({"link": 100.0}, paths, queues={"link": queue}), BYTES).spans
        return spans[1][0][1], spans[2][0][1]

    assert arrived_s(queue=399.0) == pytest.approx((7.0, 8.0))
    assert arrived_s(queue=400.0) == pytest.approx((4.0, 8.0))
    # at the same moment whoever is told first is first: no two cards send the same packets at the same time for long
    plan = JobPlan(((send(1, 100),), (recv(0, 100),), (recv(3, 100),), (send(2, 100),)))
    assert arrived_s(queue=400.0) == pytest.approx((4.0, 8.0))
    # who cannot use all of the link leaves the rest to the next
    capacities = {"link": 100.0, "card": 75.0}
    network = Network(capacities, {**paths, (0, 1): Path(0.0, ("card", "link"))}, queues={"link": 400.0})
    spans = simulate(plan, network, BYTES).spans
    assert spans[1][0][1] == pytest.approx(400 / 75)
    assert spans[2][0][1] == pytest.approx(8.0)


def test_a_collective_has_no_more_in_queues_than_it_sends_at_once() -> None:
    ring = GroupCollective("ring", "ring", "test", (), 0, "all_reduce", 1_200, "ring")
    wait = Computing("wait", "wait", "test", duration_s=1.0)
    plan = JobPlan(
        ((ring,), (ring,), (ring,), (wait, send(4, 1, after=(0,))), (recv(3, 1),)), (("ring", (0, 1, 2)),)
    )
    paths = {(a, b): Path(0.0, (f"{a} to {b}",)) for a in range(3) for b in range(3) if a != b}
    paths |= {(0, 1): Path(0.0, ("link",)), (3, 4): Path(0.0, ("link",))}
    network = Network(
        {part: 100.0 for path in paths.values() for part in path.parts}, paths, queues={"link": 1e9}
    )
    for folded in (False, True):
        timeline = simulate(plan, network, BYTES, folded=folded)
        assert timeline.spans[4][0][1] - 1.0 <= (1_200 / 3 * BYTES + 4) / 100 + 1e-6
        assert timeline.spans[4][0][1] - 1.0 > 1.0


def test_a_class_of_priority_goes_first_and_others_have_their_guarantee() -> None:
    first, rest = QueueClass("first", (10,), 0, limit=0.75), QueueClass("rest", (), 1, share=0.1)
    network = Network(
        {"link": 100.0, "first": 75.0, "rest": 100.0},
        {},
        {((0, 1), 10): (Path(0.0, ("link", "first")),), ((2, 3), 0): (Path(0.0, ("link", "rest")),)},
        classes={"link": (("first", first), ("rest", rest))},
    )
    urgent = Message("to 1", "to 1", "urgent", (), 1, 75, sends=True)
    plan = JobPlan(((urgent,), (recv(0, 75),), (send(3, 75),), (recv(2, 75),)), dscps={"urgent": 10})
    timeline = simulate(plan, network, BYTES)
    assert timeline.spans[0][0] == pytest.approx((0.0, 4.0))  # 300 bytes at 75
    assert timeline.spans[2][0] == pytest.approx((0.0, 6.0))  # 100 in those 4 s, then 200 at 100
    unlimited = replace(network, classes={"link": (("first", replace(first, limit=1.0)), ("rest", rest))})
    timeline = simulate(plan, replace(unlimited, capacities={**network.capacities, "first": 100.0}), BYTES)
    assert timeline.spans[0][0] == pytest.approx((0.0, 300 / 90))  # but for what is guaranteed to the other
    assert timeline.spans[2][0] == pytest.approx((0.0, 6.0))
