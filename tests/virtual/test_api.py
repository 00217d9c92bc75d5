"""The page on Python: its code, carried out as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/python.md"


@pytest.mark.timeout(300)
def test_the_code_on_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    result, predicted = names["result"], names["predicted"]
    assert result.status == "trusted"
    for variant in result.variants:
        assert variant.wan_bytes.observed == variant.wan_bytes.expected
        assert variant.step_time_s.median == pytest.approx(predicted[variant.name].step_time_s, rel=0.1)
    assert result == type(result).open(Path(result.run_dir))
    assert Path(result.run_dir, "report.html").exists()
    assert "hierarchical trusted" in capsys.readouterr().out
