"""The page on Python and its notebook: their code, carried out as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE, NOTEBOOK = DOCS / "reference/python.md", DOCS / "tutorials/two-buildings.ipynb"


@pytest.mark.timeout(300)
def test_the_code_on_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if is_code(cell)]
    assert "".join("\n".join(cells).split()).startswith(
        "".join(code.split())
    )  # it goes on where the page ends
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{NOTEBOOK.name}, cell {number}", "exec"), names)
    result, predicted = names["result"], names["predicted"]
    assert result.status == "trusted"
    for variant in result.variants:
        assert variant.wan_bytes.observed == variant.wan_bytes.expected
        assert variant.step_time_s.median == pytest.approx(predicted[variant.name].step_time_s, rel=0.1)
        assert variant.predicted.step_time_s == pytest.approx(predicted[variant.name].step_time_s, rel=1e-9)
    assert result == type(result).open(Path(result.run_dir))
    assert Path(result.run_dir, "report.html").exists()
    assert "hierarchical trusted" in capsys.readouterr().out
    times = {variant.name: variant.step_time_s.median for variant in result.variants}
    assert names["steps"].set_index("variant").step_time_s.to_dict() == times
    for variant, took_s in names["took"].items():
        assert took_s.min() > 0
        assert took_s.max() <= times[variant]
    carried = names["links"].groupby(["source", "target"]).bytes.max()
    assert carried.sum() > sum(variant.wan_bytes.observed for variant in result.variants)


def is_code(cell: dict[str, Any]) -> bool:
    return bool(cell["cell_type"] == "code")
