"""Tensor parallelism in blocks: which block goes where, the same bytes, what overlaps, sums that are right."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.collectives import Communicator
from testbed.documents import from_json, to_json
from testbed.measure.ranks.executor import Executor, PlanOutcome
from testbed.net.paths import Network
from testbed.net.paths import Path as Way
from testbed.prediction.simulation import simulate
from testbed.spec.errors import ConfigError
from testbed.workload.job.job import Workload
from testbed.workload.layers import LayerPlanner
from testbed.workload.parallelism import TENSOR, ParallelismError
from testbed.workload.plan import GATHERED, REDUCED, Block, Computing, JobPlan
from testbed.workload.plan_options import Group, Options
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.schedules import Action, Kind
from testbed.workload.sequence_parallel import (
    RING,
    TREE,
    BlockWise,
    Exchange,
    gather_exchanges,
    reduce_exchanges,
)
from testbed.workload.stages import Part
from tests.unit.measure.ranks import in_memory, in_place, over_channels, over_tcp, with_cost
from tests.unit.workload.test_workload_pipeline_plan import workload

EVENLY = [
    (RING, (0,) * 5),
    (RING, (0, 0, 1, 1)),
    (TREE, (0,) * 4),
    (TREE, (0, 0, 0, 0, 1, 1, 1, 1)),
    (TREE, (0, 1, 2, 0, 1, 2)),
]
ways = pytest.mark.parametrize(("way", "nodes"), EVENLY)


def carried_out(exchanges: Sequence[Exchange], held: list[set[int]], *, ordered: bool) -> list[list[int]]:
    """Blocks that each member has in the end, in the order in which it got them, each passed on once it is there.

    ordered: whether a block waits for those that its sender sends to the same peer before it.
    """
    got: list[list[int]] = [[] for _ in exchanges]
    left = [list(exchange.sends) for exchange in exchanges]
    while any(left):
        moved = False
        for own, sends in enumerate(left):
            firsts = {hop.peer: hop for hop in reversed(sends)} if ordered else dict(enumerate(sends))
            for hop in firsts.values():
                if hop.block in held[own]:
                    sends.remove(hop)
                    held[hop.peer].add(hop.block)
                    got[hop.peer].append(hop.block)
                    moved = True
                    break
        assert moved, "stuck"
    return got


@ways
def test_everybody_gets_every_block_once_in_an_order_that_never_sticks(
    way: str, nodes: Sequence[int]
) -> None:
    exchanges, size = gather_exchanges(way, nodes), len(nodes)
    got = carried_out(exchanges, [{own} for own in range(size)], ordered=True)
    for own, exchange in enumerate(exchanges):
        assert sorted([own, *got[own]]) == sorted(exchange.order) == list(range(size))
        assert exchange.order[0] == own
        assert len(exchange.sends) == len(exchange.receives) == size - 1


@ways
def test_partial_sums_go_the_same_ways_backwards_and_have_places_of_their_own(
    way: str, nodes: Sequence[int]
) -> None:
    there, back, size = gather_exchanges(way, nodes), reduce_exchanges(way, nodes), len(nodes)
    if way == TREE:
        forth = Counter((own, hop.peer, hop.block) for own, part in enumerate(there) for hop in part.sends)
        assert forth == Counter(
            (hop.peer, own, hop.block) for own, part in enumerate(back) for hop in part.sends
        )
    for own, exchange in enumerate(back):
        assert exchange.order[-1] == own
        assert sorted(hop.slot for hop in exchange.receives) == list(range(size - 1))
        for peer in range(size):
            sent = [(hop.block, hop.slot) for hop in back[peer].sends if hop.peer == own]
            assert sent == [(hop.block, hop.slot) for hop in exchange.receives if hop.peer == peer]


def test_a_tree_crosses_once_per_block_and_a_ring_with_all_but_one() -> None:
    nodes = (0, 0, 0, 0, 1, 1, 1, 1)
    crossing = {
        way: sum(
            nodes[own] != nodes[hop.peer]
            for own, part in enumerate(gather_exchanges(way, nodes))
            for hop in part.sends
        )
        for way in (RING, TREE)
    }
    assert crossing == {RING: 2 * 7, TREE: 2 * 4}
    with pytest.raises(ParallelismError, match="over nodes of 2, 1, expected as many on each node"):
        gather_exchanges(TREE, (0, 0, 1))


def test_many_small_products_take_longer_than_one() -> None:
    wise = BlockWise(TREE, True, (), half_rows=64)
    assert wise.slowdown(8192, 8) == pytest.approx((1 + 64 / 1024) / (1 + 64 / 8192))
    assert wise.slowdown(512, 8) == pytest.approx(2 / 1.125)
    assert BlockWise(TREE, True, ()).slowdown(512, 8) == 1.0


# ---- plans


def planned(
    way: str, nodes: Sequence[int], overlaps: bool = True, seconds: float = 0.02, half_rows: float = 0.0
) -> JobPlan:
    """Two layers forward and back by ranks that are one tensor group."""
    members = tuple(range(len(nodes)))
    options = Options(4, 1e9, blocks=BlockWise(way, overlaps, nodes, half_rows))
    numel = len(members) * 1000
    parts = [Part(seconds, seconds, seconds, tensor=numel * 4, rows=numel)] * 2
    plans = []
    for rank in members:
        planner = LayerPlanner(rank, {TENSOR: Group(0, members)}, (), options, pipelined=False)
        for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT):
            for number, part in enumerate(parts):
                planner.layer(Action(0, kind, 0), number, part)
        plans.append(tuple(planner.plan))
    return JobPlan(tuple(plans), ((TENSOR, members),))


def network(size: int, rate: float, nodes: Sequence[int], uplink: float) -> Network:
    """Cards of a rate; between nodes each rank's traffic goes over an uplink and a downlink of its own."""
    capacities: dict[str, float] = {}
    paths = {}
    for here in range(size):
        capacities |= {f"{here} out": rate, f"{here} in": rate, f"{here} up": uplink, f"{here} down": uplink}
        for there in range(size):
            far = (f"{here} up", f"{there} down") if nodes[here] != nodes[there] else ()
            if here != there:
                paths[here, there] = Way(0.0, (f"{here} out", *far, f"{there} in"))
    return Network(capacities, paths)


@pytest.mark.parametrize(
    ("run", "way", "nodes"),
    [
        *((in_memory, *case) for case in EVENLY),
        *((run, TREE, (0, 0, 1, 1)) for run in (with_cost, over_tcp, over_channels, in_place)),
    ],
)
def test_blocks_are_carried_out_and_every_sum_is_right(run: Any, way: str, nodes: Sequence[int]) -> None:
    plan = planned(way, nodes, seconds=0.0004)

    def carry_out(transport: Any) -> list[tuple[int, int]]:
        own = Communicator(transport, timeout_s=20)
        group = own.split(range(own.size), TENSOR)
        assert group is not None
        executor = Executor(plan, {0: own}, {0: group}, "float32", 20.0, None)
        found: list[PlanOutcome] = []
        for step in range(2):
            executor.prepare(salt=1000 * step)
            own.barrier()
            found.append(executor.run(time.monotonic()).run_checks())
        own.barrier()
        return [(done.wrong, done.checked) for done in found]

    size = len(nodes)
    calls = 2 * 2 * 2  # two halves of two layers, forward and back
    checked = calls * (size * 1000 + 1000)
    assert run(size, carry_out) == [[(0, checked)] * 2] * size


def test_a_block_that_is_wrong_is_seen() -> None:
    """Of a gather, and of one rank's part in a reduction."""
    plan = planned(TREE, (0, 0, 1, 1), seconds=0.0)

    def carry_out(transport: Any, window: str) -> int:
        own = Communicator(transport, timeout_s=20)
        executor = Executor(plan, {0: own}, {0: own}, "float32", 20.0, None)
        executor.prepare(salt=0)
        windows = executor._blocks._of[0]
        begin = windows._begin

        def spoil(block: Block, salt: int) -> None:
            before = dict(windows._filled)
            begin(block, salt)
            if own.rank == 3 and block.window == window and before != windows._filled:
                array = windows._parts if window == REDUCED else windows.windows[GATHERED].array
                array[block.numel * (0 if window == REDUCED else 3) + 7] += 1

        windows._begin = spoil  # type: ignore[method-assign]
        own.barrier()
        done = executor.run(time.monotonic()).run_checks()
        own.barrier()
        return done.wrong

    for window, wrong in ((GATHERED, [8, 8, 8, 8]), (REDUCED, [8, 0, 0, 0])):
        assert in_memory(4, partial(carry_out, window=window)) == wrong


@ways
def test_overlapped_or_not_as_many_bytes_go_between_the_same_ranks(way: str, nodes: Sequence[int]) -> None:
    apart, together = (planned(way, nodes, overlaps) for overlaps in (False, True))
    assert plan_traffic(apart, 4) == plan_traffic(together, 4)
    size = len(nodes)
    for rank, operations in enumerate(together.ranks):
        sent = [operation for operation in operations if isinstance(operation, Block) and operation.sends]
        assert len(sent) == 2 * 4 * 2 * (size - 1), rank  # of each gather and reduction n - 1


def test_what_is_computed_takes_as_long_in_blocks_but_for_smaller_products() -> None:
    def computing(overlaps: bool, half_rows: float) -> float:
        plan = planned(RING, (0, 0, 0, 0), overlaps, half_rows=half_rows)
        return sum(one.duration_s for one in plan.ranks[0] if isinstance(one, Computing))

    assert computing(False, 64) == pytest.approx(4 * 0.02)
    assert computing(True, 0) == pytest.approx(4 * 0.02)
    assert computing(True, 64) == pytest.approx(4 * 0.02 * (1 + 64 / 1000) / (1 + 64 / 4000))


def test_overlap_gains_most_where_computing_takes_as_long_as_communication() -> None:
    nodes = (0, 0, 0, 0, 1, 1, 1, 1)
    own = network(8, 8e6, nodes, 1e6)
    for way, least, most in ((RING, 1.5, 1.8), (TREE, 1.4, 1.7)):
        communication_s = simulate(planned(way, nodes, False, seconds=0.0), own, 4).step_time_s
        gains = []
        for ratio in (0.25, 0.5, 1.0, 2.0, 4.0):
            seconds = ratio * communication_s / 4
            apart, together = (
                simulate(planned(way, nodes, overlaps, seconds), own, 4).step_time_s
                for overlaps in (False, True)
            )
            # round a ring some ranks are ahead of others, so that a little overlaps by itself
            assert apart <= communication_s * (1 + ratio) * 1.0001
            assert way == RING or apart == pytest.approx(communication_s * (1 + ratio), rel=1e-6)
            gains.append(apart / together)
        assert max(gains) == gains[2]
        assert least < gains[2] < most, (way, gains)


def test_a_trees_own_blocks_cross_first_then_the_others_are_spread() -> None:
    """The three steps of a tree: own blocks, there and in this node; one from there; those that others pass on."""
    nodes = (0, 0, 0, 0, 1, 1, 1, 1)
    plan = planned(TREE, nodes, seconds=0.0)
    timeline = simulate(plan, network(8, 8e6, nodes, 1e6), 4)
    came: list[list[tuple[float, int]]] = []
    for rank, operations in enumerate(plan.ranks):
        came.append(
            [
                (timeline.spans[rank][index][1], one.block)
                for index, one in enumerate(operations)
                if isinstance(one, Block) and not one.sends and (one.window, one.call) == (GATHERED, 0)
            ]
        )
    for rank, arrivals in enumerate(came):
        order = [block for _, block in sorted(arrivals)]
        here = [other for other in range(8) if nodes[other] == nodes[rank] and other != rank]
        assert set(order[:3]) == set(here)
        assert order[3] == (rank + 4) % 8
        assert set(order[4:]) == {(other + 4) % 8 for other in here}


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([RING, TREE]))
@settings(max_examples=12, deadline=None)
def test_plans_of_any_layout_come_to_an_end(groups: int, width: int, way: str) -> None:
    nodes = [number % groups for number in range(groups * width)]
    if len(nodes) > 1:
        plan = planned(way, nodes)
        assert simulate(plan, network(len(nodes), 8e6, nodes, 1e6), 4).step_time_s > 3.999 * 0.02
        assert from_json(JobPlan, to_json(plan)) == plan


# ---- scenarios


def tensor(folder: Path, way: str, **more: Any) -> Workload:
    return workload(
        folder, {"tensor_parallel_degree": 8, "tensor_communication": way, "placement": "crosspipe", **more}
    )


def test_blocks_have_the_bytes_of_the_collectives_in_whose_place_they_are(tmp_path: Path) -> None:
    """Of a ring pair for pair."""
    found = {
        way: tensor(tmp_path, way).pairs("ring")
        for way in ("sequence_parallel", "overlapped_ring", "overlapped_tree")
    }
    assert found["overlapped_ring"] == found["sequence_parallel"]
    ring, tree = (sum(found[way][0].values()) for way in ("sequence_parallel", "overlapped_tree"))
    assert ring == tree


def test_what_blocks_do_not_go_with_is_refused(tmp_path: Path) -> None:
    for more, words in (
        (
            {"collectives": {"tensor_parallel": "ring"}},
            "tensor_parallel: ring with tensor_communication tree, expected none",
        ),
        (
            {"context_parallel_degree": 2, "tensor_parallel_degree": 4},
            "tree with context_parallel_degree 2, expected 1, or another mode",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            tensor(tmp_path, "tree", **more)
