from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from testbed.measure.results.run_directory import BadResult
from testbed.show.report import write_report
from tests.unit.show.report_run import Link, SyntheticRun, four_buildings, many_buildings, three_buildings

VOID_ELEMENTS = {"meta", "input", "br"}


class Page(HTMLParser):
    """Collects a page's elements and texts; refuses tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"attribute given twice in {tag}: {attrs}"
        if ("div", {"class": "narrow"}) not in self.open:  # what is drawn once more, for phones
            self.elements.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open:
            self.cells.append((self.open[-1][0], " ".join(data.split())))

    @property
    def text(self) -> str:
        return " ".join(text for tag, text in self.cells if tag != "style")

    def with_class(self, css: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, attrs) for tag, attrs in self.elements if css in (attrs.get("class") or "").split()]


def report_of(run: SyntheticRun, tmp_path: Path) -> str:
    return write_report(run.write(tmp_path)).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    write_report(SyntheticRun().write(run_dir))
    return run_dir


def test_report_and_trace_lie_in_the_run_directory(quickstart: Path) -> None:
    assert (quickstart / "report.html").is_file()
    assert json.loads((quickstart / "trace.json").read_text())["traceEvents"]


def test_headline_has_every_variants_figures(quickstart: Path) -> None:
    summary = json.loads((quickstart / "summary.json").read_text())
    text = Page((quickstart / "report.html").read_text()).text
    assert "a link cut is detected after 10 ms, the controller reacts in 50 ms, 1 ms a rule" in text
    for variant in summary["variants"]:
        assert f"{variant['step_time_s']['median']:.3f} s" in text
        assert f"{variant['step_time_s']['p95']:.3f} s" in text
        assert f"{variant['predicted']['step_time_s']:.3f} s -1.0 %" in text
        assert f"{variant['exposed_comm_s'] * 1e3:.1f} ms" in text
        assert variant["limited_by"] in text
    # 3.5 and 2 times 32.121 GB of gradients.
    assert "expected 112 GB" in text
    assert "expected 64.2 GB" in text
    assert "hierarchical is 1.25x faster than ring (19.7 % less time; trial by trial" in text


def test_drawing_shows_real_figures_and_keeps_the_emulated_ones_in_tooltips(quickstart: Path) -> None:
    page = Page((quickstart / "report.html").read_text())
    labels = [text for tag, text in page.cells if tag == "text"]
    assert "plane 0 · 285.7 Gbit/s · 2.5 ms" in labels
    assert "plane 1 · 285.7 Gbit/s · 2.5 ms" in labels
    assert not any("71.4" in label for label in labels)
    tooltips = [text for tag, text in page.cells if tag == "title"]
    assert any("Emulated: 71.42 Mbit/s, 2.5 ms, queue 576 kB" in text for text in tooltips)
    assert {"east1", "west4", "rank 0", "rank 7"} <= set(labels)


def test_invariants_and_reproduction_are_listed(quickstart: Path) -> None:
    page = Page((quickstart / "report.html").read_text())
    cells = [text for tag, text in page.cells if tag == "td"]
    at = cells.index("rate_accuracy")
    assert cells[at + 1 : at + 5] == [
        "✓ yes",
        "within 3 %",
        "0.4 %",
        "Every WAN link carried its configured rate.",
    ]
    assert cells[cells.index("loss_accuracy") + 1] == "n/a"
    assert ("pre", "testbed run scenarios/quickstart.yaml") in page.cells
    for expected in ("6.18.0", "userspace", "netdev", "cubic", "8 entries, see manifest.json"):
        assert ("dd", expected) in page.cells
    assert ("dd", "285.7 Gbit/s emulated as 71.42 Mbit/s") in page.cells


def test_page_loads_nothing(quickstart: Path) -> None:
    html = (quickstart / "report.html").read_text()
    page = Page(html)
    loading = {"script", "link", "img", "iframe", "object", "embed", "image", "use", "source", "base", "form"}
    assert not loading & {tag for tag, _ in page.elements}
    for tag, attrs in page.elements:
        assert not {"src", "srcset", "xlink:href", "style", "onclick"} & attrs.keys(), (tag, attrs)
        assert (attrs.get("href") or "#").startswith("#"), (tag, attrs)
    assert not re.search(r"@import|url\s*\(|https?://", html)


@pytest.mark.parametrize("make", [three_buildings, four_buildings, many_buildings])
def test_other_topologies_give_well_formed_pages_too(make: type[SyntheticRun], tmp_path: Path) -> None:
    run = make()
    run.trials = 2
    page = Page(report_of(run, tmp_path))
    text = page.text
    for building in run.buildings:
        assert building in text
    # One line per direction of each link in each variant's drawing.
    assert len(page.with_class("wan")) == len(run.links) * 2 * len(run.exposed_s)


def test_asymmetric_link_shows_both_directions(tmp_path: Path) -> None:
    text = Page(report_of(three_buildings(), tmp_path)).text
    assert "← 400 Gbit/s · 5 ms ± 200 us" in text
    assert "→ 100 Gbit/s · 5 ms ± 200 us" in text
    assert "200 Gbit/s · 10 ms · 0.1 % loss" in text


def test_odd_names_are_shown_not_interpreted(tmp_path: Path) -> None:
    odd = "<b>&\"'{{ 7 * 7 }}</script>"
    run = SyntheticRun(
        name=odd,
        buildings={odd: 1, "west": 1},
        links=[],
        exposed_s={odd: 0.1},
        wan_share={odd: 0.0},
        trials=2,
        command=["testbed", "run", odd],
    )
    run.links = []
    run_dir = run_without_links(run, tmp_path)
    html = write_report(run_dir).read_text(encoding="utf-8")
    page = Page(html)
    assert ("h1", odd) in page.cells
    assert "<b>&" not in html
    assert not [tag for tag, _ in page.elements if tag == "script"]


def run_without_links(run: SyntheticRun, run_dir: Path) -> Path:
    here, there = run.buildings
    run.links = [Link(here, there)]
    run.write(run_dir)
    (run_dir / "links.jsonl").write_text("")
    return run_dir


def test_untrusted_variant_is_impossible_to_overlook(tmp_path: Path) -> None:
    page = Page(report_of(SyntheticRun(statuses={"ring": "untrusted"}), tmp_path))
    banner = page.with_class("banner")
    assert [attrs["class"] for _, attrs in banner] == ["banner untrusted"]
    tags = [tag for tag, _ in page.elements]
    assert tags.index("section") < tags.index("h1"), "the banner comes first"
    assert "Untrusted: do not use the figures" in page.text
    assert page.text.count("packets waited for the processor") >= 3  # banner, headline, verdict
    # Struck out: median, predicted, p95, compute, exposed communication, WAN bytes, limited by; of ring alone.
    assert len(page.with_class("void")) == 7
    assert "faster" not in page.text
    assert "cannot be compared: ring is untrusted" in page.text
    assert page.with_class("unreliable")


def test_caution_has_a_banner_and_keeps_the_figures(tmp_path: Path) -> None:
    page = Page(report_of(SyntheticRun(statuses={"ring": "caution"}), tmp_path))
    assert [attrs["class"] for _, attrs in page.with_class("banner")] == ["banner caution"]
    assert not page.with_class("void")


def test_of_many_reasons_five_stand_open_the_worst_variant_first(tmp_path: Path) -> None:
    statuses = {"ring": "caution", "hierarchical": "untrusted"}
    folder = SyntheticRun(statuses=statuses).write(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    for variant in summary["variants"]:
        kept = variant["verdict"]["invariants"]
        failed = next(one for one in kept if one["ok"] is False)
        many = [{**failed, "name": f"n{number}", "sentence": f"Reason {number}."} for number in range(4)]
        variant["verdict"]["invariants"] = [one for one in kept if one["ok"] is not False] + many
    (folder / "summary.json").write_text(json.dumps(summary))
    banner = write_report(folder).read_text(encoding="utf-8").split('role="alert">')[1].split("</section>")[0]
    open_ones, behind = banner.split("<details>")
    assert re.findall(r"<li><b>(\w+)</b>", open_ones) == ["hierarchical"] * 4 + ["ring"]
    assert re.findall(r"Reason (\d)", behind) == ["1", "2", "3"]
    assert "And 3 more: n1, n2, n3" in behind


def test_trusted_has_no_banner(quickstart: Path) -> None:
    assert not Page((quickstart / "report.html").read_text()).with_class("banner")


def test_bytes_that_differ_from_the_formula_are_marked(tmp_path: Path) -> None:
    page = Page(report_of(SyntheticRun(overhead_bytes=900_000_000), tmp_path))
    assert ("span", "+0.8 %") in page.cells
    assert ("span", "+1.4 %") in page.cells
    assert not page.with_class("match")


@pytest.mark.parametrize(
    "missing", ["summary.json", "manifest.json", "samples.jsonl", "links.jsonl", "scenario.yaml"]
)
def test_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    run_dir = SyntheticRun(trials=1).write(tmp_path)
    (run_dir / missing).unlink()
    with pytest.raises(BadResult, match=re.escape(str(run_dir / missing))):
        write_report(run_dir)


def test_broken_line_is_named(tmp_path: Path) -> None:
    run_dir = SyntheticRun(trials=1).write(tmp_path)
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"variant": "ring"\n')
    lines = len((run_dir / "samples.jsonl").read_text().splitlines())
    with pytest.raises(BadResult, match=rf"samples\.jsonl:{lines}: not JSON"):
        write_report(run_dir)
    (run_dir / "samples.jsonl").write_text('{"variant": "ring"}\n')
    with pytest.raises(BadResult, match=r"samples\.jsonl:1: not a sample"):
        write_report(run_dir)
