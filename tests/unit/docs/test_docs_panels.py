"""The panel that the documentation writes, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import testbed
from testbed.cli.main import app
from testbed.plugins import PluginError
from tests.unit.show.report_run import SyntheticRun

PAGE = Path(__file__).parents[3] / "docs/how-to/plugins/panels.md"


def test_a_panel_of_ones_own_is_drawn(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "slowest.py").write_text(code)
    result = testbed.Result.open(SyntheticRun().write(tmp_path / "run"))
    svg = result.figure(f"{tmp_path}/slowest.py:Slowest").svg
    assert svg.startswith("<svg")
    for variant in result.variants:
        assert f"{variant.name}: {variant.step_time_s.max:.3f} s" in svg
    own = f"{tmp_path}/slowest.py:Slowest"
    ran = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--panel", own])
    assert ran.exit_code == 0, ran.output
    page = (tmp_path / "run/report.html").read_text()
    assert "<h2>Slowest</h2>" in page
    assert f"{result.variants[0].name}: {result.variants[0].step_time_s.max:.3f} s" in page
    (tmp_path / "slowest.py").write_text(code.replace("['max']", "['most']"))
    with pytest.raises(PluginError, match=r"KeyError: 'most' \(.*slowest\.py, line \d+\)"):
        result.figure(f"{tmp_path}/slowest.py:Slowest")
