"""What lies in a folder of results: runs, sweeps, searches, and what is left of runs that failed or were killed."""

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
LEFT: tuple[Kind, ...] = ("failed", "killed", "parts")  # of what has no result


@dataclass(frozen=True)
class Entry:
    """A folder of results. status: a run's verdict, else empty. changed_s: since 1970; size_bytes: of all its files."""

    path: Path
    kind: Kind
    scenario: str
    status: str
    clock: str
    changed_s: float
    size_bytes: int


def entries(folder: Path) -> list[Entry]:
    """All that lies there, oldest first; what is none of it is left out. Runs of a sweep or search are part of it."""
    return _sorted(_entry(path, kind) for path, kind in _kinds(folder))


def killed(folder: Path) -> list[Entry]:
    """What runs left that were killed; nobody else's files are looked at."""
    return _sorted(_entry(path, kind) for path, kind in _kinds(folder) if kind == "killed")


def to_prune(
    found: Sequence[Entry], now_s: float, *, keep: int | None, older_s: float | None, left: bool
) -> list[Entry]:
    """What is to go; never what goes on.

    keep: the newest of what has a result that stay. older_s: only what is so old. left: what has no result, alone.
    """
    if left:
        chosen = [entry for entry in found if entry.kind in LEFT]
    else:
        whole = [entry for entry in found if entry.kind in MARKS.values()]
        newest = sorted(whole, key=lambda entry: entry.changed_s, reverse=True)
        chosen = _sorted(newest[keep or 0 :])
    return [entry for entry in chosen if older_s is None or now_s - entry.changed_s >= older_s]


def remove(entry: Entry) -> None:
    """All of it."""
    shutil.rmtree(entry.path)


def _sorted(found: Iterable[Entry]) -> list[Entry]:
    return sorted(found, key=lambda entry: (entry.changed_s, entry.path))


def _kinds(folder: Path) -> Iterator[tuple[Path, Kind]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and (kind := _kind(path)):
            yield path, kind


def _entry(path: Path, kind: Kind) -> Entry:
    scenario, status, clock = _told(path, kind)
    files = [file.stat() for file in _files(path)]
    changed_s = max((file.st_mtime for file in files), default=path.stat().st_mtime)
    return Entry(path, kind, scenario, status, clock, changed_s, sum(file.st_size for file in files))


def _kind(path: Path) -> Kind | None:
    if path.name == KEPT:
        return "going on" if any(map(_locked, path.glob(f"*/{LOCK}"))) else "parts"
    if path.name.endswith(FAILED_SUFFIX):
        return "failed"
    if path.name.endswith(PARTIAL_SUFFIX):
        return "going on" if owner_alive(path) else "killed"
    return next((kind for mark, kind in MARKS.items() if (path / mark).is_file()), None)


def _told(path: Path, kind: Kind) -> tuple[str, str, str]:
    """Scenario, verdict, clock."""
    mark = next((mark for mark, own in MARKS.items() if own == kind), None)
    if mark is None:
        return path.name.split(".")[0] if kind != "parts" else "", "", ""
    try:
        document = json.loads((path / mark).read_text())
        return tuple(str(document.get(key) or "") for key in ("scenario", "status", "clock"))  # type: ignore[return-value]
    except (OSError, ValueError):
        return "", "unreadable", ""


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        yield from (file for name in names if (file := Path(folder, name)).is_file())


def _locked(lock: Path) -> bool:
    """Whether somebody holds it."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
