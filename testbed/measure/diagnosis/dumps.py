"""Flight recorder dumps: requested from a live run, and read from files of this project or of PyTorch."""

from __future__ import annotations

import os
import signal
import time
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
    """The dumps in a directory, and everything else that a diagnosis needs.

    `name` is the name of the run's part, or "" for a whole run. `paths` is None if there is no file of paths. `notes`
    state which dumps are ignored and what is assumed.
    """

    name: str
    folder: Path
    dumps: tuple[RankDump, ...]
    paths: NetworkPaths | None
    notes: tuple[str, ...] = ()


def read_evidence(run: Path) -> tuple[Evidence, ...]:
    """Read the dumps of a run, each part separately, or of a directory.

    PyTorch's dumps in sibling directories count as one job if each rank has exactly one, as in `torchfrtrace`.

    Raises:
        DumpError: If there are no dumps, one is invalid, or two are of the same rank.
        OSError: If a file cannot be read.
    """
    if not run.is_dir():
        raise DumpError(where=str(run), got="no directory", expected="a run, or a directory of dumps")
    folder = run / FLIGHT if (run / FLIGHT).is_dir() else run
    parts = [_Files.of(part) for part in sorted(folder.iterdir()) if part.is_dir() and part.name != STALLED]
    whole = _Files.of(folder)
    theirs = [path for part in parts for path in part.theirs]
    is_empty = not any([whole.ours, whole.theirs, *(part.ours for part in parts)])
    if is_empty and len({parse_rank(path.name) for path in theirs}) == len(theirs) > 0:
        notes = (f"the dumps of {len(parts)} directories are read as one job",)
        found = [replace(_read("", _Files(folder, [], theirs)), notes=notes)]
    else:
        found = [_read("", whole), *(_read(part.folder.name, part) for part in parts)]
    known = tuple(own for own in found if own.dumps)
    if not known:
        raise DumpError(
            where=str(folder),
            got="no dumps",
            expected=f"{DUMPS}, or PyTorch's, with names that end with the rank: {', '.join(USUAL_NAMES)}",
            hint="A run keeps its ranks' dumps in its directory, a failed one in RUN.failed.",
        )
    return known


def read_stalled(flight: Path) -> Evidence:
    """Read the dumps of a stalled step; `flight` is the directory of the run's dumps.

    Raises:
        DumpError: If there are no dumps, or one is invalid.
        OSError: If a file cannot be read.
    """
    found = _read(STALLED, _Files.of(flight / STALLED))
    if not found.dumps:
        raise DumpError(where=str(found.folder), got="no dumps", expected="those of a step that did not end")
    file = flight / PATHS_FILE
    return replace(found, paths=NetworkPaths.read(file) if file.exists() else None)


@dataclass(frozen=True)
class _Files:
    """The dumps in a directory, of this project and of PyTorch."""

    folder: Path
    ours: list[Path]
    theirs: list[Path]

    @classmethod
    def of(cls, folder: Path) -> _Files:
        """List the dumps in a directory, which may be missing."""
        files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
        theirs = [path for path in files if not path.match("*.html") and is_dump(path)]
        return cls(folder, [path for path in files if path.match(DUMPS) and path not in theirs], theirs)


def _read(name: str, files: _Files) -> Evidence:
    by_rank: dict[int, tuple[Path, RankDump]] = {}
    for path in files.ours:
        dump = RankDump.read(path)
        if dump.rank in by_rank:
            raise duplicate_rank_error(dump.rank, by_rank[dump.rank][0], path)
        if path.name != dump_name(dump.rank):
            expected = f"the rank in its name, {path.name}"
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
    """Request dumps from a real-clock run in progress and return their directories.

    `run` is the directory that the finished run will have.

    Raises:
        RunError: If no such run is in progress here, or it does not respond.
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
                raise RunError(f"{folder}: no dump within {TIMEOUT_S:g} s of signalling process {pid}")
            time.sleep(POLL_S)
        found.append(folder)
    if not found:
        ended = f"; its remains are in {failed_path(run)}" if failed_path(run).exists() else ""
        raise RunError(f"{run}: no rank of this run is running here with the real clock{ended}")
    return found


def _is_launcher(pid: int) -> bool:
    try:
        return LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
