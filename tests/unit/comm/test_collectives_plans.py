"""Plans without data: whatever the ranks and buildings, every block comes to where it should, in the steps and bytes

that the algorithms' descriptions state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.collectives import AUTO, between_groups, choose_algorithm, traffic, wan_bytes
from testbed.comm.collectives.algorithm_selection import pieces_for, plan_of
from testbed.comm.collectives.algorithms.all_gather import factors
from testbed.comm.collectives.algorithms.trees import Tree
from testbed.comm.collectives.baseline_ring import BASELINE_RING, baseline_rounds
from testbed.comm.collectives.plan import Plan, Strand, blocks_of, even, in_channels, runs_of
from testbed.comm.collectives.plan_check import check_plans
from testbed.comm.collectives.registry import PlanRequest
from testbed.plugins import PluginError
from tests.unit.comm.collective_runs import ALGORITHMS, layouts

Held = dict[int, frozenset[int]]
UNEQUAL = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]


def plans(
    collective: str, algorithm: str, groups: Sequence[int], root: int = 0, pieces: int = 1
) -> list[Plan]:
    return [
        plan_of(collective, algorithm, PlanRequest(rank, tuple(groups), root, pieces))
        for rank in range(len(groups))
    ]


def check(collective: str, algorithm: str, groups: Sequence[int], root: int = 0, pieces: int = 1) -> None:
    """The plans of all ranks do what the collective promises."""
    check_plans(collective, algorithm, groups, root, pieces)


ALL = [(collective, algorithm) for collective, known in ALGORITHMS.items() for algorithm in known]


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
@given(
    groups=st.lists(st.integers(0, 4), min_size=1, max_size=24),
    root=st.integers(0, 23),
    pieces=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_plans_do_what_their_collective_promises(
    collective: str, algorithm: str, groups: list[int], root: int, pieces: int
) -> None:
    check(collective, algorithm, groups, root % len(groups), pieces)


# ---- steps and bytes on the wire, as the descriptions state them


def rounds(collective: str, algorithm: str, groups: Sequence[int], pieces: int = 1) -> int:
    return max(plan.rounds for plan in plans(collective, algorithm, groups, 0, pieces))


def depth(size: int) -> int:
    """Levels below the root of `Tree(size)`."""
    tree = Tree(size)
    found = 0
    for place in range(size):
        level, parent = 0, tree.parent[place]
        while parent is not None:
            level, parent = level + 1, tree.parent[parent]
        found = max(found, level)
    return found


def sent_by(pairs: dict[tuple[int, int], int], rank: int) -> int:
    return sum(count for (source, _), count in pairs.items() if source == rank)


@pytest.mark.parametrize("size", range(1, 18))
def test_steps(size: int) -> None:
    groups, bits = [0] * size, (size - 1).bit_length()
    stated = {
        ("all_gather", "ring"): size - 1,
        ("all_gather", "bidirectional_ring"): math.ceil((size - 1) / 2),
        ("all_gather", "near_first"): len(factors(size)),
        ("all_gather", "far_first"): len(factors(size)),
        ("all_gather", "bruck"): bits,
        ("all_gather", "direct"): min(1, size - 1),
        ("all_gather", "hierarchical"): size - 1,
        ("reduce_scatter", "ring"): size - 1,
        ("all_reduce", "ring"): 2 * (size - 1),
        ("all_reduce", "bidirectional_ring"): 2 * math.ceil((size - 1) / 2),
        ("all_reduce", "halving_doubling"): 2 * len(factors(size)),
        ("all_reduce", "hierarchical"): 2 * (size - 1),
        ("all_to_all", "pairwise"): size - 1,
        ("all_to_all", "direct"): math.ceil((size - 1) / 8),
    }
    for (collective, algorithm), steps in stated.items():
        assert rounds(collective, algorithm, groups) == steps, (collective, algorithm)
    # a rank of a tree waits in at most two rounds; how many follow each other is the tree's depth
    assert depth(size) <= bits
    assert rounds("broadcast", "binomial", groups) <= 2
    assert math.log2(size) == len(factors(size)) if size & (size - 1) == 0 else True


@pytest.mark.parametrize("size", range(1, 18))
def test_bytes_where_ranks_divide_the_elements(size: int) -> None:
    """Each rank sends B (n - 1) / n in an all-gather or reduce-scatter, twice that in an all-reduce."""
    groups, block = [0] * size, 40
    whole = size * block
    for algorithm in ("ring", "near_first", "far_first", "bruck", "direct"):
        for collective in ("all_gather", "reduce_scatter"):
            pairs = traffic(collective, algorithm, block, 4, groups)
            assert [sent_by(pairs, rank) for rank in range(size)] == [4 * (whole - block)] * size
    for algorithm in ("ring", "halving_doubling"):
        pairs = traffic("all_reduce", algorithm, whole, 4, groups)
        assert [sent_by(pairs, rank) for rank in range(size)] == [8 * (whole - block)] * size
    for collective in ("all_gather", "reduce_scatter", "all_reduce"):
        pairs = traffic(
            collective, "bidirectional_ring", whole if collective == "all_reduce" else block, 4, groups
        )
        assert sum(pairs.values()) == 4 * size * (whole - block) * (2 if collective == "all_reduce" else 1)
    for algorithm in ("direct", "pairwise"):
        pairs = traffic("all_to_all", algorithm, block, 4, groups)
        assert pairs == {(a, b): 4 * block for a in range(size) for b in range(size) if a != b}


@pytest.mark.parametrize("size", range(1, 18))
def test_bytes_of_trees(size: int) -> None:
    groups, whole = [0] * size, 1000
    pairs = traffic("all_reduce", "double_tree", whole, 4, groups)
    assert sum(pairs.values()) == 2 * 4 * whole * (size - 1)
    assert max([sent_by(pairs, rank) for rank in range(size)]) <= 2 * 4 * whole
    for algorithm in ("binomial", "chain"):
        for collective in ("broadcast", "reduce"):
            assert sum(traffic(collective, algorithm, whole, 4, groups, size // 2).values()) == 4 * whole * (
                size - 1
            )
    targets = {target for source, target in traffic("broadcast", "binomial", 1, 4, groups) if source == 0}
    assert len(targets) == (size - 1).bit_length()
    for algorithm in ("direct", "binomial"):
        assert sent_by(traffic("scatter", algorithm, 10, 4, groups), 0) == 40 * (size - 1)


@pytest.mark.parametrize("size", range(1, 40))
def test_leaves_of_one_tree_are_inner_nodes_of_the_other(size: int) -> None:
    tree = Tree(size)
    assert sum(parent is None for parent in tree.parent) == 1
    assert all(len(children) <= 2 for children in tree.children)
    leaves = {place for place in range(size) if not tree.children[place]}
    assert leaves == set(range(0, size, 2))
    if size % 2 == 0:
        assert leaves.isdisjoint((place + 1) % size for place in leaves)


def test_far_first_takes_the_least_across_and_near_first_the_most() -> None:
    """Two buildings of n / 2 ranks, blocks of b: far first n b, ring 2 (n - 1) b, near first n n b / 2."""
    for size in (4, 8, 16, 32):
        groups = [0] * (size // 2) + [1] * (size // 2)
        across = {a: wan_bytes("all_gather", a, 10, 4, groups) for a in ALGORITHMS["all_gather"]}
        assert across["far_first"] == across["hierarchical"] == size * 40
        assert across["ring"] == 2 * (size - 1) * 40
        assert across["near_first"] == size * size * 40 // 2
        scattered = {a: wan_bytes("reduce_scatter", a, 10, 4, groups) for a in ALGORITHMS["reduce_scatter"]}
        assert scattered["near_first"] == across["far_first"]
        assert scattered["far_first"] == across["near_first"]


def test_equal_buildings_send_the_array_once_each_way_over_the_wan() -> None:
    groups = [0] * 4 + [1] * 4
    for algorithm in ("hierarchical", "hierarchical_tree", "halving_doubling"):
        pairs = traffic("all_reduce", algorithm, 8000, 4, groups)
        assert sum(count for (source, target), count in pairs.items() if source < 4 <= target) == 8000 * 4
        assert sum(count for (source, target), count in pairs.items() if target < 4 <= source) == 8000 * 4
    # the flat ring crosses once each way, with nearly twice the array
    assert wan_bytes("all_reduce", "ring", 8000, 4, groups) == 2 * 2 * 8000 * 4 * 7 // 8


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), numel=st.integers(0, 300), order=st.randoms()
)
@settings(max_examples=60, deadline=None)
def test_hierarchical_sends_over_the_wan_what_it_must(sizes: list[int], numel: int, order) -> None:  # type: ignore[no-untyped-def]
    """Whatever the sizes of g buildings and the order of ranks: 2 B (g - 1) for an all-reduce, half for its halves."""
    groups = [building for building, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(groups)
    size, others = len(groups), len(sizes) - 1
    assert wan_bytes("all_reduce", "hierarchical", numel, 4, groups) == 2 * numel * 4 * others
    assert wan_bytes("all_reduce", "hierarchical_tree", numel, 4, groups) == 2 * numel * 4 * others
    for collective in ("all_gather", "reduce_scatter"):
        assert wan_bytes(collective, "hierarchical", numel, 4, groups) == size * numel * 4 * others
    direct = traffic("all_to_all", "direct", numel, 4, groups)
    gathered = traffic("all_to_all", "hierarchical", numel, 4, groups)
    assert between_groups(gathered, groups) == between_groups(direct, groups)


def test_hierarchical_all_to_all_crosses_in_one_message_per_rank_and_building() -> None:
    groups = [0] * 4 + [1] * 4
    for plan in plans("all_to_all", "hierarchical", groups):
        inside, across = plan.stages
        assert len(inside[0][0].sends) == 3
        assert [len(blocks_of(runs)) for _, runs in across[0][0].sends] == [4]


# ---- cuts, channels, what auto takes


@given(numel=st.integers(0, 200), parts=st.integers(1, 20), channels=st.integers(1, 4))
def test_blocks_cover_everything_once_and_evenly(numel: int, parts: int, channels: int) -> None:
    bounds = even(parts).bounds(numel)
    lengths = [end - start for start, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(lengths)) == (0, numel, parts)
    assert max(lengths) - min(lengths) <= 1
    assert in_channels(even(parts), channels).bounds(numel)[::channels] == bounds


def test_runs_and_blocks_are_each_others_inverse() -> None:
    assert runs_of([5, 3, 4, 9]) == ((3, 6), (9, 10))
    assert blocks_of(((3, 6), (9, 10))) == [3, 4, 5, 9]


def test_large_messages_go_in_channels_or_chunks() -> None:
    mebibyte = 1024**2
    assert pieces_for("all_reduce", "ring", mebibyte, 8) == 1
    assert pieces_for("all_reduce", "ring", 64 * mebibyte, 8) == 4
    assert pieces_for("broadcast", "chain", 64 * mebibyte, 8) == 64
    assert pieces_for("all_gather", "ring", 64 * mebibyte, 8) == 1
    for pieces in (1, 3):
        whole = traffic("all_reduce", "hierarchical", 1001, 4, UNEQUAL)
        cut: dict[tuple[int, int], int] = {}
        for rank, plan in enumerate(plans("all_reduce", "hierarchical", UNEQUAL, 0, pieces)):
            cut |= {(rank, peer): 4 * count for peer, count in plan.sent(plan.bounds(1001)).items()}
        assert cut == whole


def test_auto_takes_few_steps_for_little_and_few_bytes_across_for_much() -> None:
    two = [0, 0, 1, 1]
    assert choose_algorithm("all_reduce", 4096, two) == "halving_doubling"
    assert choose_algorithm("all_reduce", 1 << 20, two) == "hierarchical"
    assert choose_algorithm("all_reduce", 1 << 20, [0] * 4) == "ring"
    for collective, known in ALGORITHMS.items():
        for size_bytes in (0, 100, 1 << 30):
            for size in (1, 2, 5):
                for groups in layouts(size):
                    assert choose_algorithm(collective, size_bytes, groups) in known
    assert traffic("all_reduce", AUTO, 8000, 4, two) == traffic(
        "all_reduce", "halving_doubling", 8000, 4, two
    )
    with pytest.raises(
        PluginError, match=r"algorithm: got 'tree', expected FILE.py:NAME or one of ring, bidirectional_ring"
    ):
        traffic("all_reduce", "tree", 1, 4, two)


def strands(plan: Plan) -> list[Strand]:
    return [strand for stages in plan.channels for stage in stages for strand in stage]


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 2), (17, 32), (18, 32), (40, 32)])
@pytest.mark.parametrize("pieces", [1, 4])
def test_the_ring_that_a_job_does_alone_is_the_ring_as_far_as_it_goes(
    ranks: int, rounds: int, pieces: int
) -> None:
    assert baseline_rounds(ranks) == rounds
    for rank in (0, ranks - 1):
        request = PlanRequest(rank, (0,) * ranks, 0, pieces)
        whole, begun = plan_of("all_reduce", "ring", request), BASELINE_RING(request)
        assert [strand[:rounds] for strand in strands(whole)] == strands(begun)
        assert {len(strand) for strand in strands(begun)} == {rounds}
        assert begun.cuts == whole.cuts
