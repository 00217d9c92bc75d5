"""Files of a run that is not over or failed: shard folders, live log, dumps kept.

What a guest has measured depends on nothing but what is asked and what carries it out. So a shard that is finished
stays finished: when the run is stopped its record is kept, beside the run's folder, and the same command takes it up.
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
from testbed.measure.results.run_directory import RunDirectory, hand_over
from testbed.measure.results.shards import FIGURES

SHARDS = "shards"  # below the partial run directory
KEPT = ".parts"  # beside it: a folder for each run that was stopped
FINISHED = "finished.json"
"""In a shard's folder once all of its record is there, written last: how it ended."""
LOCK = "lock"


class ShardFolders:
    """A run's shards, each in `folder`/NUMBER.

    Args:
        directory: The run's.
        identity: Names all that its shards' records depend on; None where they would not be the same again.
    """

    def __init__(self, directory: RunDirectory, identity: str | None) -> None:
        self.folder = directory.partial / SHARDS
        self._lock: int | None = None
        if identity is not None:
            kept = directory.path.parent / KEPT / identity
            with contextlib.suppress(
                OSError
            ):  # the same command runs already, or others' parts: this keeps nothing
                self._lock = _locked(kept)
                self.folder = kept
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()  # of one that was killed

    @property
    def outlive(self) -> bool:
        """Whether finished ones are kept when the run is stopped."""
        return self._lock is not None

    @property
    def finished(self) -> set[int]:
        """The numbers of the shards whose records are whole."""
        return {int(file.parent.name) for file in self.folder.glob(f"*/{FINISHED}")}

    def stop(self) -> int:
        """The run was stopped: keep what is finished, if that outlives it, and nothing else; returns how many."""
        self._remove_unfinished()
        count = len(self.finished) if self.outlive else 0
        if not count:
            self.remove()
        self._unlock()
        return count

    def remove(self) -> None:
        """The run is written, or nothing is worth keeping."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.outlive:
            with contextlib.suppress(OSError):  # others' parts are in it
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


def _locked(folder: Path) -> int:
    """Make a folder this process's own: the descriptor that holds it. OSError if it may not, or another has it."""
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
"""Kinds of records."""


class LiveLog:
    """Appends records, each at once and whole, so that a reader finds them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LIVE
        self._file = self.path.open("a", buffering=1)

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """One more."""
        self._file.write(json.dumps({"kind": kind, **record}) + "\n")

    def close(self, *, remove: bool = False) -> None:
        """No more will come; remove: nor is it of use to anybody."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)


FAILED_SUFFIX, FAILURE, SCENARIO = ".failed", "failure.txt", "scenario.yaml"


def failed_path(run: Path) -> Path:
    """Where what stays of a run stands."""
    return run.with_name(run.name + FAILED_SUFFIX)


def keep_failed(run: Path, shards: Path, words: str) -> Path | None:
    """Move the flight recorders' dumps of the shard that failed to `<run>.failed`, in place of what was there.

    run: the run's folder, which there is not. shards: the folder of all shards' folders. words: why it failed. Returns
    where they are, with the shard's scenario and the words; None where no rank had begun anything.
    """
    left = [dumps.parent for dumps in sorted(shards.glob(f"*/{FLIGHT}")) if _has_something(dumps)]
    failed = [shard for shard in left if not (shard / FIGURES).exists()]
    if not failed:
        return None
    target = failed_path(run)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.move(failed[0] / FLIGHT, target / FLIGHT)
    if (failed[0] / SCENARIO).exists():
        shutil.copy(failed[0] / SCENARIO, target / SCENARIO)
    (target / FAILURE).write_text(words + "\n")
    hand_over(target)
    return target


def _has_something(dumps: Path) -> bool:
    return any(RankDump.read(path).entries for path in dumps.glob(DUMPS))
