"""The model of a network: fair shares, latency, order, and collectives that take what their formulas say."""

from __future__ import annotations

import pytest

from testbed.config import load_topology
from testbed.fidelity.alpha_beta import ring_all_reduce_s, ring_steps
from testbed.simulate import Network, Path, network_of, simulate
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation
from tests.unit.test_workload_planning import write_topology

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
    slower = simulate(plan, one_link(2, latency_s=0.5), BYTES, message_s=0.1, byte_s=0.001)
    assert slower.step_time_s == pytest.approx(1.5 + 2 * (0.1 + 0.1))


def test_connections_share_evenly_and_what_one_cannot_use_goes_to_the_others() -> None:
    # 0 to 1 and 0 to 2 share the link; 3 to 1 gets what is left of rank 1's card
    plan = JobPlan(((send(1, 25), send(2, 50)), (recv(0, 25), recv(3, 75)), (recv(0, 50),), (send(1, 75),)))
    timeline = simulate(plan, one_link(4), BYTES)
    assert timeline.spans[0][0][1] == pytest.approx(2.0)  # 100 bytes at 50
    assert timeline.spans[0][1][1] == pytest.approx(3.0)  # 100 at 50, then 100 alone
    assert timeline.spans[3][0][1] == pytest.approx(2.0)  # 300 at 150


def test_messages_of_a_pair_keep_their_order() -> None:
    plan = JobPlan(((send(1, 25, 1, "a"), send(1, 25, 2, "b")), (recv(0, 25, 2), recv(0, 25, 1))))
    timeline = simulate(plan, one_link(2), BYTES)
    assert [end for _, end in timeline.spans[0]] == pytest.approx([1.0, 2.0])
    assert [end for _, end in timeline.spans[1]] == pytest.approx([2.0, 2.0])


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
    model = ring_all_reduce_s(ring_steps(topology, topology.hosts), numel * BYTES / 8, 0.0, lanes)
    assert took == pytest.approx(model, rel=0.05)
