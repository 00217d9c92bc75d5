"""The live page as people use it, in a real browser."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.show.live.server import LivePage
from tests.unit.show.browser import PHONE, WIDE, Shown, browsing, contrast, showing
from tests.unit.show.live_run import LiveRun
from tests.unit.show.report_run import Link, SyntheticRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MOST_S = 2.0  # of processors' time, of server and page together, until a run of 64 ranks is drawn


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as own:
        yield own


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    run = SyntheticRun(statuses={"ring": "caution"})
    with LivePage(run.write(tmp_path_factory.mktemp("runs") / "run")) as page:
        yield page


def drawn(shown: Shown, step: int | None = None) -> None:
    """Once a step's timeline is there."""
    which = "[data-step]:not([data-step=''])" if step is None else f"[data-step='{step}']"
    shown.page.wait_for_selector(f"body{which}", state="attached")


def becomes(shown: Shown, expression: str) -> None:
    """Until it is true; the page's policy leaves Playwright's own way of waiting no way."""
    deadline_s = time.monotonic() + 30.0
    while not shown.page.evaluate(expression):
        assert time.monotonic() < deadline_s, expression
        shown.page.wait_for_timeout(20)


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (PHONE, True)])
def test_nothing_is_cut_and_the_console_is_silent(
    browser: Browser, finished: LivePage, width: int, dark: bool
) -> None:
    with showing(browser, finished.address, width, dark) as shown:
        drawn(shown)
        assert shown.cut() == []
        assert shown.said == []
        for selector in ("h1", "#links td", ".note"):
            assert contrast(shown.page, selector) >= 4.5
        assert shown.page.get_attribute("html", "data-theme") == ("dark" if dark else "light")


def test_it_begins_with_verdict_answer_and_failures(browser: Browser, finished: LivePage) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        page = shown.page
        assert page.inner_text("#badge") == "caution"
        assert "hierarchical is 1.25x faster than ring" in page.inner_text("#answer")
        assert "ring, cpu_headroom" in page.inner_text("#failing")
        assert page.locator("#invariants tbody tr").first.locator("td").nth(2).inner_text() == "✗ no"
        headings = page.locator("#variants thead").inner_text()
        assert all(name in headings for name in ("Tokens/s", "Sequences/s", "MFU"))


def test_tables_sort_and_filter(browser: Browser, finished: LivePage) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        page = shown.page

        def column(place: int) -> list[str]:
            cells = page.locator(f"#invariants tbody td:nth-child({place})").all_inner_texts()
            return [cell.strip() for cell in cells]

        page.get_by_role("button", name="Invariant", exact=True).click()
        assert column(2) == sorted(column(2))
        page.get_by_role("button", name="Invariant", exact=True).click()
        assert column(2) == sorted(column(2), reverse=True)
        assert page.locator("#invariants th[aria-sort='descending']").count() == 1
        page.fill("#invariants input", "scheduler")
        assert set(column(2)) == {"scheduler_lag"}
        assert page.locator("#invariants .count").inner_text() == "2 of 16"
        page.fill("#filter", "west → east")
        assert {row.split("\t")[0] for row in page.locator("#links tbody tr").all_inner_texts()} == {"west"}


def window(shown: Shown) -> tuple[float, float]:
    """What is shown of the run, seconds."""
    begin, end = shown.page.evaluate("state.window")
    return begin, end


def test_the_timeline_zooms_and_moves_and_its_cursor_is_the_networks(
    browser: Browser, finished: LivePage
) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        page = shown.page
        before = window(shown)
        place = page.locator("#timeline .chart")
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] / 2, box["y"] + 60
        page.mouse.move(*middle)
        page.wait_for_selector("#cursor:has-text('At ')")
        at = page.inner_text("#cursor")
        assert "east → west, plane 0" in at
        becomes(
            shown,
            "state.charts.network.getOption().series[0].links[0].share === readings().used[0][moment()]",
        )
        page.mouse.wheel(0, -400)
        becomes(shown, f"state.window[0] > {before[0]}")
        zoomed = window(shown)
        assert before[0] < zoomed[0] < zoomed[1] < before[1]
        page.mouse.down()
        page.mouse.move(middle[0] - 150, middle[1], steps=4)
        page.mouse.up()
        becomes(shown, f"state.window[0] > {zoomed[0]}")
        page.wait_for_timeout(200)
        moved = window(shown)
        assert moved[0] > zoomed[0]
        assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0], rel=0.02)
        page.click("#show-all")
        assert window(shown)[0] == 0
        page.click("#show-step")
        becomes(shown, "state.window[0] > 0")
        assert window(shown) == pytest.approx(before)
        page.mouse.move(*middle)
        page.set_viewport_size({"width": 1000, "height": 800})  # with the cursor there
        page.wait_for_timeout(300)
        assert shown.said == []


def test_links_of_a_step_between_two_readings_are_shown(browser: Browser, finished: LivePage) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        page = shown.page
        times = page.evaluate("readings().times_s")
        at = next(place for place, time_s in enumerate(times) if time_s > window(shown)[0] + 1.2)
        begin, end = times[at - 1] + 0.01, times[at] - 0.01
        page.evaluate(f"state.window = [{begin}, {end}]; drawTimeline()")
        share = page.evaluate(f"readings().used[0][{at}]")
        assert share > 0.1
        becomes(
            shown, f"Math.abs(state.charts.network.getOption().series[0].links[0].share - {share}) < 1e-6"
        )
        page.evaluate("drawn = state.charts.timeline.getModel().getSeriesByType('line')[0].getData().count()")
        assert page.evaluate("drawn") == len(times)


def test_a_click_on_a_step_time_shows_that_step(browser: Browser, finished: LivePage) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        page = shown.page
        place = page.locator("#steps .chart")
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        x, y = page.evaluate(
            """() => {
              const step = state.run.steps.find(own => own.variant === 'hierarchical' && own.trial === 2);
              return state.charts.steps.convertToPixel({ seriesIndex: 1 }, [2, step.end_s - step.start_s]);
            }"""
        )
        assert box is not None
        page.mouse.click(box["x"] + x, box["y"] + y)
        drawn(shown, 7)
        assert page.locator("#step option:checked").inner_text().startswith("hierarchical, trial 2")


def test_every_figure_is_saved_as_svg_png_and_csv(
    browser: Browser, finished: LivePage, tmp_path: Path
) -> None:
    heads = {"network": "source,target", "timeline": "what,begin_s", "steps": "variant,trial"}
    least = {"network": 5, "timeline": 1001, "steps": 11}
    with showing(browser, finished.address) as shown:
        drawn(shown)
        for name, head in heads.items():
            saved = {}
            for form in ("SVG", "PNG", "CSV"):
                with shown.page.expect_download() as download:
                    shown.page.get_by_role("button", name=f"{name} as {form}").click()
                assert download.value.suggested_filename == f"quickstart-{name}.{form.lower()}"
                saved[form] = tmp_path / f"{name}.{form}"
                download.value.save_as(saved[form])
            image = ET.parse(saved["SVG"]).getroot()
            assert image.tag.endswith("svg")
            assert len(list(image.iter())) > 20
            assert saved["PNG"].read_bytes().startswith(b"\x89PNG")
            assert saved["PNG"].stat().st_size > 5000
            lines = saved["CSV"].read_text().splitlines()
            assert lines[0].startswith(head)
            assert len(lines) >= least[name]
        assert shown.said == []


def test_names_are_words_whatever_is_in_them(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    run = SyntheticRun(name=name, buildings={name: 2, "west": 2}, links=[Link(name, "west")], trials=1)
    with LivePage(run.write(tmp_path / "run")) as page, showing(browser, page.address) as shown:
        drawn(shown)
        assert shown.page.inner_text("h1") == name
        box = shown.page.locator("#network .chart").bounding_box()
        assert box is not None
        shown.page.mouse.move(box["x"] + 100, box["y"] + box["height"] / 2)
        shown.page.wait_for_selector("#network .chart >> text=onerror")
        assert shown.page.locator("img").count() == 0
        assert shown.said == []


def test_dark_is_a_button_too(browser: Browser, finished: LivePage) -> None:
    with showing(browser, finished.address) as shown:
        drawn(shown)
        light = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        shown.page.click("#theme")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        assert contrast(shown.page, "h1") >= 4.5
        label = "state.charts.steps.getOption().yAxis[0].axisLabel.color"
        becomes(shown, f"{label} === 'rgb(163, 173, 185)'")
        shown.page.click("#theme")
        becomes(shown, f"{label} === 'rgb(90, 101, 114)'")


def test_a_run_that_goes_on_is_drawn_as_it_comes(browser: Browser, tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    with LivePage(run.folder) as page, showing(browser, page.address) as shown:
        shown.page.wait_for_selector("body[data-ready='running']", state="attached")
        assert "starting 8 ranks" in shown.page.inner_text("#kicker")
        run.parts()
        run.step()
        drawn(shown, 0)
        assert "at 12.5 s" in shown.page.inner_text("#progress")
        assert shown.page.inner_text("#badge") == "running"
        step_s = json.loads((run.source / "summary.json").read_text())["variants"][0]["step_time_s"][
            "samples"
        ][0]
        rates = shown.page.locator("#variants tbody tr").first.locator("td").all_inner_texts()[3:6]
        assert float(rates[0].replace(",", "")) == pytest.approx(65536 / step_s, rel=1e-3)
        assert rates[2] == f"{40 * 1.017 / step_s:.3g} %"
        run.step()
        run.event()
        drawn(shown, 1)  # it follows
        assert shown.page.locator("#events td").all_inner_texts()[1] == "link_down east-west-0 begins"
        assert shown.cut() == []
        run.finish()
        shown.page.wait_for_selector("body[data-ready='finished']", state="attached")
        assert shown.page.inner_text("#badge") == "trusted"
        assert shown.page.locator("#invariants tbody tr").count() > 10
        assert shown.said == []


def test_a_run_of_64_ranks_opens_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    names = [f"building-{number}" for number in range(4)]
    links = [Link(a, b, plane) for at, a in enumerate(names) for b in names[at + 1 :] for plane in (0, 1)]
    run = SyntheticRun(buildings=dict.fromkeys(names, 16), links=links, trials=3).write(tmp_path / "run")
    began_s = time.process_time()
    with LivePage(run) as page, showing(browser, "about:blank") as shown:
        devtools = shown.page.context.new_cdp_session(shown.page)
        devtools.send("Performance.enable")
        shown.page.goto(page.address)
        drawn(shown)
        measured = devtools.send("Performance.getMetrics")["metrics"]
        server_s = time.process_time() - began_s
        page_s = next(one["value"] for one in measured if one["name"] == "ProcessTime")
        assert page_s > 0.05
        assert server_s + page_s < MOST_S  # not wall time, for others use the machine, too
        assert shown.page.evaluate("state.operations.ranks.length") == 64
        assert shown.cut() == []
