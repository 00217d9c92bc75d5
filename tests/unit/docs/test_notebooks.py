"""What notebooks show of results: tables by Jupyter's own hook, and a notebook of the documentation carried out."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

import testbed
from testbed.notebooks import html_table
from testbed.prediction.search import Configuration, Evaluation, Exploration
from testbed.prediction.search.exploration import RankedConfiguration
from testbed.prediction.step_prediction import Prediction, Predictions
from testbed.show.report import write_report
from tests.unit.show.report_run import SyntheticRun

NOTEBOOK = Path(__file__).parents[3] / "docs/tutorials/a-look.ipynb"


def table_of(html: str) -> tuple[list[str], list[list[str]]]:
    """Paragraphs, and the cells of each row; HTML that is not well-formed fails."""
    found = ET.fromstring(f"<page>{html}</page>")
    rows = [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]
    return ["".join(paragraph.itertext()) for paragraph in found.iter("p")], rows


def test_names_of_somebodys_own_are_text() -> None:
    paragraphs, rows = table_of(html_table(("a<b", "n"), [["<script>x</script>", "1 & 2"]], ["x < y"]))
    assert rows == [["a<b", "n"], ["<script>x</script>", "1 & 2"]]
    assert paragraphs == ["x < y"]


def test_a_result_shows_verdicts_figures_and_why(tmp_path: Path) -> None:
    run = SyntheticRun(trials=3, statuses={"hierarchical": "untrusted"})
    result = testbed.Result.open(run.write(tmp_path / "run"))
    html = result._repr_html_()
    text, _, image = html.partition("<img")
    paragraphs, rows = table_of(text)
    assert paragraphs[0] == "quickstart: untrusted, by the real clock"
    assert [row[:2] for row in rows[1:]] == [["ring", "trusted"], ["hierarchical", "untrusted"]]
    assert rows[0][2] == "step time"
    assert all(row[2].endswith(" s") and row[5] == "3" for row in rows[1:])
    assert "ring is limited by" in paragraphs[1]
    for entry in result.variant("hierarchical").verdict.failed:
        assert f"hierarchical, {entry.name}: {entry.sentence}" in paragraphs
    assert "data:image/svg+xml;base64," in image


def test_a_result_whose_folder_is_gone_shows_its_figures(tmp_path: Path) -> None:
    folder = SyntheticRun(trials=2).write(tmp_path / "run")
    result = testbed.Result.open(folder)
    (folder / "samples.jsonl").unlink()
    html = result._repr_html_()
    assert "<img" not in html
    assert "hierarchical" in html


def test_predictions_are_held_against_the_first() -> None:
    slow = Prediction(2.0, 4_000_000_000, ("events",))
    shown = Predictions({"ring": slow, "tree": Prediction(1.0, 1_000_000)})
    paragraphs, rows = table_of(shown._repr_html_())
    assert rows[1:] == [["ring", "2 s", "1.00x", "4 GB"], ["tree", "1 s", "2.00x", "1 MB"]]
    assert paragraphs == ["Not in these figures, as the model does not know it: events."]
    assert table_of(slow._repr_html_())[1][1] == ["", "2 s", "1.00x", "4 GB"]


def test_an_exploration_names_the_best_first() -> None:
    def found(policy: str, step_s: float) -> RankedConfiguration:
        return RankedConfiguration(Configuration({"policy": policy}), Evaluation(step_s, step_s, 10, None))

    quick, slow = found("te", 1.0), found("ecmp", 1.5)
    baseline = replace(slow, name="today", kind="baseline")
    exploration = Exploration(6, 2, [quick, slow], [baseline], [], None, {}, {})
    paragraphs, rows = table_of(exploration._repr_html_())
    assert paragraphs == [
        "The best, by the model: policy te. 1 s a step.",
        "2 tried of 6 combinations, of which 2 fit.",
    ]
    assert [(row[0], row[3]) for row in rows[1:]] == [
        ("best 1", "1.00x"),
        ("today", "1.50x"),
        ("best 2", "1.50x"),
    ]


@pytest.mark.thorough
def test_the_notebook_of_the_documentation(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    write_report(SyntheticRun(trials=2).write(tmp_path / "runs" / "quickstart-1"))
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    kernel = client.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    kernel.execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert len(shown) == 4  # twice predictions, an exploration, a result
    assert "hierarchical" in shown[0]
    assert "The best, by the model" in shown[2]
    assert "<img" in shown[3]
