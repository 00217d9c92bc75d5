"""The bench of schedules over latency and bandwidth: its table, its picture, and that it hides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.crosspipe_table import PUBLISHED, Row, table
from tests.bench.schedule_grid import HEADS, columns, gain_of, picture, read_picture

PICTURE = Path(__file__).parents[3] / "docs/evidence/training/schedules.svg"


def cell_of(**steps_s: float) -> dict[str, Any]:
    cell: dict[str, Any] = {"centers": 2, "memory": 1, "latency": 0.5, "time": 2, "steps_s": steps_s}
    if "optimal" in steps_s:
        cell |= {"effort_s": 1, "bounds_s": {"1": 1.5, "2": 1.0}, "searched_s": 2.0, "stages": 8}
    return cell


def test_an_optimum_that_is_slower_than_a_schedule_with_a_name_is_not_drawn_as_none() -> None:
    assert gain_of(cell_of(crossud=3.0, optimal=2.0)) == 1.5
    assert gain_of(cell_of(crossud=2.0, optimal=2.0004)) < 1
    with pytest.raises(AssertionError, match="slower than crossud"):
        picture([cell_of(crossud=2.0, optimal=2.01)])


def test_the_table_has_what_is_known_of_a_cell() -> None:
    row = dict(zip(HEADS, columns(cell_of(crossud=3.0, optimal=2.0)), strict=True))
    assert (row["crossud"], row["1f1b"], row["quickest_named"]) == ("3.0000", "", "crossud")
    assert (row["named_longer_percent"], row["optimal"], row["gap_percent"]) == ("50.0", "2.0000", "25.0")
    shown = dict(zip(HEADS, columns(cell_of(crossud=3.0), {(2, 1, 0.5, 2): 0.2}), strict=True))
    assert (shown["named_longer_percent"], shown["optimal"], shown["bound_one_stage"]) == (
        "20.0",
        "2.500",
        "",
    )


def test_a_picture_can_be_read_again() -> None:
    drawn = picture([cell_of(crossud=3.0, optimal=2.0)])
    assert read_picture(drawn) == {(2, 1, 0.5, 2): 0.5}
    assert len(read_picture(PICTURE.read_text())) == 180


def test_a_table_of_crosspipe_has_both_figures_and_how_far_they_are_apart() -> None:
    assert len(PUBLISHED) == 30
    (line,) = list(table([Row(2, 2, 0.25, 3, "CrossUD", 0.124, 0.127)], 3))[2:]
    assert line == "| two, (2, 0.25) | 127 / 124 (+2.4 %) |"
