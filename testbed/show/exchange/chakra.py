"""A job as Chakra execution traces, and a scenario that runs them."""

from __future__ import annotations

from pathlib import Path

import yaml

from testbed.show.exchange.job_export import SCENARIO, ExportedJob
from testbed.workload.traces.chakra import write_job
from testbed.workload.traces.chakra.writer import NAME

_OF_THE_NETWORK = ("gradient_dtype", "tuning")
"""Of the workload: what counts for traces as well."""


def export_chakra(job: ExportedJob, folder: Path, name: str = NAME) -> list[Path]:
    """One NAME.RANK.et per rank, their groups, and a scenario; returns all files. TraceError."""
    written = write_job(job.trace, folder, name, job.times)
    data = job.scenario.model_copy(update={"explore": None}).to_data()  # of which most is the traces' now
    workload = data["workload"]
    data["workload"] = {"chakra": ".", **{key: workload[key] for key in _OF_THE_NETWORK if key in workload}}
    data["algorithms"] = [job.algorithm]
    path = folder / SCENARIO
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return [*written, path]
