"""What the bench beside ns-3 holds both instruments against: formulas, and the replays that stand for theory."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from tests.bench.ns3 import cells, tables
from tests.bench.ns3.theory import (
    PERIODIC_LOSS,
    RANDOM_LOSS,
    Path,
    Rules,
    fifo_sojourns,
    mathis,
    pollaczek_khinchine,
    reno_share,
    replay,
    replay_queue,
)

LONG = Path(round_trip_s=0.08, frames_per_s=1e6, queue_frames=1e6)  # never full here


def every(frames: float, count: int = 40) -> list[float]:
    return [number * frames for number in range(count)]


def test_who_finds_the_server_busy_waits_for_those_before() -> None:
    assert fifo_sojourns([0.0, 0.5, 0.6, 5.0], 1.0) == pytest.approx([1.0, 1.5, 2.4, 1.0])


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_a_fifo_over_drawn_arrivals_settles_at_pollaczek_and_khinchine(load: float) -> None:
    times_ns = cells.Frames("", 200_000, load, 0.0, 1).times_ns()
    seen = statistics.fmean(fifo_sojourns([at_ns / 1e9 for at_ns in times_ns], cells.FRAME_S))
    assert seen == pytest.approx(pollaczek_khinchine(load, cells.FRAME_S), rel=0.03)


@pytest.mark.parametrize("products", [0.1, 0.25, 0.5, 1.0, 4.0])
def test_a_lone_reno_uses_what_its_sawtooth_leaves(products: float) -> None:
    path = Path(0.08, 25_000, products * 2000)
    found = replay_queue("reno", path)
    assert found.frames_per_s / path.frames_per_s == pytest.approx(reno_share(products), rel=0.005)
    assert found.peak_wait_s == pytest.approx(products * 0.08, rel=0.01)


def test_reno_over_losses_at_even_distances_is_mathis() -> None:
    found = replay("reno", LONG, every(1e5))
    assert found.frames_per_s == pytest.approx(mathis(1e-5, LONG.round_trip_s, PERIODIC_LOSS), rel=0.01)


def test_reno_over_losses_by_chance_is_mathis_with_the_constant_for_them() -> None:
    drawn = random.Random(1)
    losses = list(itertools.accumulate(drawn.expovariate(1e-5) for _ in range(1000)))
    found = replay("reno", LONG, losses)
    assert found.frames_per_s == pytest.approx(
        mathis(1000 / losses[-1], LONG.round_trip_s, RANDOM_LOSS), rel=0.02
    )


@pytest.mark.parametrize("rules", ["cubic", "cubic_9438"])
def test_cubic_over_losses_at_even_distances_is_what_its_rfcs_say(rules: Rules) -> None:
    """Section 5.1 of both, of a path so long that the cubic leads: a window of 1.054 times (RTT / loss) to the 3/4.

    The formula leaves fast convergence out, which costs up to a twentieth where all losses are alike.
    """
    found = replay(rules, LONG, every(1e5))
    window = 1.054 * (LONG.round_trip_s / 1e-5) ** 0.75
    assert found.frames_per_s * LONG.round_trip_s == pytest.approx(window, rel=0.06)


def test_cubic_is_no_slower_than_reno_where_the_cubic_does_not_lead() -> None:
    near, losses = Path(0.002, 1e6, 1e6), every(1000)
    reno = replay("reno", near, losses).frames_per_s
    assert replay("cubic_9438", near, losses).frames_per_s >= replay("cubic", near, losses).frames_per_s
    assert replay("cubic", near, losses).frames_per_s >= 0.97 * reno


def test_linux_lags_behind_the_rules_where_round_trips_are_short() -> None:
    """A loss every 0.1 s or so, and it looks where to go every 0.03 s; over a long path that is nothing."""
    near, losses = Path(0.005, 1e6, 1e6), every(1000)
    linux, rules = (replay(name, near, losses).frames_per_s for name in ("cubic_linux", "cubic"))
    assert 0.90 * rules < linux < 0.97 * rules
    linux, rules = (replay(name, LONG, every(1e5)).frames_per_s for name in ("cubic_linux", "cubic"))
    assert linux == pytest.approx(rules, rel=0.02)


def test_theory_begins_where_a_window_can_be_told_from_the_time_to_the_next_loss() -> None:
    cell = cells.dumbbell("cubic", 0.08, 1.0, 1e-4, 1)
    full = tables.path_of(cell).frames_per_s
    full_link, too_short = (0.0, 0.0), (2.0, 2.0 * full)
    rest = [(2.5, 2.1 * full), (5.0, 3.1 * full), (7.0, 4.0 * full), (9.0, 5.0 * full)]
    found = {"events": [[full_link, too_short, *rest]]}
    assert tables.told_apart(cell, found) == rest
    assert tables.between_losses(cell, found) == pytest.approx((5.0 - 3.1) * full / 4)
    always_full = [(float(number), number * full) for number in range(5)]
    assert tables.told_apart(cell, {"events": [always_full]}) == always_full


def test_a_full_link_bounds_a_replay() -> None:
    short = Path(0.005, 8000, 40)
    found = replay("reno", short, every(1e5, 4))
    assert found.frames_per_s == pytest.approx(short.frames_per_s, rel=0.001)
    assert found.mean_wait_s == pytest.approx(40 / 8000, rel=0.05)


@pytest.mark.parametrize("cell", [cells.BURST, cells.dumbbell("cubic", 0.02, 1.0, 1e-3, 2)])
def test_an_experiment_crosses_to_the_guest_whole(cell: cells.Experiment) -> None:
    assert cells.from_json(cells.to_json(cell)) == cell


def test_no_two_experiments_share_name_and_seed() -> None:
    everything: list[cells.Experiment] = [
        cells.ONE,
        cells.BURST,
        *cells.queueing(False),
        *cells.incasts(False),
    ]
    everything += [*cells.dumbbells(False), *cells.many_round_trips(False)]
    names = [(cell.name, cell.seed) for cell in everything]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("goodput_bps", "wait_s", "met"), [(94e6, 0.05, True), (80e6, 0.05, False), (94e6, 0.003, False)]
)
def test_a_row_says_whether_the_testbed_is_near_either(goodput_bps: float, wait_s: float, met: bool) -> None:
    cell = cells.dumbbell("cubic", 0.02, 4.0, 0.0, 1)
    there = {"goodput_bps": [95e6], "mean_wait_s": 0.052, "peak_wait_s": 0.08, "dropped": 3}
    here = {**there, "goodput_bps": [goodput_bps], "mean_wait_s": wait_s}
    clean, _ = tables.dumbbells([cell], lambda _: there, lambda _: here)
    assert clean.endswith("| yes |" if met else "| **no** |")
