"""What the pages on plug-ins write, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app

PAGES = Path(__file__).parents[2] / "docs" / "plugins"


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_schedule_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, check, declared = blocks("schedules.md", "python")
    (tmp_path / "eager.py").write_text(made)
    (tmp_path / "eager.yaml").write_text(blocks("schedules.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    exec(compile(check, "docs/plugins/schedules.md", "exec"), {})
    exec(compile(declared, "docs/plugins/schedules.md", "exec"), {})


def test_the_workload_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, check = blocks("workloads.md", "python")
    (tmp_path / "server.py").write_text(made)
    (tmp_path / "server.yaml").write_text(blocks("workloads.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    exec(compile(check, "docs/plugins/workloads.md", "exec"), {})
    ran = CliRunner().invoke(app, ["plan", "server.yaml"])
    assert ran.exit_code == 0
    assert "push between buildings" in " ".join(ran.output.split())
    assert "alive" not in ran.output
