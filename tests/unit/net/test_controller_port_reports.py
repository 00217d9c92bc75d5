"""When a controller that takes its time goes by what switches said."""

from __future__ import annotations

from testbed.net.controller.switch_sessions import PortReport, PortReports

DOWN = PortReport(1.0, frozenset({(1, 3)}))
MORE = PortReport(1.5, frozenset({(1, 3), (2, 3)}))
UP = PortReport(9.0, frozenset())


def words(*said: PortReport, reaction_s: float = 2.0) -> PortReports:
    made = PortReports(reaction_s)
    for word in said:
        made.add(word)
    return made


def test_nothing_is_waited_for_when_nothing_was_said() -> None:
    assert words().wait_s(5.0) is None
    assert words().take(5.0) is None


def test_each_is_gone_by_when_its_own_time_is_over() -> None:
    said = words(DOWN, MORE)
    assert said.wait_s(1.0) == 2.0
    assert said.take(2.999) is None
    assert said.take(3.0) == DOWN
    assert said.wait_s(3.0) == 0.5
    assert said.take(3.5) == MORE
    assert said.wait_s(3.5) is None


def test_those_that_came_of_age_meanwhile_are_taken_together_and_no_others() -> None:
    said = words(DOWN, MORE, UP)
    assert said.wait_s(10.0) == 0.0
    assert said.take(10.0) == MORE
    assert said.take(10.0) is None
    assert said.wait_s(10.0) == 1.0


def test_a_controller_that_takes_no_time_goes_by_the_last_at_once() -> None:
    assert words(DOWN, MORE, reaction_s=0.0).take(1.5) == MORE
