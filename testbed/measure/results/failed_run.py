"""What stays of a run that failed: what every rank's operations did last, beside where the run would have been."""

from __future__ import annotations

import shutil
from pathlib import Path

from testbed.comm.flight_recorder import DUMPS, FLIGHT, RankDump
from testbed.measure.results.run_directory import hand_over
from testbed.measure.results.shards import FIGURES

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
