"""The fewest parts that explain bad pairs and spare healthy ones, against trying them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.measure.diagnosis.fault_localisation import Pair, Part, explain

NAMES = ["nic a", "nic b", "nic c", "link 0", "link 1", "plane 0", "switch x", "switch y"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True)
PAIRS = st.tuples(st.integers(0, 4), st.integers(5, 9))


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Pair], list[Pair], dict[Pair, list[list[str]]]]:
    """Bad pairs, healthy ones, and what each crosses."""
    pairs = draw(st.lists(PAIRS, min_size=1, max_size=8, unique=True))
    crossed = {pair: [draw(PATHS)] for pair in pairs}
    cut = draw(st.integers(1, len(pairs)))
    return pairs[:cut], pairs[cut:], crossed


def brute_force(
    bad: Sequence[Pair], healthy: Sequence[Pair], crossed: Mapping[Pair, list[list[str]]]
) -> tuple[int, set[Pair]]:
    """How few whole parts explain all bad pairs that whole parts can explain, and which pairs these are."""
    spared = {name for pair in healthy for way in crossed[pair] for name in way}
    guilty = [name for name in NAMES if name not in spared]
    able = {pair for pair in bad if any(set(way) & set(guilty) for way in crossed[pair])}
    for chosen in chain.from_iterable(combinations(guilty, size) for size in range(len(guilty) + 1)):
        if all(any(set(way) & set(chosen) for way in crossed[pair]) for pair in able):
            return len(chosen), able
    raise AssertionError("all of them explain all that can be")


@settings(max_examples=300, deadline=None)
@given(networks())
def test_as_few_parts_as_any_and_none_that_a_healthy_pair_crosses(
    network: tuple[list[Pair], list[Pair], dict[Pair, list[list[str]]]],
) -> None:
    bad, healthy, crossed = network
    found, left = explain(bad, healthy, crossed)
    whole = [own for own in found if not own.part.direction]
    fewest, able = brute_force(bad, healthy, crossed)
    assert len(whole) == fewest
    assert {pair for own in whole for pair in own.covers} == able
    assert all(not own.healthy for own in found)
    assert set(left) == set(bad) - {pair for own in found for pair in own.covers}
    for own in whole:
        assert all(own.part.name in crossed[pair][0] for pair in own.covers)


@settings(max_examples=100, deadline=None)
@given(networks(), st.randoms())
def test_the_order_of_pairs_changes_nothing(
    network: tuple[list[Pair], list[Pair], dict[Pair, list[list[str]]]], shuffle: object
) -> None:
    bad, healthy, crossed = network
    assert explain(bad, healthy, crossed) == explain(
        bad[::-1], healthy[::-1], dict(reversed(crossed.items()))
    )


CROSSED = {
    (0, 1): [["nic a", "switch l", "nic b"]],
    (1, 0): [["nic b", "switch l", "nic a"]],
    (0, 2): [["nic a", "switch l", "switch e", "link 0", "plane 0", "switch f", "nic c"]],
    (2, 0): [["nic c", "switch f", "link 0", "plane 0", "switch e", "switch l", "nic a"]],
    (1, 2): [["nic b", "switch l", "switch e", "link 1", "plane 1", "switch f", "nic c"]],
}


def test_a_card_is_meant_before_a_link_and_a_link_before_its_plane() -> None:
    (only,), left = explain([(0, 2)], [(1, 2)], CROSSED)
    # the other's card, its leaf and its edge are spared; of what is left the card is the more specific
    assert (only.part, left) == (Part("nic a"), ())
    (only,), _ = explain([(0, 2)], [(1, 2), (0, 1)], CROSSED)
    assert only.part == Part("link 0")
    assert only.within == (Part("plane 0"),)
    assert only.instead == ()


def test_one_way_of_a_part_is_meant_only_where_no_whole_one_suffices() -> None:
    (only,), left = explain([(0, 1), (0, 2)], [(1, 0), (2, 0), (1, 2)], CROSSED)
    assert (only.part, left) == (Part("nic a", "sending"), ())


def test_what_no_part_explains_is_left() -> None:
    found, left = explain([(0, 1), (7, 8)], [(1, 0), (0, 2), (1, 2)], CROSSED)
    assert [own.part for own in found] == [Part("nic b", "receiving")]
    assert left == ((7, 8),)


def test_some_healthy_pairs_may_be_tolerated() -> None:
    crossed: dict[Pair, list[list[str]]] = {(0, n): [["nic a", f"nic {n}"]] for n in range(1, 9)}
    bad: list[Pair] = [(0, n) for n in range(1, 8)]
    assert len(explain(bad, [(0, 8)], crossed)[0]) == 7
    (only,), _ = explain(bad, [(0, 8)], crossed, tolerated=0.15)
    assert (only.part, only.healthy) == (Part("nic a"), ((0, 8),))
