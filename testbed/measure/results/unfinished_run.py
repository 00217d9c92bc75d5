"""Files of a run that is in progress or has failed: shard directories, the live log, dumps of a failure.

A guest's measurement depends only on the request and on the software that runs it. So, when a run is stopped, the
records of finished shards are kept next to the run directory, and the same command resumes from them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder import DUMPS, FLIGHT, RankDump
from testbed.measure.results.run_directory import RunDirectory, chown_to_sudo_user
from testbed.measure.results.shards import FIGURES

SHARDS = "shards"  # below the partial run directory
KEPT = ".parts"  # next to the run directory: a directory for each stopped run
FINISHED = "finished.json"
"""File in a shard's directory that says how it ended; written last, when the record is complete."""
LOCK = "lock"


class ShardFolders:
    """The shard directories of a run, each at `folder`/NUMBER.

    Args:
        directory: The run directory.
        identity: A name for everything that the shards' records depend on; None if they are not reproducible.
    """

    def __init__(self, directory: RunDirectory, identity: str | None) -> None:
        self.folder = directory.partial / SHARDS
        self._lock: int | None = None
        if identity is not None:
            kept = directory.path.parent / KEPT / identity
            # fails if the same command is already running, or the directory belongs to another user: keep nothing
            with contextlib.suppress(OSError):
                self._lock = _lock(kept)
                self.folder = kept
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()  # files left by a run that was killed

    @property
    def outlive(self) -> bool:
        """Whether finished shards are kept when the run is stopped."""
        return self._lock is not None

    @property
    def finished(self) -> set[int]:
        """The numbers of the shards with complete records."""
        return {int(file.parent.name) for file in self.folder.glob(f"*/{FINISHED}")}

    def stop(self) -> int:
        """Keep the finished shards of a stopped run, if they outlive it, and return their number."""
        self._remove_unfinished()
        count = len(self.finished) if self.outlive else 0
        if not count:
            self.remove()
        self._unlock()
        return count

    def remove(self) -> None:
        """Remove all shard directories."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.outlive:
            with contextlib.suppress(OSError):  # not empty: shards of other runs
                self.folder.parent.rmdir()
        self._unlock()

    def _remove_unfinished(self) -> None:
        for entry in self.folder.iterdir():
            if entry.is_dir() and not (entry / FINISHED).exists():
                shutil.rmtree(entry, ignore_errors=True)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int:
    """Lock a directory for this process and return the lock's file descriptor; raise OSError if it is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


LIVE = "live.jsonl"
RANK_FILES = "rank-*.jsonl"
RUN, PHASE, STEP, PARTS, NETWORK, LINKS, EVENT = "run", "phase", "step", "parts", "network", "links", "event"
"""The kinds of records in a live log."""


class LiveLog:
    """An append-only JSON-lines log of a run in progress, flushed line by line for readers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LIVE
        self._file = self.path.open("a", buffering=1)

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a record."""
        self._file.write(json.dumps({"kind": kind, **record}) + "\n")

    def close(self, *, remove: bool = False) -> None:
        """Close the log, and delete it if `remove` is set."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)


FAILED_SUFFIX, FAILURE, SCENARIO = ".failed", "failure.txt", "scenario.yaml"


def failed_path(run: Path) -> Path:
    """Return the directory where the files of a failed run are kept."""
    return run.with_name(run.name + FAILED_SUFFIX)


def keep_failed(run: Path, shards: Path, reason: str) -> Path | None:
    """Move the flight recorder dumps of the failed shard to `<run>.failed`, replacing existing files.

    Args:
        run: The run directory that the run would have had.
        shards: The directory of all shard directories.
        reason: The reason why the run failed; it is stored with the dumps and the shard's scenario.

    Returns:
        The directory with the dumps; None if no rank had started an operation.
    """
    failed = [
        dumps.parent
        for dumps in sorted(shards.glob(f"*/{FLIGHT}"))
        if any(RankDump.read(path).entries for path in dumps.glob(DUMPS))
        and not (dumps.parent / FIGURES).exists()
    ]
    if not failed:
        return None
    target = failed_path(run)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.move(failed[0] / FLIGHT, target / FLIGHT)
    if (failed[0] / SCENARIO).exists():
        shutil.copy(failed[0] / SCENARIO, target / SCENARIO)
    (target / FAILURE).write_text(reason + "\n")
    chown_to_sudo_user(target)
    return target
