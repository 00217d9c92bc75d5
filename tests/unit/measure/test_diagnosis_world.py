"""Whoever did it is named at first guess, in jobs of tensor x pipeline x data ranks whose clocks are off; or nobody."""

from __future__ import annotations

import itertools

import pytest

from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.verdicts import Diagnosis
from tests.unit.comm.flight_world import World, faulty

KINDS = {
    "kill": "CRASHED",
    "pause": "SILENT",
    "nic down": "STUCK_IN_NETWORK",
    "link blackhole": "STUCK_IN_NETWORK",
    "nic degrade": "SLOW_NETWORK",
    "nic loss": "SLOW_NETWORK",
    "link degrade": "SLOW_NETWORK",
    "slow rank": "SLOW_RANK",
    "rank becomes slow": "SLOW_RANK",
    "slow io": "SLOW_IO",
    "skip of a bucket": "RANK_NOT_JOINED",
    "skip in a layer": "RANK_NOT_JOINED",
    "other group first": "MISMATCH",
    "other order": "DEADLOCK",
    "size": "MISMATCH",
    "type": "MISMATCH",
    "name": "MISMATCH",
}
SEEDS = 2
SHAPES = ((2, 4, 4), (2, 2, 8), (4, 2, 4), (2, 4, 8), (1, 1, 8), (1, 8, 2))


def judged(kind: str, seed: int) -> tuple[Diagnosis, tuple[int, ...] | str]:
    """A world with a fault, judged; and whose the fault is."""
    world, whose = faulty(kind, seed)
    return diagnose(world.play(), world.paths), whose


@pytest.mark.parametrize(("kind", "seed"), list(itertools.product(KINDS, range(SEEDS))))
def test_whoever_did_it_is_named_first(kind: str, seed: int) -> None:
    found, whose = judged(kind, seed)
    first = found.verdicts[0]
    kinds = {KINDS[kind]}
    if kind == "pause" and "has read all" in first.reason:  # so does one whose program does not come
        kinds = {"RANK_NOT_JOINED"}
    assert first.kind in kinds, found.verdicts
    assert (first.component or first.ranks) == whose, found.verdicts


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "seed"), list(itertools.product(KINDS, range(SEEDS, 16))))
def test_whoever_did_it_is_named_first_in_many(kind: str, seed: int) -> None:
    test_whoever_did_it_is_named_first(kind, seed)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_said_of_a_healthy_run(seed: int) -> None:
    shape = SHAPES[seed]
    world = World(*shape, seed=seed, buildings=min(4, shape[2]))
    assert diagnose(world.play(), world.paths).verdicts == ()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6, 100))
def test_nothing_is_said_of_many_healthy_runs(seed: int) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    world = World(*shape, seed=seed, buildings=min(4, shape[2]))
    assert diagnose(world.play(), world.paths).verdicts == ()


@pytest.mark.parametrize("until_s", [0.3, 0.9, 1.3, 1.7])
def test_nothing_is_said_of_a_dump_in_the_midst_of_a_healthy_run(until_s: float) -> None:
    world = World(seed=3)
    dumps = world.play(until_s)
    assert any(not entry.over for dump in dumps for entry in dump.entries)
    assert diagnose(dumps, world.paths).verdicts == ()


def test_the_same_dumps_give_the_same_diagnosis_in_any_order() -> None:
    world, _ = faulty("link blackhole", 0)
    dumps = world.play()
    assert diagnose(dumps, world.paths) == diagnose(dumps[::-1], world.paths)


def test_clocks_that_are_off_by_a_millisecond_change_nothing() -> None:
    for kind in ("kill", "pause", "nic down", "slow rank"):
        found = []
        for clock_error_s in (0.0, 1e-3):
            world, whose = faulty(kind, 5)
            exact = World(
                world.tensor, world.pipeline, world.data, seed=5, buildings=4, fault=world.fault,
                clock_error_s=clock_error_s,
            )  # fmt: skip
            first = diagnose(exact.play(), exact.paths).verdicts[0]
            found.append((first.kind, first.who))
            assert (first.component or first.ranks) == whose
        assert found[0] == found[1]


def test_a_plane_that_goes_dark_is_named_where_more_than_one_of_its_links_has_something_to_carry() -> None:
    named = []
    for seed in range(4):
        world, plane = faulty("plane blackhole", seed)
        found = diagnose(world.play(), world.paths).verdicts[0]
        assert found.kind == "STUCK_IN_NETWORK"
        if found.component != plane:  # one link's pairs alone were stuck: it cannot be told from its plane
            assert f"no pair distinguishes it from {plane}" in found.evidence
        named.append(found.component == plane)
    assert sum(named) >= 2


def test_ranks_that_left_no_dump_are_named_as_far_as_others_wait_for_them() -> None:
    world, whose = faulty("kill", 2)
    dumps = [dump for dump in world.play() if (dump.rank,) != whose]
    found = diagnose(dumps, world.paths)
    assert (found.verdicts[0].kind, found.verdicts[0].ranks) == ("CRASHED", whose)
    assert found.missing == whose


def test_the_naive_answer_blames_somebody_else() -> None:
    found, whose = judged("kill", 0)
    assert (found.naive.rank,) != whose
    assert "gave up first" in found.naive.words
