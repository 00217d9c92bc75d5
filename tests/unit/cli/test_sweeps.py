"""Sweeps: axes from text, which points are confirmed, intervals, what is told, what a folder holds, going on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import testbed
from testbed.cli.experiments import sweep
from testbed.cli.experiments.confirmation import points_to_confirm
from testbed.cli.main import app
from testbed.measure.execution.progress import Progress
from testbed.measure.results.committed_work import Work
from testbed.measure.results.run_directory import BadResult
from testbed.measure.results.summary import median_interval
from testbed.measure.results.sweep_result import COLUMNS, Measured, Sweep, SweepAxis, SweepFigure, SweepPoint
from testbed.show.report.sweep import missing_libraries, write_sweep
from testbed.show.report.sweep_findings import caption, describe_sweep
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.sweep_axes import Axis, axes_from_mapping, grid_points, parse_axes, parse_axis
from tests.unit.show.report_run import measured_variant

BARE: dict[str, Any] = {
    "name": "small",
    "topology": {
        "name": "pair",
        # queues that never overflow: else which variant is quicker would be a matter of chance
        "buildings": {
            name: {"hosts": 2, "nic": {"rate": "100 Gbit/s", "queue": "1 GB"}} for name in ("east", "west")
        },
        "wan": [
            {"a": "east", "b": "west", "planes": 2, "rate": "100 Gbit/s", "delay": "1 ms", "queue": "1 GB"}
        ],
    },
    "workload": {"collectives": [{"collective": "all_reduce", "size": "1 GB"}]},
    "scale": {"size_scale": 100},
    "trials": 1,
}
SCENARIO = {
    **BARE,
    "variants": {name: {"workload.collectives.0.algorithm": name} for name in ("ring", "hierarchical")},
}


def listener() -> Progress:
    return Progress()


def swept(folder: Path, *axes: str, told: list[str] | None = None, **more: Any) -> Sweep:
    request = sweep.SweepRequest(SCENARIO, (), parse_axes(axes), folder, **more)
    say = (
        (lambda done, total, words: told.append(f"{done}/{total}")) if told is not None else (lambda *_: None)
    )
    return sweep.sweep(sweep.plan_sweep(request), say, listener())


def test_a_range_has_values_that_one_would_write_and_both_its_ends() -> None:
    axis = parse_axis("topology.wan.0.delay=1ms..80ms:log:8")
    assert axis.texts == tuple(
        f"{ms} ms" for ms in ("1", "1.87", "3.5", "6.54", "12.2", "22.9", "42.8", "80")
    )
    assert axis.values == axis.texts
    assert axis.numbers == (1.0, 1.87, 3.5, 6.54, 12.2, 22.9, 42.8, 80.0)
    assert (axis.log, axis.unit, axis.label) == (True, "ms", "WAN delay (ms)")
    assert axis.override(2) == 'topology.wan.0.delay="3.5 ms"'


@pytest.mark.parametrize(
    ("given", "texts", "numbers"),
    [
        ("ranks=2..8", "2 3 4 5 6 7 8", (2, 3, 4, 5, 6, 7, 8)),
        ("ranks=1..64:log:7", "1 2 4 8 16 32 64", (1, 2, 4, 8, 16, 32, 64)),
        ("x.loss=0%..1%:3", "0 %|0.5 %|1 %", (0, 0.5, 1)),
        ("a.size=1KiB..1MiB:log:3", "1 KiB|32 KiB|1 MiB", (1, 32, 1024)),
        ("a.size=3 B..10 B:4", "3 B|5 B|8 B|10 B", (3, 5, 8, 10)),
        ("wan.delay=10km..1000km:lin:3", "10 km|505 km|1000 km", (10, 505, 1000)),
        ("wan.delay=5 ms,100 us,1ms", "100 us|1 ms|5 ms", (0.1, 1, 5)),
        ("x.trials=8,2", "2 8", (2, 8)),
    ],
)
def test_ranges_and_lists_of_quantities(given: str, texts: str, numbers: Sequence[float]) -> None:
    axis = parse_axis(given)
    assert list(axis.texts) == (texts.split("|") if "|" in texts else texts.split())
    assert axis.numbers == pytest.approx(tuple(numbers))


def test_words_lists_in_brackets_and_mappings_are_values_each() -> None:
    assert parse_axis("policy=ecmp,te").numbers is None
    assert parse_axis("algorithms=[ring, hierarchical],[ring]").values == (["ring", "hierarchical"], ["ring"])
    assert parse_axis("algorithms=[ring, hierarchical],[ring]").texts == ("ring + hierarchical", "ring")
    assert parse_axis("policy={name: te, paths: 2},ecmp").values == ({"name": "te", "paths": 2}, "ecmp")
    assert axes_from_mapping({"trials": [1, 3], "policy": "ecmp,te"})[0].values == (1, 3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("policy",), "KEY=A,B,C or KEY=FIRST..LAST"),
        (("a.delay=1ms..80ms",), "a count of at least two, such as 1ms..80ms:log:8"),
        (("a.delay=1ms..80GB:3",), "two ends of one kind"),
        (("a.delay=9ms..1ms:3",), "a first value below the last"),
        (("a.loss=0%..1%:log:3",), "above 0"),
        (("policy=te,te",), "each value once"),
        (("a.b=1,2", "a.b=3,4"), "two keys"),
        (("a=1", "b=1", "c=1"), "one or two"),
        (("a.b=[1",), "values in YAML"),
    ],
)
def test_what_is_no_axis_is_refused_with_what_would_be(given: Sequence[str], told: str) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        parse_axes(given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("count", "rank", "confidence"),
    [(1, 1, 0.0), (5, 1, 0.9375), (6, 1, 0.96875), (9, 2, 0.9609375), (20, 6, 0.9586)],
)
def test_the_interval_of_a_median_is_as_the_tables_of_order_statistics_have_it(
    count: int, rank: int, confidence: float
) -> None:
    low, high, sure = median_interval([float(number) for number in reversed(range(1, count + 1))])
    assert (low, high) == (rank, count + 1 - rank)
    assert sure == pytest.approx(confidence, abs=1e-4)


def made(axes: Sequence[Axis], steps: dict[str, Any], measured: Mapping[Any, str] | None = None) -> Sweep:
    """steps: by variant seconds of a place. measured: verdicts by place, of the same seconds."""
    points = []
    for place in grid_points(axes):
        figures = []
        for name, step in steps.items():
            status: Any = (measured or {}).get(place)
            step_s = step(*place)
            taken = Measured(
                median_s=step_s * 1.1,
                low_s=step_s,
                high_s=step_s * 1.2,
                confidence=0.9375,
                trials=5,
                status=status or "trusted",
                limited_by="x",
            )
            figures.append(
                SweepFigure(variant=name, predicted_s=step_s, wan_bytes=1, measured=taken if status else None)
            )
        points.append(
            SweepPoint(
                at=place, figures=tuple(figures), run="points/x" if place in (measured or {}) else None
            )
        )
    about = {"testbed": "1", "calibration": "none", "created": "2026-01-01T00:00:00+0000"}
    clock: Any = "virtual" if measured else "model"
    shown = tuple(map(SweepAxis.of, axes))
    return Sweep(scenario="small", axes=shown, points=tuple(points), clock=clock, made=about)


CROSSING = {"ring": lambda index: 1.0 + index, "tree": lambda index: 3.6}


def test_the_ends_and_both_sides_of_a_crossing_are_confirmed_first_then_the_widest_gaps() -> None:
    found = made([parse_axis("a.delay=1ms..9ms:9")], CROSSING)
    assert points_to_confirm(found.axes, found.points, 1) == [(0,)]
    assert points_to_confirm(found.axes, found.points, 4) == [(0,), (2,), (3,), (8,)]
    assert points_to_confirm(found.axes, found.points, 5) == [(0,), (2,), (3,), (5,), (8,)]
    assert len(points_to_confirm(found.axes, found.points, 100)) == 9
    two = made(
        [parse_axis("a.delay=1ms..4ms:4"), parse_axis("b.rate=1Gbit/s..3Gbit/s:3")],
        {"ring": lambda a, b: a + b},
    )
    assert points_to_confirm(two.axes, two.points, 4) == [(0, 0), (0, 2), (3, 0), (3, 2)]


def test_the_answer_says_who_is_the_quickest_where_and_how_sure_that_is() -> None:
    axes = [parse_axis("topology.wan.0.delay=1ms..9ms:9")]
    sentences = describe_sweep(made(axes, CROSSING))
    assert sentences[0] == "Ring is the quickest up to 3 ms; tree is the quickest from 4 ms on."
    assert sentences[1] == "They are farthest apart at 1 ms: ring is 3.60x as fast as tree."
    assert (
        sentences[2]
        == "Ring takes 1 s at 1 ms, 9 s at 9 ms (9.00x); tree takes 3.6 s at 1 ms, 3.6 s at 9 ms (1.00x)."
    )
    assert sentences[-1].startswith("By the model alone")
    some = made(axes, CROSSING, {(0,): "trusted", (8,): "caution"})
    assert describe_sweep(some)[-1] == (
        "Measured under the virtual clock at 2 of 9 points: caution; the model was 9.1 % off in the median, "
        "9.1 % at the worst."
    )
    assert "median of 5 trials, measured under the virtual clock, with its 94 % interval" in caption(some)
    assert caption(some).endswith("verdict: caution. testbed 1, 2026-01-01.")


def test_measured_and_predicted_steps_are_not_held_against_each_other() -> None:
    """Only one line was measured at one end, and took longer than the model says: it is not slower for that."""
    found = made(
        [parse_axis("a.delay=1ms..2ms:2"), parse_axis("policy=ecmp,te")],
        {"ring": lambda *at: 1.0},
        {(0, 0): "trusted"},
    )
    assert describe_sweep(found)[0] == "Ecmp and te are the quickest at every delay from 1 ms to 2 ms."


def test_what_the_model_cannot_tell_apart_is_equally_quick() -> None:
    """It was 9.1 % off where packets were sent: a difference of 5 % between its own figures says nothing."""
    near = {"ring": lambda index: 1.0, "tree": lambda index: 1.05}
    axes = [parse_axis("a.delay=1ms..4ms:4")]
    assert describe_sweep(made(axes, near))[0] == "Ring is the quickest at every delay from 1 ms to 4 ms."
    sentences = describe_sweep(made(axes, near, {(0,): "trusted"}))
    assert sentences[0] == "Ring is the quickest at 1 ms; ring and tree are the quickest from 2 ms on."


def test_what_is_untrusted_is_the_quickest_of_nothing() -> None:
    verdicts = {(0,): "untrusted", (1,): "untrusted"}
    sentences = describe_sweep(made([parse_axis("a.delay=1ms..2ms:2")], CROSSING, verdicts))
    assert sentences[0] == "No step time of this sweep can be used."
    assert sentences[-1] == "Measured under the virtual clock at all 2 points: untrusted."


def test_a_sweep_by_the_model_leaves_a_folder_with_all_of_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "out"
    found = swept(folder, "topology.wan.0.delay=1ms..40ms:log:3", "policy=ecmp,te")
    assert [point.at for point in found.points] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert found.variants == ("ring", "hierarchical")
    for point in found.points:
        values = [
            f"{axis.path}={axis.texts[index]}" for axis, index in zip(found.axes, point.at, strict=True)
        ]
        alone = testbed.predict(load_scenario(SCENARIO, values))
        assert {one.variant: one.predicted_s for one in point.figures} == {
            name: one.step_time_s for name, one in alone.items()
        }
    assert Sweep.open(folder) == found
    table = pandas.read_csv(folder / "points.csv")
    assert list(table.columns[:3]) == ["topology.wan.0.delay", "policy", "variant"]
    assert len(table) == 12
    assert set(table["clock"]) == {"model"}
    assert list(table["step_time_s"]) == [one.predicted_s for point in found.points for one in point.figures]
    assert len(pandas.read_parquet(folder / "points.parquet")) == 12
    page = (folder / "sweep.html").read_text()
    assert describe_sweep(found)[0] in page
    assert "<svg" in page
    assert "<script" not in page


def test_a_sweep_goes_on_asks_nothing_twice_and_refuses_what_is_another(tmp_path: Path) -> None:
    folder, told = tmp_path / "out", list[str]()
    swept(folder, "policy=ecmp,te", told=told)
    assert told == ["0/2", "1/2", "2/2"]
    lines = folder / "predicted.jsonl"
    lines.write_text(lines.read_text()[:-20])  # killed while it wrote the second
    told.clear()
    wider = swept(folder, "policy=ecmp,te,spray", told=told)
    assert told == ["0/2", "1/2", "2/2"]
    assert len(wider.points) == 3
    other = {**SCENARIO, "seed": 7}
    request = sweep.SweepRequest(other, (), parse_axes(["policy=ecmp,te"]), folder)
    with pytest.raises(ConfigError, match="holds something else"):
        sweep.sweep(sweep.plan_sweep(request), lambda *_: None, listener())


def test_points_that_do_not_fit_stay_and_say_why(tmp_path: Path) -> None:
    found = swept(tmp_path / "out", "ranks=3..5")
    assert [point.misfit is None for point in found.points] == [True, True, False]
    assert "ranks" in str(found.points[2].misfit)
    assert any("1 point does not fit" in sentence for sentence in describe_sweep(found))
    assert "does not fit" in (tmp_path / "out" / "sweep.html").read_text()
    with pytest.raises(ConfigError, match="tplogy"):
        swept(tmp_path / "none", "tplogy=1,2")
    assert not (tmp_path / "none").exists()


def test_a_path_that_variants_set_is_no_axis(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a path that variants set"):
        swept(tmp_path / "out", "workload.collectives.0.algorithm=ring,hierarchical")


def test_a_scalar_goes_into_a_list_where_the_scenario_has_one(tmp_path: Path) -> None:
    request = sweep.SweepRequest(BARE, (), parse_axes(["algorithms=ring,hierarchical"]), tmp_path / "out")
    scenarios = list(sweep.plan_sweep(request).scenarios.values())
    assert [one.algorithms for one in scenarios if isinstance(one, Scenario)] == [
        ("ring",),
        ("hierarchical",),
    ]


def test_chosen_points_are_measured_each_once_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def measured(scenario: Scenario, file: Path, folder: Path, clock: str, *rest: object) -> Any:
        if not folder.exists():
            runs.append(folder.name)
            folder.mkdir(parents=True)
        variants = [
            measured_variant(name, 1.0, 2.0, 3.0, status="caution", limited_by="the WAN")
            for name in scenario.variant_names
        ]
        return type("R", (), {"variants": variants})

    monkeypatch.setattr(sweep, "run_or_reopen", measured)
    monkeypatch.setattr(sweep, "check_here", lambda *_: None)
    folder, axis = tmp_path / "out", "topology.wan.0.delay=1ms..5ms:5"
    found = swept(folder, axis, clock="virtual", confirm=2)
    assert runs == ["delay-1-ms", "delay-5-ms"]
    assert [point.run for point in found.points] == [
        "points/delay-1-ms",
        None,
        None,
        None,
        "points/delay-5-ms",
    ]
    first = found.points[0].figures[0].measured
    assert first is not None
    assert (first.median_s, first.low_s, first.high_s, first.status) == (2.0, 1.0, 3.0, "caution")
    swept(folder, axis, clock="virtual", confirm=3)
    assert runs == ["delay-1-ms", "delay-5-ms", "delay-3-ms"]
    again = swept(folder, axis)  # by the model: what was measured stays
    assert (again.clock, again.status, sum(point.run is not None for point in again.points)) == (
        "virtual",
        "caution",
        3,
    )
    assert len(runs) == 3


def test_the_figure_for_a_paper_is_drawn_alike_each_time_with_its_units_and_caption(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    axes = [parse_axis("topology.wan.0.delay=1ms..9ms:9")]
    measured = {(0,): "trusted", (8,): "trusted"}
    kept = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_sweep(made(axes, CROSSING, measured).at(tmp_path / name))
        kept.append((tmp_path / name / "sweep.svg").read_text())
        assert (tmp_path / name / "sweep.pdf").read_bytes().startswith(b"%PDF")
    assert kept[0] == kept[1]
    for words in ("WAN delay (ms)", "step time (s)", "ring", "tree"):
        assert f">{words}<" in kept[0], words
    assert "verdict: trusted" in (tmp_path / "one" / "sweep.tex").read_text()
    maps = [
        parse_axis("topology.wan.0.delay=1ms..9ms:3"),
        parse_axis("topology.wan.0.rate=1Gbit/s..3Gbit/s:3"),
    ]
    write_sweep(made(maps, {"ring": lambda a, b: 1.0 + a * b}, {(0, 0): "untrusted"}).at(tmp_path / "one"))
    assert "WAN rate" in (tmp_path / "one" / "sweep.svg").read_text()


def test_the_command_prints_a_row_per_value_and_names_its_files(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SCENARIO))
    command = ["sweep", str(file), "topology.wan.0.delay=1ms,5ms", "-o", str(tmp_path / "out"), "--jobs", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "WAN delay (ms)" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line.strip()[:1].isdigit()] == ["1", "5"]
    assert str(tmp_path / "out" / "sweep.html") in done.stderr
    assert [words for words in missing_libraries() if words not in done.stderr] == []
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document["points"][0]["figures"][0]["variant"] == "ring"


def test_python_has_the_same_sweep(tmp_path: Path) -> None:
    found = testbed.sweep(SCENARIO, {"policy": ["ecmp", "te"]}, output=tmp_path / "out")
    assert [axis.texts for axis in found.axes] == [("ecmp", "te")]
    assert len(found.frame()) == 4
    with pytest.raises(BadResult, match="none"):
        Sweep.open(tmp_path / "none")


def test_several_values_where_one_is_taken_name_the_sweep_and_become_a_list_where_several_are(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scenario(SCENARIO, ["topology.wan.0.delay=1 ms,5 ms"])
    assert str(caught.value) == (
        "--set: topology.wan.0.delay: got 2 values, '1 ms,5 ms', expected one value; several are a sweep: "
        "testbed sweep SCENARIO 'topology.wan.0.delay=1 ms,5 ms'"
    )
    assert load_scenario(BARE, ["algorithms=ring,hierarchical"]).algorithms == ("ring", "hierarchical")


def test_the_page_has_every_column_with_its_meaning() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/sweep.md").read_text()
    for name, meaning in COLUMNS.items():
        assert f"| `{name}` | {meaning} |" in page, name


def test_a_folder_without_a_sweep_and_one_of_another_version_say_so(tmp_path: Path) -> None:
    with pytest.raises(BadResult, match=r"sweep\.json: No such file"):
        Sweep.open(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": 1}')
    with pytest.raises(BadResult, match=r"sweep\.json: scenario: got nothing, expected .*Field required"):
        Sweep.open(tmp_path)


def test_unequal_steps_are_held_against_each_other_by_their_tokens_and_others_not_at_all(
    tmp_path: Path,
) -> None:
    def told(
        workloads: Mapping[str, str], tokens: Mapping[str, int], seconds: Mapping[str, float]
    ) -> list[str]:
        axis = parse_axis(f"x.y={','.join(seconds)}")
        points = [
            SweepPoint(
                at=(index,),
                figures=(
                    SweepFigure(
                        variant="v",
                        predicted_s=seconds[text],
                        wan_bytes=0,
                        work=Work(
                            steps=1, elapsed_s=seconds[text], tokens=tokens[text], workload=workloads[text]
                        ),
                    ),
                ),
            )
            for index, text in enumerate(seconds)
        ]
        found = Sweep(
            scenario="s",
            axes=(SweepAxis.of(axis),),
            points=tuple(points),
            clock="model",
            made={"testbed": "1"},
        )
        return describe_sweep(found)

    alike = dict.fromkeys(("a", "b", "1", "4"), "a model")
    # 1000 tokens in 1 s, 4000 in 2 s
    assert told(alike, {"1": 1000, "4": 4000}, {"1": 1.0, "4": 2.0})[0] == (
        "A step takes 1 s at 1, 2 s at 4 (2.00x), for 1,000 and 2,000 tokens/s (2.00x)."
    )
    assert told(alike, {"a": 1000, "b": 4000}, {"a": 1.0, "b": 2.0})[:2] == [
        "b gets most done in the same time: 2,000 tokens/s.",
        "Behind it a 1,000 tokens/s (2.00x).",
    ]
    assert told({"a": "one", "b": "other"}, {"a": 1, "b": 1}, {"a": 1.0, "b": 2.0})[0] == (
        "A step takes 1 s with a, 2 s with b; they are different work, so not compared."
    )
    assert told({"1": "one", "4": "other"}, {"1": 1, "4": 1}, {"1": 1.0, "4": 2.0})[0] == (
        "A step takes 1 s at 1, 2 s at 4 (2.00x), for different work."
    )
