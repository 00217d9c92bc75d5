"""When switches see what was cut and mended."""

from __future__ import annotations

from collections.abc import Collection

from testbed.net.fabric.faults import CarrierDelay


class Line(CarrierDelay):
    """Links and a clock: what was done to each, and when."""

    def __init__(self, down_s: float, up_s: float) -> None:
        super().__init__(down_s, up_s, lambda: self.now_s)
        self.now_s = 0.0
        self.done: list[tuple[float, str, str]] = []

    def blackhole(self, names: Collection[str]) -> None:
        self.done += [(self.now_s, name, "dark") for name in names]

    def set_carrier(self, name: str, up: bool) -> None:
        self.done.append((self.now_s, name, "up" if up else "down"))

    def take(self) -> list[tuple[float, str, str]]:
        done, self.done = self.done, []
        return done


def carriers(down_s: float = 0.01, up_s: float = 0.02) -> tuple[CarrierDelay, Line]:
    line = Line(down_s, up_s)
    return line, line


def wait(made: CarrierDelay, line: Line, until_s: float) -> None:
    """As whoever owns them waits: from one due time to the next."""
    while made.due_s is not None and made.due_s <= until_s:
        line.now_s = made.due_s
        made.apply_due()
    line.now_s = until_s


def test_a_cut_is_dark_at_once_and_seen_later_and_so_is_its_mending() -> None:
    made, line = carriers()
    made.cut(["a"])
    assert made.due_s == 0.01
    wait(made, line, 1.0)
    assert line.take() == [(0.0, "a", "dark"), (0.01, "a", "down")]
    assert made.due_s is None
    made.restore(["a"])
    assert line.take() == []
    wait(made, line, 2.0)
    assert line.take() == [(1.02, "a", "up")]


def test_what_is_mended_before_it_was_seen_never_is() -> None:
    made, line = carriers()
    made.cut(["a"])
    line.now_s = 0.009
    made.restore(["a"])
    assert made.due_s is None
    assert line.take() == [(0.0, "a", "dark"), (0.009, "a", "up")]


def test_what_is_cut_again_before_its_mending_was_seen_stays_down() -> None:
    made, line = carriers()
    made.cut(["a"])
    wait(made, line, 0.1)
    made.restore(["a"])
    line.now_s = 0.11
    made.cut(["a"])
    wait(made, line, 1.0)
    assert line.take() == [(0.0, "a", "dark"), (0.01, "a", "down")]
    made.restore(["a"])
    wait(made, line, 2.0)
    assert line.take() == [(1.02, "a", "up")]


def test_without_delays_all_is_seen_at_once() -> None:
    made, line = carriers(0.0, 0.0)
    made.cut(["a", "b"])
    made.restore(["b"])
    assert made.due_s is None
    assert [(name, what) for _, name, what in line.take()] == [("a", "down"), ("b", "down"), ("b", "up")]


def test_several_are_seen_in_the_order_of_their_times_and_all_when_settled() -> None:
    made, line = carriers()
    made.cut(["b"])
    line.now_s = 0.005
    made.cut(["a"])
    line.take()
    wait(made, line, 0.012)
    assert line.take() == [(0.01, "b", "down")]
    made.flush()
    assert line.take() == [(0.012, "a", "down")]
    assert made.due_s is None


def test_what_is_down_or_about_to_be_is_known() -> None:
    made, line = carriers()
    assert not made.is_down("a")
    made.cut(["a"])
    assert made.is_down("a")
    wait(made, line, 0.5)
    assert made.is_down("a")
    made.restore(["a"])
    assert made.is_down("a")
    wait(made, line, 1.0)
    assert not made.is_down("a")
