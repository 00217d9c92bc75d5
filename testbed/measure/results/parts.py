"""Where the shards of a run put their records: below its partial folder, or where they outlive an interruption.

What a guest has measured depends on nothing but what is asked and what carries it out. So a shard that is finished
stays finished: when the run is stopped its record is kept, beside the run's folder, and the same command takes it up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from testbed.measure.results.run_directory import RunDirectory

SHARDS = "shards"  # below the partial run directory
KEPT = ".parts"  # beside it: a folder for each run that was stopped
FINISHED = "finished.json"
"""In a shard's folder once all of its record is there, written last: how it ended."""
LOCK = "lock"


class Parts:
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
