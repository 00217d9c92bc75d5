"""What the coordinator of replicas that come and go wrote down, and what a shard's figures are made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.comm.replicas.coordinator import RECORDS
from testbed.measure.results.replication_summary import begun_s, replication_summary
from testbed.spec.events import KILL_EVENTS
from testbed.spec.scale import Scale
from testbed.workload.job.job import Job
from testbed.workload.job.launch_spec import Replication

Record = Mapping[str, Any]


@dataclass(frozen=True)
class ReplicationRecord:
    """records: the coordinator's, emulated times. warmup: steps before measuring starts. microbatches: by replica."""

    told: Replication
    records: Sequence[Record]
    scale: Scale
    warmup: int
    microbatches: Sequence[int] = ()

    @classmethod
    def read(cls, folder: Path, job: Job) -> ReplicationRecord | None:
        """From a shard's folder; None where no replicas come and go."""
        if job.replication is None:
            return None
        lines = (folder / RECORDS).read_text().splitlines()
        records, training = list(map(json.loads, lines)), job.workload.training
        microbatches = training.microbatches if training is not None else ()
        return cls(job.replication, records, job.scale, job.scenario.warmup, microbatches)

    @property
    def origin_s(self) -> float:
        """When the first measured step began, for the first time: samples have the last."""
        return begun_s(self.records, self.warmup)

    def summary(self, samples: Sequence[Record], events: Sequence[Record]) -> dict[str, Any]:
        """What losses cost. samples: ranks'; events: all that came."""
        return replication_summary(
            self.records,
            [sample for sample in samples if sample["operation"] == "step"],
            [entry for entry in events if entry["action"] in KILL_EVENTS],
            self.scale,
            replicas=len(self.told.replicas),
            mode=self.told.policy.mode,
            catch_up=self.told.policy.catch_up,
            warmup=self.warmup,
            microbatches=self.microbatches,
        )
