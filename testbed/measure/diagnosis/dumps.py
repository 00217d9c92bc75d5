"""Flight-recorder dumps: request them from a live run, and read ours or PyTorch's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.comm.flight_recorder import (
    DUMPED,
    DUMPS,
    FLIGHT,
    LAUNCHER_PID,
    PATHS_FILE,
    STALLED,
    DumpError,
    NetworkPaths,
    RankDump,
    dump_name,
)
from testbed.comm.flight_recorder.pytorch_files import (
    USUAL_NAMES,
    duplicate_rank_error,
    is_dump,
    parse_rank,
    read_dumps,
)
from testbed.measure.results.run_directory import partial_path
from testbed.measure.results.unfinished_run import SHARDS, failed_path
from testbed.workload.job.errors import RunError


@dataclass(frozen=True)
class Evidence:
    """What a folder has for a diagnosis.

    name: of the run's part, "" of a whole. paths: None where there are none. notes: what of the dumps is not used, or
    was concluded, in words.
    """

    name: str
    folder: Path
    dumps: tuple[RankDump, ...]
    paths: NetworkPaths | None
    notes: tuple[str, ...] = ()


def read_evidence(run: Path) -> tuple[Evidence, ...]:
    """Read a run, each of its networks by itself, or a folder of dumps.

    PyTorch's dumps in folders beside each other are one job's where each rank has one, as `torchfrtrace` has it.

    Raises:
        DumpError: Where there are no dumps, where one cannot be read, or where two are of one rank.
        OSError: For files that cannot be read.
    """
    if not run.is_dir():
        raise DumpError(where=str(run), got="no folder", expected="a run, or a folder of dumps")
    folder = run / FLIGHT if (run / FLIGHT).is_dir() else run
    parts = [_Files.of(part) for part in sorted(folder.iterdir()) if part.is_dir() and part.name != STALLED]
    whole = _Files.of(folder)
    if not whole.any and _is_one_job(parts):
        notes = (f"dumps of {len(parts)} folders are read as one job's",)
        theirs = [path for part in parts for path in part.theirs]
        found = [replace(_read("", _Files(folder, [], theirs)), notes=notes)]
    else:
        found = [_read("", whole), *(_read(part.folder.name, part) for part in parts)]
    known = tuple(own for own in found if own.dumps)
    if not known:
        raise DumpError(
            where=str(folder),
            got="no dumps",
            expected=f"{DUMPS}, or PyTorch's, whose names end with the rank: {', '.join(USUAL_NAMES)}",
            hint="A run leaves its ranks' dumps in its folder, one that fails in RUN.failed.",
        )
    return known


def read_stalled(flight: Path) -> Evidence:
    """What ranks did while a step of a run did not end. flight: the folder with the run's dumps. DumpError, OSError."""
    found = _read(STALLED, _Files.of(flight / STALLED))
    if not found.dumps:
        raise DumpError(where=str(found.folder), got="no dumps", expected="those of a step that did not end")
    file = flight / PATHS_FILE
    return replace(found, paths=NetworkPaths.read(file) if file.exists() else None)


@dataclass(frozen=True)
class _Files:
    """The dumps in a folder: this project's, and PyTorch's."""

    folder: Path
    ours: list[Path]
    theirs: list[Path]

    @classmethod
    def of(cls, folder: Path) -> _Files:
        """Look through a folder, which may be missing. OSError."""
        files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
        theirs = [path for path in files if not path.match("*.html") and is_dump(path)]
        return cls(folder, [path for path in files if path.match(DUMPS) and path not in theirs], theirs)

    @property
    def any(self) -> bool:
        return bool(self.ours or self.theirs)


def _is_one_job(parts: Sequence[_Files]) -> bool:
    """Return whether folders have dumps of PyTorch's alone, and no rank stands in two of them."""
    ranks = [parse_rank(path.name) for part in parts for path in part.theirs]
    return bool(ranks) and not any(part.ours for part in parts) and len(set(ranks)) == len(ranks)


def _read(name: str, files: _Files) -> Evidence:
    """Read a folder's dumps, if it has any. DumpError, OSError."""
    by_rank: dict[int, tuple[Path, RankDump]] = {}
    for path in files.ours:
        dump = RankDump.read(path)
        if dump.rank in by_rank:
            raise duplicate_rank_error(dump.rank, by_rank[dump.rank][0], path)
        if path.name != dump_name(dump.rank):
            expected = f"{path.name}'s, whose name says its rank"
            raise DumpError(where=str(path), got=f"a dump of rank {dump.rank}", expected=expected)
        by_rank[dump.rank] = path, dump
    dumps, notes = read_dumps(files.theirs)
    for path in files.theirs:
        if (rank := parse_rank(path.name)) in by_rank:
            raise duplicate_rank_error(rank, by_rank[rank][0], path)
    file = files.folder / PATHS_FILE
    paths = NetworkPaths.read(file) if file.exists() else None
    return Evidence(name, files.folder, (*(dump for _, dump in by_rank.values()), *dumps), paths, notes)


LAUNCHER = b"testbed.measure.ranks.launcher"
TIMEOUT_S, POLL_S = 10.0, 0.02


def dump_running(run: Path) -> list[Path]:
    """The folders with new dumps of a run by this machine's clock that is at work; `run`: its folder to be.

    RunError where no rank of such a run is at work here.
    """
    found = []
    for file in sorted(partial_path(run).glob(f"{SHARDS}/*/{FLIGHT}/{LAUNCHER_PID}")):
        pid, folder = int(file.read_text()), file.parent
        if not _is_launcher(pid):
            continue
        mark = folder / DUMPED
        before = mark.stat().st_mtime_ns if mark.exists() else 0
        os.kill(pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not mark.exists() or mark.stat().st_mtime_ns == before:
            if time.monotonic() > deadline_s:
                raise RunError(f"{folder}: no dump within {TIMEOUT_S:g} s of asking process {pid}")
            time.sleep(POLL_S)
        found.append(folder)
    if not found:
        ended = f"; what is left of it stands in {failed_path(run)}" if failed_path(run).exists() else ""
        raise RunError(f"{run}: no rank of it is at work by this machine's clock{ended}")
    return found


def _is_launcher(pid: int) -> bool:
    try:
        return LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
