"""Pages as people see them: nothing cut, on wide screens and phones, in light and dark, and nothing on the console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.show.report import write_report
from testbed.show.report.exploration import write_exploration
from tests.unit.show.browser import PHONE, WIDE, browsing, contrast, showing
from tests.unit.show.report_run import SyntheticRun, four_buildings, three_buildings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LONG = "data_parallel_replicate 2, pipeline_parallel 4, placement crosspipe, schedule CrossUD, policy ecmp"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as own:
        yield own


def untrusted() -> SyntheticRun:
    return SyntheticRun(name="untrusted", statuses={"ring": "untrusted", "hierarchical": "caution"})


def exploration(folder: Path) -> Path:
    """A page of one with more names than there is room for, some at the same place."""

    def entry(number: int, kind: str = "best") -> dict[str, object]:
        step_s = 1.0 + 0.001 * (number // 2)
        return {
            "name": f"{kind} {number}", "of": f"{kind} {number}", "kind": kind, "tuned": False,
            "configuration": f"{LONG} {number}", "changes": {"policy": number}, "step_time_s": step_s,
            "tail_s": step_s, "wan_bytes": 10**9 + 10**6 * number, "memory_bytes": 2e9, "variant": None,
        }  # fmt: skip

    compared = [entry(60, "baseline"), *(entry(number) for number in range(8))]
    document = {
        "scenario": "many", "combinations": 200, "tried": 200, "indifferent": {}, "infeasible": [], "rungs": [],
        "work": {"tokens": 65536, "sequences": 16, "computing_s": 0.5, "utilisation": 0.4}, "recorded": None,
        "sensitivity": None, "agreement": None, "compared": compared, "pareto": compared[1:2],
        "fitting": [entry(number) for number in range(64)],
    }  # fmt: skip
    return write_exploration(folder, document)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = (untrusted(), three_buildings(), four_buildings())
    for run in runs:
        run.trials = 2
    folders = {run.name: tmp_path_factory.mktemp("run") for run in runs}
    found = {run.name: write_report(run.write(folders[run.name])) for run in runs}
    return found | {"exploration": exploration(tmp_path_factory.mktemp("explored"))}


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["untrusted", "three-buildings", "full mesh", "exploration"])
def test_nothing_is_cut_and_the_console_is_silent(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    with showing(browser, pages[name], width) as shown:
        assert shown.cut() == []
        assert shown.said == []


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_in_light_and_dark(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    with showing(browser, pages["untrusted"], dark=dark) as shown:
        for selector in ("h1", ".note", ".headline td", ".invariants .no"):
            assert contrast(shown.page, selector) >= 4.5, selector
        paper = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_on_a_phone_every_figure_says_what_it_is(browser: Browser, pages: dict[str, Path]) -> None:
    with showing(browser, pages["three-buildings"], PHONE) as shown:
        cell = shown.page.locator(".headline tbody tr").first.locator("td").nth(1)
        assert cell.get_attribute("data-label") == "Tokens/s"
        label = cell.evaluate("own => getComputedStyle(own, '::before').content")
        assert json.loads(label) == "Tokens/s"
        assert shown.page.locator("figure .narrow svg").first.is_visible()
        assert not shown.page.locator("figure .wide svg").first.is_visible()


def test_what_did_not_hold_comes_before_what_held(browser: Browser, pages: dict[str, Path]) -> None:
    with showing(browser, pages["three-buildings"]) as shown:
        tops = [
            shown.page.locator(selector).first.bounding_box()
            for selector in ("h1", ".lead", ".banner", ".headline")
        ]
        heights = [box["y"] for box in tops if box]
        assert heights == sorted(heights)
        held = shown.page.locator(".invariants").nth(1).locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert held[0] == "✗ no"
        assert set(held[2:]) == {"✓ yes"}


def test_neither_points_nor_their_names_cover_each_other(browser: Browser, pages: dict[str, Path]) -> None:
    with showing(browser, pages["exploration"]) as shown:
        assert shown.page.locator("h1").inner_text() == f"The best: {LONG} 0"
        chart = shown.page.locator("svg").filter(has=shown.page.locator("circle")).first
        names = chart.locator("text.value").all_text_contents()
        told = {name for words in names for name in words.split(", ")}
        assert told == {"baseline 60", *(f"best {number}" for number in range(8))}
        overlaps = chart.evaluate(
            """own => {
              const boxes = [...own.querySelectorAll('circle, text.value')].map(one => one.getBoundingClientRect());
              const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5;
              return boxes.flatMap((a, at) => boxes.slice(at + 1).filter(b => over(a, b))).length;
            }"""
        )
        assert overlaps == 0
