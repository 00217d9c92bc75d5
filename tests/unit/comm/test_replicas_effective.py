"""Effective training time by what a failure costs."""

from __future__ import annotations

import random

import pytest

from testbed.comm.replicas.effective_training import (
    PAPER_MTBF_S,
    PAPER_RESTART_EFFECTIVE,
    PAPER_RESTART_S,
    PAPER_TOLERANT_EFFECTIVE,
    PAPER_TOLERANT_STALL_S,
    FailureCost,
    restart_cost,
    tolerant_cost,
)


def test_the_papers_restart_is_its_44_per_cent() -> None:
    found = restart_cost(PAPER_RESTART_S, step_s=0.0, checkpoint_every=1).effective(PAPER_MTBF_S)
    assert found == pytest.approx(PAPER_RESTART_EFFECTIVE, abs=0.005)


def test_the_papers_stall_of_three_minutes_leaves_a_little_more_than_its_80_per_cent() -> None:
    found = FailureCost(PAPER_TOLERANT_STALL_S).effective(PAPER_MTBF_S)
    assert PAPER_TOLERANT_EFFECTIVE < found < PAPER_TOLERANT_EFFECTIVE + 0.04


def test_who_blocks_waits_while_state_moves() -> None:
    waits = tolerant_cost(2.0, 60.0, 4, catch_up_s=10.0, blocking=True)
    goes_on = tolerant_cost(2.0, 60.0, 4, catch_up_s=10.0)
    assert waits.lost_s - goes_on.lost_s == pytest.approx(10.0 * 3 / 4)


def test_a_budget_is_what_is_left() -> None:
    cost = FailureCost(60.0)
    assert cost.budget_s(1080.0, 0.9) == pytest.approx(48.0)
    assert cost.effective(1080.0) == pytest.approx(1 - 60 / 1080)
    assert cost.effective(30.0) == 0.0


def test_a_run_drawn_at_random_loses_as_much() -> None:
    """Steps of a second, checkpoints every 20, a failure after each 200 to 400 s, a restart of 30 s."""
    random_ = random.Random(1)
    step_s, every, restart_s = 1.0, 20, 30.0
    now_s, useful, failures = 0.0, 0, 0
    for _ in range(4000):
        ends_s = now_s + random_.uniform(200.0, 400.0)
        steps = int((ends_s - now_s) / step_s)
        useful += steps - steps % every
        now_s, failures = ends_s + restart_s, failures + 1
    expected = restart_cost(restart_s, step_s, every).effective(now_s / failures)
    assert useful * step_s / now_s == pytest.approx(expected, abs=0.005)
