"""A run: shards of a scenario, carried out by a backend, written by one writer."""

from __future__ import annotations

from pathlib import Path

from testbed.config import Scenario
from testbed.results.directory import RunDirectory
from testbed.results.result import Result
from testbed.results.writer import SHARDS, write_run
from testbed.running.backend import Backend
from testbed.running.progress import Progress
from testbed.scale import Scale


def execute(scenario: Scenario, backend: Backend, scale: Scale, output: Path, progress: Progress) -> Result:
    """Do everything; returns what stands in the run directory `output`, which is there only when all went well.

    RunExists, FabricError, RunError, VirtualClockError: nothing is left behind.
    """
    directory = RunDirectory(output)
    try:
        shards = backend.shards(scenario)
        carried = backend.carry_out(scenario, shards, scale, directory.partial / SHARDS, progress)
        if len(shards) > 1:
            progress.phase("putting the parts together")
        result = write_run(directory, scenario, scale, carried)
        directory.finish()
    except BaseException:
        directory.discard()
        raise
    return result.at(output)
