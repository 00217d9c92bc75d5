"""A run's folder: whole or not at all, and one line where there cannot be one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.measure.results.run_directory import OWNER, NotWritable, RunDirectory, RunExists
from testbed.processes import process_start_ticks


def test_a_folder_has_its_name_when_all_is_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "deep/run")
    (directory.partial / "file").write_text("written")
    assert not (tmp_path / "deep/run").exists()
    directory.finish()
    assert (tmp_path / "deep/run/file").read_text() == "written"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run"]
    with pytest.raises(RunExists, match="exists already; choose another --output"):
        RunDirectory(tmp_path / "deep/run")


def test_where_nothing_can_be_written_the_line_names_the_folder_and_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    wanted = tmp_path / "file/run"
    with pytest.raises(NotWritable) as caught:
        RunDirectory(wanted)
    assert str(caught.value) == (
        f"{wanted}: cannot write there (Not a directory); choose another place with --output"
    )
    assert caught.value.status == 2


def test_what_somebody_else_writes_at_the_moment_is_refused_and_what_the_dead_left_is_written_anew(
    tmp_path: Path,
) -> None:
    first = RunDirectory(tmp_path / "run")
    parent = {"pid": os.getppid(), "started": process_start_ticks(os.getppid())}
    (first.partial / OWNER).write_text(json.dumps(parent))
    with pytest.raises(RunExists, match="another process is writing it"):
        RunDirectory(tmp_path / "run")
    (first.partial / OWNER).write_text(json.dumps({"pid": 1, "started": 0.5}))
    (first.partial / "half").touch()
    second = RunDirectory(tmp_path / "run")
    assert [path.name for path in second.partial.iterdir()] == [OWNER]
    second.finish()
    assert list((tmp_path / "run").iterdir()) == []
