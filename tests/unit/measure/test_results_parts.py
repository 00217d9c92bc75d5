"""Parts of a run that outlive an interruption, and what their name depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.execution import identity
from testbed.measure.execution.identity import record_key
from testbed.measure.results.run_directory import RunDirectory
from testbed.measure.results.unfinished_run import FINISHED, LOCK, ShardFolders


def shard(parts: ShardFolders, number: int, finished: bool) -> None:
    folder = parts.folder / str(number)
    folder.mkdir()
    (folder / "samples.jsonl").write_text("measured\n")
    if finished:
        (folder / FINISHED).write_text("{}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_finished_parts_are_kept_beside_the_run_and_found_again_whatever_it_is_called(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    parts = ShardFolders(directory, "abc")
    shard(parts, 0, finished=True)
    shard(parts, 1, finished=False)
    assert parts.stop() == 1
    directory.discard()
    assert names(tmp_path) == [".parts"]
    assert names(tmp_path / ".parts/abc") == ["0", LOCK]

    assert ShardFolders(RunDirectory(tmp_path / "other"), "def").finished == set()
    again = ShardFolders(RunDirectory(tmp_path / "again"), "abc")
    assert again.finished == {0}
    shard(again, 1, finished=True)
    again.remove()
    assert names(tmp_path / ".parts") == ["def"]


def test_what_a_killed_run_left_unfinished_is_measured_anew(tmp_path: Path) -> None:
    killed = ShardFolders(RunDirectory(tmp_path / "run"), "abc")
    shard(killed, 0, finished=False)
    shard(killed, 1, finished=True)
    killed._unlock()  # as the kernel does
    parts = ShardFolders(RunDirectory(tmp_path / "run"), "abc")
    assert parts.finished == {1}
    assert not (parts.folder / "0").exists()


def test_nothing_is_kept_where_nothing_is_finished_or_would_not_be_the_same(tmp_path: Path) -> None:
    parts = ShardFolders(RunDirectory(tmp_path / "run"), "abc")
    shard(parts, 0, finished=False)
    assert parts.stop() == 0
    assert names(tmp_path) == ["run.partial"]
    real = ShardFolders(RunDirectory(tmp_path / "real"), None)
    shard(real, 0, finished=True)
    assert real.stop() == 0
    assert not real.folder.exists()


def test_the_same_command_beside_it_keeps_its_own_parts_apart(tmp_path: Path) -> None:
    first = ShardFolders(RunDirectory(tmp_path / "first"), "abc")
    second = ShardFolders(RunDirectory(tmp_path / "second"), "abc")
    assert first.outlive
    assert not second.outlive
    assert second.folder == tmp_path / "second.partial/shards"
    shard(second, 0, finished=True)
    assert second.stop() == 0
    assert first.folder.exists()


def test_where_parts_may_not_be_kept_a_run_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / ".parts").write_text("")  # as one that another user made, which stops root too
    directory = RunDirectory(tmp_path / "run")
    parts = ShardFolders(directory, "abc")
    assert not parts.outlive
    assert parts.folder.is_relative_to(directory.partial)


def test_the_name_changes_with_all_that_a_record_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "mine.py"
    own.write_text("one")
    scenario = f"workload:\n  plan: {own}:job\n"
    known = record_key(scenario, ["6.1"])
    assert record_key(scenario, ["6.1"]) == known
    assert record_key(scenario + "seed: 2\n", ["6.1"]) != known
    assert record_key(scenario, ["7.3"]) != known
    own.write_text("two")
    assert record_key(scenario, ["6.1"]) != known
    own.write_text("one")
    code = tmp_path / "code"
    code.mkdir()
    (code / "module.py").write_text("pass")
    monkeypatch.setattr(identity, "_PACKAGE", code)
    other = record_key(scenario, ["6.1"])
    (code / "module.py").write_text("pass  # changed")
    assert record_key(scenario, ["6.1"]) != other


@pytest.mark.parametrize("name", ["module.py", "engine.c", "fluid.h"])
def test_keys_of_records_and_workers_change_with_every_source(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_PACKAGE", tmp_path)
    found = []
    for text in ("one", "two"):
        (tmp_path / name).write_text(text)
        identity._code.cache_clear()
        found.append((record_key("", []), identity.worker_identity()["testbed"]))
    identity._code.cache_clear()
    (record, worker), (other_record, other_worker) = found
    assert record != other_record
    assert worker != other_worker
