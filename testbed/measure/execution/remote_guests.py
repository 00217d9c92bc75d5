"""The backend that runs guests of the virtual clock on the workers of a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from testbed.measure.execution.guests import Guests, GuestWork, measure_on_worker, read_ended, unpack
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.resources import Forecast
from testbed.measure.results.shards import Shard, ShardRecord
from testbed.measure.results.unfinished_run import FINISHED, ShardFolders
from testbed.measure.results.writer import BackendResult, ShardTimes
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest import GuestSettings
from testbed.net.virtual.kernel_image import KernelImage, find_image
from testbed.prediction.calibration import file_in_use
from testbed.prediction.executors.dask_cluster import Cluster
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.version import VERSION

CODE = Path(__file__).parents[2]
DIGITS = 12


class RemoteGuests(Guests):
    """A backend that runs one guest per cluster worker, and stores each finished shard on this machine."""

    def __init__(
        self,
        image: KernelImage,
        settings: GuestSettings,
        expected: Forecast,
        ranks_per_process: int | None,
        link_engine: str,
        engine: Cluster,
    ) -> None:
        super().__init__(image, settings, expected, ranks_per_process, link_engine)
        self.engine = engine

    @property
    def words(self) -> str:
        """A description of the workers."""
        return f"virtual clock, on {self.engine.words}"

    def run_shards(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """Measure the shards on the workers; see `Backend`. The shard of a worker that dies is repeated by another."""
        began_s = time.monotonic()
        finished = parts.finished
        waiting = [shard for shard in shards if shard.number not in finished]
        work = GuestWork(self.settings, scale, self.ranks_per_process, self.link_engine)
        each = scenario.warmup
        done = sum(shard.trials + each for shard in shards if shard.number in finished)
        total = sum(shard.trials + each for shard in shards)
        guests = f"{len(waiting)} guest{'' if len(waiting) == 1 else 's'}"
        progress.phase(f"{guests} on {self.engine.words}")
        progress.step(done, total)
        with self.engine.workers(measure_on_worker, work) as workers:
            asked = [(shard, shard.scenario(scenario)) for shard in waiting]
            for shard, packed in zip(waiting, workers.map(asked), strict=True):
                unpack(packed, parts.folder / str(shard.number))
                done += shard.trials + each
                progress.step(min(done, total - 1), total)
        folders = [parts.folder / str(shard.number) for shard in shards]
        ended = [read_ended(folder / FINISHED) for folder in folders]
        return BackendResult(
            [ShardRecord.read(folder) for folder in folders],
            time.monotonic() - began_s,
            self.settings.memory_bytes,
            min(self.engine.at_once, len(shards)),
            [ShardTimes(end.uptime_s, end.wall_s, end.memory_bytes) for end in ended],
            self.expected.wall_s,
            self.expected.memory_bytes,
        )


def worker_identity() -> Mapping[str, str]:
    """Return what must be equal on all workers, so that results do not depend on the worker."""
    try:
        image = find_image()
        kernel = f"{image.version} ({image.recipe[:DIGITS]})"
    except VirtualClockError:
        kernel = "none"
    made = file_in_use()
    return {
        "testbed": f"{VERSION} ({_code()})",
        "Python": ".".join(map(str, sys.version_info[:2])),
        "calibration": "the package's" if made is None else sha256(made.read_bytes()).hexdigest()[:DIGITS],
        "kernel of the virtual clock": kernel,
    }


@lru_cache(maxsize=1)
def _code() -> str:
    found = sha256()
    for file in sorted(CODE.rglob("*.py")):
        found.update(str(file.relative_to(CODE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:DIGITS]
