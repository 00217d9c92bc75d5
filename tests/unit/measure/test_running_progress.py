"""What people are told of a run's parts."""

from __future__ import annotations

from testbed.measure.execution.progress import PartProgress, progress_text, time_left_text


def test_parts_are_told_by_name_and_virtual_time_while_they_are_at_work() -> None:
    parts = [
        PartProgress("ring", 6, 6, 31.0, finished=True),
        PartProgress("leaders", 2, 6, 12.34),
        PartProgress("tree"),
    ]
    assert progress_text(parts) == "1 of 3 parts done; leaders at 12.3 s"
    parts[1].finished = parts[2].finished = True
    assert progress_text(parts) == "3 of 3 parts done"


def test_of_one_part_nothing_is_said_beside_its_steps() -> None:
    assert progress_text([PartProgress("ring", 1, 6, 11.0)]) == ""


def test_the_time_that_is_left_goes_by_the_steps_of_all_parts() -> None:
    parts = [PartProgress("ring", 6, 6, 31.0, finished=True), PartProgress("leaders")]
    assert time_left_text(30.0, parts) == "about 30 s left"
    assert time_left_text(300.0, parts) == "about 5 min left"
    assert time_left_text(30.0, [PartProgress("ring"), PartProgress("leaders")]) == ""
    assert time_left_text(30.0, [PartProgress("ring", 6, 6, 31.0, finished=True)]) == ""


def test_parts_that_were_there_from_before_say_nothing_of_the_time_that_others_take() -> None:
    parts = [PartProgress("ring", 6, 6, finished=True), PartProgress("leaders", 2, 6, 12.3)]
    assert time_left_text(30.0, parts) == "about 60 s left"
