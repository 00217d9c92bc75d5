"""A rank of a job that serves requests of which it is decided as they come who serves them."""

from __future__ import annotations

from pathlib import Path

from testbed.measure.ranks.rank import Rank
from testbed.measure.ranks.serving_executor import ServingExecutor


class ServingRank(Rank):
    """As Rank; where the job survives kills, nobody waits for all in the end."""

    def _make_executor(self) -> ServingExecutor:
        job = self.job
        assert job.dispatching is not None
        return ServingExecutor(
            job.dispatching,
            self.transport,
            job.dtype,
            job.wiring.timeout_s,
            self.faults,
            Path(job.output),
            at_once=job.survives_kills,
        )

    def _wait_for_all(self) -> None:
        if not self.job.survives_kills:
            super()._wait_for_all()
