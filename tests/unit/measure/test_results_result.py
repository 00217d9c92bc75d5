"""A run's figures, typed: what is written is read back, and what is otherwise is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyarrow import parquet, types

import testbed
from testbed.errors import BadInput
from testbed.measure.reference_docs import collect_models, render_page
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.notebook_views import OPERATIONS, READINGS, STEPS
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import BadResult
from tests.unit.show.report_run import GRADIENT_BYTES, SyntheticRun


def test_a_result_goes_to_its_file_and_back_unchanged(tmp_path: Path) -> None:
    run = SyntheticRun(statuses={"ring": "caution"}).write(tmp_path / "run")
    result = Result.open(run)
    assert result.document() == json.loads((run / "summary.json").read_text())
    ring = result.variant("ring")
    assert (ring.verdict.status, [entry.name for entry in ring.verdict.failed]) == (
        "caution",
        ["cpu_headroom"],
    )
    assert ring.training is None
    assert "training" not in result.document()["variants"][0]


def test_frames_hold_what_the_files_do_in_real_units(tmp_path: Path) -> None:
    run = SyntheticRun(trials=3)
    result = Result.open(str(run.write(tmp_path / "run")))  # as people type it
    steps = result.steps()
    assert list(steps.columns) == list(STEPS)
    assert steps.groupby("variant").step_time_s.median().to_dict() == {
        variant.name: variant.step_time_s.median for variant in result.variants
    }
    operations = result.operations()
    assert list(operations.columns) == list(OPERATIONS)
    assert len(operations) == sum(1 for _ in (tmp_path / "run/samples.jsonl").open())
    reduced = operations[(operations.operation == "all_reduce") & (operations["rank"] == 0)]
    for _, sizes in reduced.groupby(["variant", "trial"]).size_bytes:
        assert sizes.sum() == pytest.approx(GRADIENT_BYTES, rel=1e-3)
    links = result.links()
    assert list(links.columns) == list(READINGS)
    sent = links.groupby(["source", "target", "plane"]).bytes.max()
    carried = sum(share / 2 * GRADIENT_BYTES * 1.008 * run.trials for share in run.wan_share.values())
    assert sent.sum() == pytest.approx(carried * (1 + 0.97), rel=0.01)


def test_frames_as_parquet_have_the_documented_columns_and_every_row(tmp_path: Path) -> None:
    result = Result.open(SyntheticRun(trials=2).write(tmp_path / "run"))
    tables = {}
    for name, columns in (("steps", STEPS), ("operations", OPERATIONS), ("links", READINGS)):
        frame = getattr(result, name)()
        frame.to_parquet(tmp_path / f"{name}.parquet")
        tables[name] = table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table.column_names == list(columns)
        assert table.to_pylist() == frame.to_dict("records")
    # a column of nothing or of bytes would be one that other programs cannot use
    for table in tables.values():
        text = {
            field.name
            for field in table.schema
            if types.is_string(field.type) or types.is_large_string(field.type)
        }
        figures = {
            field.name for field in table.schema if types.is_int64(field.type) or types.is_float64(field.type)
        }
        assert text | figures == set(table.column_names)
        assert {name for name in table.column_names if name.endswith("_s")} <= figures
    assert len(tables["operations"]) == sum(1 for _ in (tmp_path / "run/samples.jsonl").open())


@pytest.mark.parametrize(
    ("name", "variant", "shown"),
    [
        ("step_times", None, "hierarchical"),
        ("time_split", None, "hierarchical"),
        ("utilisation", None, "plane 0"),
        ("utilisation_over_time", None, "peak"),
        ("network", "hierarchical", "coloured by use in hierarchical"),
        ("timeline", "ring", "rank 0"),
    ],
)
def test_a_figure_is_an_svg_document_of_its_own(
    tmp_path: Path, name: str, variant: str | None, shown: str
) -> None:
    figure = testbed.Result.open(SyntheticRun().write(tmp_path / "run")).figure(name, variant)
    root = ElementTree.fromstring(figure.save(tmp_path / "figure.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    said = " ".join([*root.itertext(), root.get("aria-label", "")])
    assert shown in said
    drawn = {css for node in root.iter() for css in node.get("class", "").split()}
    assert drawn, "a drawing without marks"
    assert '[class^="op-"]' in (root[0].text or "")  # operations without a colour of their own
    # a mark whose class the document says nothing of would be black, or not there
    assert {css for css in drawn if css.startswith(("series-", "load-"))} <= set(
        re.findall(r"[.]([\w-]+)", root[0].text or "")
    )


def test_a_figure_that_is_none_is_named(tmp_path: Path) -> None:
    result = testbed.Result.open(SyntheticRun().write(tmp_path / "run"))
    with pytest.raises(
        BadInput, match=r"panel: got 'pie', expected FILE\.py:NAME or one of step_times, time_split"
    ):
        result.figure("pie")
    with pytest.raises(BadInput, match="variant: got 'ring', expected none: step_times is of all variants"):
        result.figure("step_times", "ring")


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    with (run / "links.jsonl").open("a") as file:
        file.write('{"time_s": 1}\n')
    with pytest.raises(BadResult, match=r"links\.jsonl:\d+: not a link counter"):
        Result.open(run).links()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clock": "wall"}, "summary.json: clock: got 'wall', expected what this version of testbed writes"),
        ({"status": None}, "summary.json: status: got None"),
        ({"more": 1}, "summary.json: more: got 1"),
        ({"schema": 7}, "summary.json: schema: got 7"),
    ],
)
def test_what_is_not_a_result_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    document = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(BadResult) as raised:
        Result.open(run)
    assert said in str(raised.value)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    document = json.loads((run / "summary.json").read_text())
    del document["variants"][1]["limited_by"]
    (run / "summary.json").write_text(json.dumps(document))
    with pytest.raises(BadResult, match=r"variants\.1\.limited_by: got nothing"):
        Result.open(run)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadResult, match=r"summary\.json: No such file.* a folder that `testbed run` made"):
        Result.open(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(BadResult, match="expected JSON"):
        Result.open(tmp_path)


def test_the_page_on_results_is_current() -> None:
    document = Path(__file__).parents[3] / "docs/reference/results.md"
    said = "run: python -m testbed.measure.reference_docs > docs/reference/results.md"
    assert document.read_text(encoding="utf-8") == render_page(), said


def test_the_page_on_results_has_the_manifest_once() -> None:
    tables = render_page().split("\n## ")
    (manifest,) = (table for table in tables if table.startswith("Manifest\n"))
    for name, field in Manifest.model_fields.items():
        assert f"| `{field.alias or name}` |" in manifest
    assert "[ScaleRecord](#scalerecord)" in manifest
    assert "| `versions` | text, or null, by name |" in manifest
    assert "typing." not in render_page()
    headings = [table.splitlines()[0] for table in tables]
    assert len(set(headings)) == len(headings)
    assert "ClockRecord" in headings


def test_every_model_says_what_it_is() -> None:
    for model in (*collect_models(Result), *collect_models(Manifest)):
        assert model.__doc__
        assert len(model.__doc__) > 20
