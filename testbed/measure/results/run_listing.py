"""Listing and pruning of a results directory: runs, sweeps, searches, and leftovers of failed or killed runs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.measure.results.result import SUMMARY
from testbed.measure.results.run_directory import PARTIAL_SUFFIX, owner_alive
from testbed.measure.results.unfinished_run import FAILED_SUFFIX, KEPT, LOCK

Kind = Literal["run", "sweep", "search", "failed", "killed", "going on", "parts"]
MARKS: dict[str, Kind] = {SUMMARY: "run", "sweep.json": "sweep", "exploration.json": "search"}
LEFT: tuple[Kind, ...] = ("failed", "killed", "parts")  # without a result


@dataclass(frozen=True)
class Entry:
    """A directory with results or leftovers.

    `status` is a run's verdict, and empty for other kinds. `changed_s` is in seconds since 1970. `size_bytes` counts
    all files.
    """

    path: Path
    kind: Kind
    scenario: str
    status: str
    clock: str
    changed_s: float
    size_bytes: int


def list_entries(folder: Path) -> list[Entry]:
    """Return all results and leftovers in a directory, oldest first.

    Other directories are left out. The runs of a sweep or search are part of its entry.
    """
    return _sorted(_entry(path, kind) for path, kind in _kinds(folder))


def list_killed(folder: Path) -> list[Entry]:
    """Return the leftovers of killed runs, without reading the files of any other entry."""
    return _sorted(_entry(path, kind) for path, kind in _kinds(folder) if kind == "killed")


def select_prunable(
    found: Sequence[Entry], now_s: float, *, keep: int | None, older_s: float | None, left: bool
) -> list[Entry]:
    """Select the entries to delete, but never an entry in progress.

    Args:
        found: All entries.
        now_s: The current time, in seconds since 1970.
        keep: Number of the newest results to keep.
        older_s: Minimum age of deleted entries, in seconds.
        left: Select only leftovers without a result.
    """
    if left:
        chosen = [entry for entry in found if entry.kind in LEFT]
    else:
        results = [entry for entry in found if entry.kind in MARKS.values()]
        newest = sorted(results, key=lambda entry: entry.changed_s, reverse=True)
        chosen = _sorted(newest[keep or 0 :])
    return [entry for entry in chosen if older_s is None or now_s - entry.changed_s >= older_s]


def remove(entry: Entry) -> None:
    """Delete the entry's directory."""
    shutil.rmtree(entry.path)


def _sorted(found: Iterable[Entry]) -> list[Entry]:
    return sorted(found, key=lambda entry: (entry.changed_s, entry.path))


def _kinds(folder: Path) -> Iterator[tuple[Path, Kind]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and (kind := _kind(path)):
            yield path, kind


def _entry(path: Path, kind: Kind) -> Entry:
    files = [file.stat() for file in _files(path)]
    changed_s = max((file.st_mtime for file in files), default=path.stat().st_mtime)
    scenario, status, clock = "" if kind == "parts" else path.name.split(".")[0], "", ""
    if mark := next((mark for mark, own in MARKS.items() if own == kind), None):
        try:
            document = json.loads((path / mark).read_text())
            scenario, status, clock = (
                str(document.get(key) or "") for key in ("scenario", "status", "clock")
            )
        except (OSError, ValueError):
            scenario, status = "", "unreadable"
    return Entry(path, kind, scenario, status, clock, changed_s, sum(file.st_size for file in files))


def _kind(path: Path) -> Kind | None:
    if path.name == KEPT:
        return "going on" if any(map(_is_locked, path.glob(f"*/{LOCK}"))) else "parts"
    if path.name.endswith(FAILED_SUFFIX):
        return "failed"
    if path.name.endswith(PARTIAL_SUFFIX):
        return "going on" if owner_alive(path) else "killed"
    return next((kind for mark, kind in MARKS.items() if (path / mark).is_file()), None)


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        yield from (file for name in names if (file := Path(folder, name)).is_file())


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
