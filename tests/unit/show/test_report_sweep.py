from __future__ import annotations

import re

from testbed.show.report.sweep import render_sweep
from testbed.spec.sweep_axes import parse_axis
from tests.unit.cli.test_sweeps import CROSSING, made


def test_the_note_says_lines_where_lines_are_drawn_whichever_axis_has_words() -> None:
    words, numbers = parse_axis("policy=ecmp,te"), parse_axis("a.delay=1ms,9ms")
    steps = {"ring": lambda first, second: 1.0 + first + second}
    for axes in ([words, numbers], [numbers, words]):
        page = render_sweep(made(axes, steps))
        assert ' whisker"' in page
        assert "Lines are predictions" in page
    page = render_sweep(made([words], CROSSING))
    assert "Small points are predictions" in page


def test_what_is_not_trusted_stands_before_what_is() -> None:
    axes = [parse_axis("a.delay=1ms..4ms:4")]
    page = render_sweep(made(axes, {"ring": lambda index: 1.0}, {(1,): "trusted", (2,): "caution"}))
    table = page[page.index("<tbody>") :]
    assert re.findall(r"(\d) ms</td>\s*<th", table) == ["3", "1", "2", "4"]
