"""Dumps of a run's folder, or of any folder of dumps: this project's, or PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.flight import PATHS_FILE, DumpError, NetworkPaths, RankDump
from testbed.flight.pytorch import PYTORCH_NAMES, read_pytorch

FLIGHT_FOLDER = "flight"


@dataclass(frozen=True)
class Evidence:
    """What a folder has for a diagnosis. paths: None where there is no file of them."""

    dumps: tuple[RankDump, ...]
    paths: NetworkPaths | None


def flight_folder(folder: Path) -> Path:
    """Where a run's dumps are: its own folder of them, or the folder itself."""
    own = folder / FLIGHT_FOLDER
    return own if own.is_dir() else folder


def read_evidence(folder: Path) -> Evidence:
    """Of a run, or a folder of dumps. DumpError where there are none, or one is broken."""
    own = flight_folder(folder)
    if not own.is_dir():
        raise DumpError(where=str(folder), got="no folder", expected="a run, or a folder of dumps")
    dumps = [RankDump.read(path) for path in sorted(own.glob("rank-*.json"))]
    if not dumps:
        paths = {path for name in PYTORCH_NAMES for path in own.glob(name)}
        dumps = [read_pytorch(path) for path in sorted(paths)]
    if not dumps:
        raise DumpError(
            where=str(own),
            got="no dumps",
            expected=f"rank-N.json, or PyTorch's {' or '.join(PYTORCH_NAMES)}",
            hint="A run leaves dumps in its folder; `testbed trace dump RUN` makes them from rings.",
        )
    file = own / PATHS_FILE
    return Evidence(tuple(dumps), NetworkPaths.read(file) if file.exists() else None)
