from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.results.records import COUNTERS, Sample
from testbed.show.report.charts import (
    median_step,
    step_spans,
    step_time_chart,
    time_split_chart,
    timeline_chart,
)
from testbed.show.report.run_data import LinkCounters, RunData, load_run
from testbed.show.report.svg import Axis, padded_range, shorten
from testbed.show.report.topology import load_class, topology_drawing
from testbed.show.report.utilisation import LinkRates, utilisation_between, utilisation_over_time_chart
from tests.unit.show.report_run import Link, SyntheticRun, four_buildings, many_buildings, three_buildings

Rectangle = tuple[float, float, float, float]


def loaded(run: SyntheticRun, run_dir: Path) -> RunData:
    return load_run(run.write(run_dir))


def rectangles(drawing: ET.Element, css: str) -> list[Rectangle]:
    found = []
    for element in drawing.iter("rect"):
        if element.get("class") == css:
            x, y, width, height = (float(element.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def wide_bundle() -> SyntheticRun:
    return SyntheticRun(buildings={"x": 1, "y": 1}, links=[Link("x", "y", plane) for plane in range(4)])


@pytest.mark.parametrize("make", [SyntheticRun, wide_bundle, three_buildings, four_buildings, many_buildings])
def test_nothing_in_the_topology_drawing_overlaps_or_leaves_it(
    make: type[SyntheticRun], tmp_path: Path
) -> None:
    run = make()
    run.trials = 1
    data = loaded(run, tmp_path)
    drawing = ET.fromstring(topology_drawing(data, data.variants[0]))
    _, _, width, height = (float(value) for value in drawing.attrib["viewBox"].split())
    walls, labels = rectangles(drawing, "building-wall"), rectangles(drawing, "wan-label-box")
    assert len(walls) == len(run.buildings)
    assert labels
    for one, other in combinations(walls + labels, 2):
        assert not overlap(one, other)
    for left, top, right, bottom in walls + labels:
        assert left >= 0
        assert right <= width
        assert top >= 0
        assert bottom <= height


def test_colour_and_width_follow_each_directions_use(tmp_path: Path) -> None:
    run = SyntheticRun(links=[Link("east", "west", 0)], trials=1)
    data = loaded(run, tmp_path)
    forth, back = data.variants[0]["wan_links"]
    forth["utilisation"], back["utilisation"] = 0.9, 0.1
    drawing = ET.fromstring(topology_drawing(data, data.variants[0]))
    lines = {line.get("class"): line for line in drawing.iter("line")}
    assert set(lines) == {"load-high", "load-low"}
    assert float(lines["load-high"].attrib["stroke-width"]) > float(lines["load-low"].attrib["stroke-width"])
    # East is left: its outgoing direction runs to the right.
    assert float(lines["load-high"].attrib["x1"]) < float(lines["load-high"].attrib["x2"])
    assert float(lines["load-low"].attrib["x1"]) > float(lines["load-low"].attrib["x2"])
    texts = [text.text for text in drawing.iter("text")]
    assert "→ 90 % used · ← 10 % used" in texts


@pytest.mark.parametrize(
    ("utilisation", "css"),
    [
        (None, "load-unknown"),
        (0.0, "load-idle"),
        (0.3, "load-low"),
        (0.5, "load-medium"),
        (0.8, "load-high"),
        (1.2, "load-high"),
    ],
)
def test_load_classes(utilisation: float | None, css: str) -> None:
    assert load_class(utilisation) == css


def test_median_step_is_the_one_in_the_middle() -> None:
    def step(trial: int, rank: int, start_s: float, end_s: float) -> Sample:
        return Sample("ring", trial, 0, rank, "step", "step", start_s, end_s, 0.0)

    samples = [step(0, 0, 0.0, 3.0), step(1, 0, 10.0, 11.0), step(2, 0, 20.0, 21.5), step(2, 1, 19.5, 21.0)]
    assert step_spans(samples)[2, 0] == (19.5, 21.5)
    assert median_step(samples) == (2, 0)
    assert median_step(samples[:3]) == (2, 0)
    assert median_step(samples[:2]) == (1, 0)
    assert median_step([]) is None


def test_timeline_draws_every_operation_of_every_rank(tmp_path: Path) -> None:
    run = SyntheticRun(trials=1)
    data = loaded(run, tmp_path)
    chart = timeline_chart(data, "ring", 1.5)
    assert chart is not None
    drawn = [element.get("class") for element in ET.fromstring(chart).iter("rect")]
    own = [s for s in data.samples if s.variant == "ring" and s.operation != "step"]
    assert len(drawn) == len(own)
    assert drawn.count("op-forward") == run.ranks


def test_timeline_draws_together_what_nobody_could_tell_apart(tmp_path: Path) -> None:
    data = loaded(SyntheticRun(trials=1), tmp_path)
    whole = next(s for s in data.samples if s.variant == "ring" and s.operation == "step" and not s.rank)
    length = whole.duration_s / 10_000
    # back to back in the first half, then two that are apart
    begins = [number * length for number in range(5000)] + [7000 * length, 8000 * length]
    pieces = [
        whole._replace(
            operation="compute", name=f"{n}", start_s=whole.start_s + at, end_s=whole.start_s + at + length
        )
        for n, at in enumerate(begins)
    ]
    steps = [s for s in data.samples if s.variant == "ring" and s.operation == "step"]
    chart = timeline_chart(replace(data, samples=[*steps, *pieces]), "ring", whole.duration_s)
    assert chart is not None
    drawn = rectangles(ET.fromstring(chart), "op-compute")
    assert len(drawn) == 3
    room = 1000 - 118 - 16  # beside names and the page's edge
    assert drawn[0][2] - drawn[0][0] == pytest.approx(room / 2, abs=1)
    assert [right - left for left, _, right, _ in drawn[1:]] == pytest.approx([0.6, 0.6], abs=0.01)
    assert "5000 of compute, 0 to 4999" in chart


def test_timeline_shows_a_collective_of_a_file_as_communication(tmp_path: Path) -> None:
    data = loaded(SyntheticRun(trials=1), tmp_path)
    own = [
        s._replace(operation="/home/me/mine.py:swap") if s.operation == "all_reduce" else s
        for s in data.samples
    ]
    chart = timeline_chart(replace(data, samples=own), "ring", 1.5)
    assert chart is not None
    drawn = [element.get("class") for element in ET.fromstring(chart).iter("rect")]
    assert {css for css in drawn if css and "communication" in css} == {
        "op-communication",
        "op-communication odd",
    }
    assert "rank 0, mine.py:swap bucket 0" in chart


def test_timeline_of_many_ranks_shows_some_of_each_building(tmp_path: Path) -> None:
    data = loaded(SyntheticRun(buildings={"east": 20, "west": 20}, trials=1), tmp_path)
    chart = timeline_chart(data, "ring", 1.5)
    assert chart is not None
    forwards = [rect for rect in ET.fromstring(chart).iter("rect") if rect.get("class") == "op-forward"]
    assert 10 <= len(forwards) <= 16
    labels = [text.text or "" for text in ET.fromstring(chart).iter("text")]
    assert any("east" in label for label in labels)
    assert any("west" in label for label in labels)


def test_split_bars_have_lengths_in_proportion(tmp_path: Path) -> None:
    data = loaded(SyntheticRun(trials=3), tmp_path)
    drawing = ET.fromstring(time_split_chart(data.variants))
    lengths = [right - left for left, _, right, _ in rectangles(drawing, "bar")]
    for (compute, exposed), variant in zip((lengths[:2], lengths[2:]), data.variants, strict=True):
        assert exposed / compute == pytest.approx(variant["exposed_comm_s"] / variant["compute_s"], rel=0.01)


def test_step_time_chart_has_a_point_per_step_and_survives_a_single_one(tmp_path: Path) -> None:
    for trials in (1, 7):
        data = loaded(SyntheticRun(trials=trials), tmp_path / str(trials))
        drawing = ET.fromstring(step_time_chart(data.variants))
        assert len(list(drawing.iter("circle"))) == 2 * trials


def test_utilisation_along_the_run_comes_from_counter_differences(tmp_path: Path) -> None:
    run = SyntheticRun(links=[Link("east", "west", 0)], trials=1)
    run_dir = run.write(tmp_path)
    # 71.425 Mbit/s emulated: half a second at 50 %, another one idle.
    half = 71.425e6 / 8 * 0.5 * 0.5
    counters = [(0.0, 0), (0.5, half), (1.0, half)]
    record = {
        "a": "east",
        "b": "west",
        "plane": 0,
        "direction": "a_to_b",
        **dict.fromkeys(COUNTERS, 0),
        "queue_bytes": 0,
        "losses": 12,
    }
    lines = [{**record, "time_s": time, "bytes": size} for time, size in counters]
    # read at a step's edge, a moment before another: all that came since then at once would make a peak of its own
    lines.insert(1, {**lines[0], "time_s": 0.499999, "edge": "start"})
    (run_dir / "links.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    chart = utilisation_over_time_chart(load_run(run_dir))
    assert chart is not None
    assert "peak 50 %" in chart
    assert "12 lost" in chart
    (area,) = [shape for shape in ET.fromstring(chart).iter("polygon") if shape.get("class") == "area"]
    points = [tuple(map(float, pair.split(","))) for pair in area.attrib["points"].split()]
    baseline = points[0][1]
    heights = [baseline - y for _, y in points]
    assert heights == pytest.approx([0, 22, 22, 0, 0, 0], abs=0.05)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_inside_the_range_and_evenly_spaced(low: float, span: float, about: int) -> None:
    axis = Axis(low, low + span, 0, 100)
    ticks = axis.ticks(about)
    slack = span * 1e-6 + abs(low) * 1e-6
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert len(ticks) <= about + 2
    assert ticks == sorted(ticks)


def test_axis_maps_ends_and_clamps() -> None:
    axis = Axis(10, 20, 100, 300)
    assert [axis(10), axis(15), axis(20), axis(5), axis(99)] == [100, 200, 300, 100, 300]
    assert axis.ticks(5) == [10, 12, 14, 16, 18, 20]


def test_padded_range_of_equal_values_is_not_empty() -> None:
    low, high = padded_range([2.0, 2.0])
    assert low < 2.0 < high
    low, high = padded_range([0.0])
    assert low < 0.0 < high


def test_long_names_are_cut_with_an_ellipsis() -> None:
    assert shorten("short", 100) == "short"
    cut = shorten("a very long name of a building", 100)
    assert cut.endswith("…")
    assert len(cut) < 15


def test_each_variant_is_drawn_in_its_own_network(tmp_path: Path) -> None:
    folder = SyntheticRun().write(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    wider = copy.deepcopy(manifest["fabric"])
    wider["wan"][0]["a_to_b"]["rate_bps"] *= 2
    manifest["fabrics"] = {"hierarchical": wider}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    data = load_run(folder)
    ring, hierarchical = (str(topology_drawing(data, variant)) for variant in data.variants)
    assert "571.4 Gbit/s" not in ring
    assert "571.4 Gbit/s" in hierarchical


def test_use_along_a_run_is_of_the_rate_that_each_variant_has() -> None:
    rates = LinkRates([(0.5, 1.0, 100.0), (1.8, 2.0, 100.0), (3.4, 4.0, 800.0)])
    assert [rates.at(time_s) for time_s in (0.0, 1.5, 2.6, 2.8, 4.0, 9.0)] == [100.0] * 3 + [800.0] * 3
    assert rates.text() == "100 bit/s to 800 bit/s"
    counters = LinkCounters([0.0, 1.0, 3.0, 4.0], [0.0, 10.0, 10.0, 60.0])
    assert utilisation_between(counters, rates) == [(0.0, 1.0, 0.8), (1.0, 3.0, 0.0), (3.0, 4.0, 0.5)]
    assert LinkRates([(0.0, 1.0, 8.0), (1.1, 2.0, 0.0)]).text() == "8 bit/s"
    assert LinkRates([]).at(1.0) == 0.0
