"""How many ranks one process carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.execution.resources import (
    MOST_BYTES,
    MOST_TOGETHER,
    parse_ranks_per_process,
    ranks_per_process,
)
from testbed.measure.ranks.process import ProcessRole, group_into_processes
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.endpoints import RankEndpoint

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("ranks", "rank_bytes", "together"),
    [
        (2, 1e6, 1),
        (3, 1e6, 1),
        (4, 1e6, 4),
        (8, 1e6, 8),
        (64, 1e6, 64),
        (512, 1e6, MOST_TOGETHER),
        (64, MOST_BYTES / 16, 16),
        (64, MOST_BYTES / 1.5, 1),
        (64, 3.0 * MOST_BYTES, 1),
        (64, 0.0, 64),
    ],
)
def test_in_guests_small_jobs_have_processes_of_their_own_large_ones_share_them(
    ranks: int, rank_bytes: float, together: int
) -> None:
    assert ranks_per_process(None, ranks, rank_bytes, exact=True) == together


def test_by_this_machines_clock_and_where_one_may_be_stopped_each_rank_has_a_process() -> None:
    assert ranks_per_process(None, 64, 1e6, exact=False) == 1
    assert ranks_per_process(None, 64, 1e6, exact=True, apart=True) == 1


def test_what_is_asked_for_is_done_on_any_clock() -> None:
    assert ranks_per_process(16, 64, 1e12, exact=False) == 16
    assert ranks_per_process(16, 8, 1e6, exact=True) == 8


@pytest.mark.parametrize(("text", "count"), [(None, None), ("1", 1), ("3", 3), ("all", 8), ("99", 8)])
def test_the_option_takes_a_number_or_all(text: str | None, count: int | None) -> None:
    assert parse_ranks_per_process(text, 8) == count


@pytest.mark.parametrize("text", ["0", "-1", "some", "1.5", "", "²"])
def test_other_words_are_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--ranks-per-process.*expected a number from 1 on, or all"):
        parse_ranks_per_process(text, 8)


@pytest.fixture
def killing() -> Scenario:
    """A scenario in which a rank is killed."""
    event = "{at: 1 s, action: rank_kill, target: 3}"
    return load_scenario(REPOSITORY / "scenarios/quickstart.yaml", [f"events=[{event}]"])


def test_an_event_that_stops_a_rank_allows_one_rank_to_a_process_only(killing: Scenario) -> None:
    assert parse_ranks_per_process("1", 8, killing) == 1
    assert parse_ranks_per_process(None, 8, killing) is None
    with pytest.raises(ConfigError, match="got all, expected 1, since rank_kill stop"):
        parse_ranks_per_process("all", 8, killing)


def endpoints(ranks: int) -> list[RankEndpoint]:
    return [RankEndpoint(rank, f"east{rank}", 0, f"10.0.0.{rank}", 0) for rank in range(ranks)]


def test_ranks_that_follow_each_other_share_a_process_and_the_last_has_what_is_left() -> None:
    found = group_into_processes(endpoints(8), 3)
    assert [[endpoint.rank for endpoint in carried.ranks] for carried in found] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]


def test_a_process_is_told_by_its_ranks() -> None:
    assert ProcessRole(tuple(endpoints(8)[2:3])).who == {"who": "rank 2", "host": "east2"}
    assert ProcessRole(tuple(endpoints(8)[2:5])).who == {"who": "ranks 2 to 4", "host": "east2 to east4"}
