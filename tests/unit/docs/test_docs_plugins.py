"""What the pages on plug-ins write, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import testbed
from testbed.cli.main import app
from testbed.comm.collectives.plan_check import WrongPlan
from testbed.contrib.conformance import check_algorithm

PAGES = Path(__file__).parents[3] / "docs/how-to/plugins"


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
    exec(compile(check, "docs/how-to/plugins/schedules.md", "exec"), {})
    exec(compile(declared, "docs/how-to/plugins/schedules.md", "exec"), {})


def test_the_workload_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, check = blocks("workloads.md", "python")
    (tmp_path / "server.py").write_text(made)
    (tmp_path / "server.yaml").write_text(blocks("workloads.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    exec(compile(check, "docs/how-to/plugins/workloads.md", "exec"), {})
    ran = CliRunner().invoke(app, ["plan", "server.yaml"])
    assert ran.exit_code == 0
    assert "push between buildings" in " ".join(ran.output.split())
    assert "alive" not in ran.output


def test_the_algorithm_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, predicts, check, halo = blocks("algorithms.md", "python")
    (tmp_path / "leaders.py").write_text(made)
    (tmp_path / "halo.py").write_text(halo)
    (tmp_path / "leaders.yaml").write_text(blocks("algorithms.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(predicts, "docs/how-to/plugins/algorithms.md", "exec"), {})
    exec(compile(check, "docs/how-to/plugins/algorithms.md", "exec"), {})
    check_algorithm("direct", f"{tmp_path}/halo.py:HALO", sizes=(1, 2, 3, 5))
    for collective, algorithm in (("all_reduce", "leaders.py:leaders"), ("halo.py:HALO", "auto")):
        options = ["--algorithm", algorithm, "-b", "4K", "-e", "4K", "-n", "1", "-w", "0"]
        ran = CliRunner().invoke(app, ["bench", collective, *options])
        assert ran.exit_code == 0, ran.output
        assert "wrong elements: 0" in ran.output


def test_a_wrong_algorithm_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = blocks("algorithms.md", "python")[0].replace('Round("down", sends=below)', 'Round("down")')
    (tmp_path / "leaders.py").write_text(deaf)
    (tmp_path / "leaders.yaml").write_text(blocks("algorithms.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    message = r"algorithm leaders of all_reduce, .*waits forever for rank 0, .*leaders.py, line \d+\)"
    with pytest.raises(WrongPlan, match=message):
        testbed.predict("leaders.yaml")
    ran = CliRunner().invoke(app, ["bench", "all_reduce", "--algorithm", "leaders.py:leaders"])
    assert isinstance(ran.exception, WrongPlan)
