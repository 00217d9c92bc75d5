"""What the pages on plug-ins write, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
