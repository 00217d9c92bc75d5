"""Dumps of a run's folder, or of any folder of dumps: this project's, or PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from testbed.flight import DUMPS, FLIGHT, PATHS_FILE, STALLED, DumpError, NetworkPaths, RankDump
from testbed.flight.pytorch import PYTORCH_NAMES, read_pytorch


@dataclass(frozen=True)
class Evidence:
    """What a folder has for a diagnosis. name: of the run's part, "" of a whole. paths: None where there are none."""

    name: str
    folder: Path
    dumps: tuple[RankDump, ...]
    paths: NetworkPaths | None


def read_evidence(run: Path) -> tuple[Evidence, ...]:
    """Of a run, each of its networks by itself, or of a folder of dumps. DumpError where there are none, OSError."""
    if not run.is_dir():
        raise DumpError(where=str(run), got="no folder", expected="a run, or a folder of dumps")
    folder = run / FLIGHT if (run / FLIGHT).is_dir() else run
    parts = [part for part in sorted(folder.iterdir()) if part.is_dir() and part.name != STALLED]
    found = [_read("", folder), *(_read(part.name, part) for part in parts)]
    known = tuple(own for own in found if own.dumps)
    if not known:
        raise DumpError(
            where=str(folder),
            got="no dumps",
            expected=f"{DUMPS}, or PyTorch's {' or '.join(PYTORCH_NAMES)}",
            hint="A run leaves its ranks' dumps in its folder, one that fails in RUN.failed.",
        )
    return known


def read_stalled(flight: Path) -> Evidence:
    """What ranks did while a step of a run did not end. flight: the folder with the run's dumps. DumpError, OSError."""
    found = _read(STALLED, flight / STALLED)
    if not found.dumps:
        raise DumpError(where=str(found.folder), got="no dumps", expected="those of a step that did not end")
    file = flight / PATHS_FILE
    return replace(found, paths=NetworkPaths.read(file) if file.exists() else None)


def _read(name: str, folder: Path) -> Evidence:
    dumps = [RankDump.read(path) for path in sorted(folder.glob(DUMPS))]
    if not dumps:
        files = {path for pattern in PYTORCH_NAMES for path in folder.glob(pattern)}
        dumps = [read_pytorch(path) for path in sorted(files)]
    file = folder / PATHS_FILE
    return Evidence(name, folder, tuple(dumps), NetworkPaths.read(file) if file.exists() else None)
