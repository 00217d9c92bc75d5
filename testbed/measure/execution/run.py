"""A run: shards of a scenario, carried out by a backend, written by one writer."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import TestbedError
from testbed.measure.diagnosis import diagnose, read_evidence
from testbed.measure.diagnosis.text import verdict_line
from testbed.measure.execution.backend import Backend
from testbed.measure.execution.live_log import RunLive
from testbed.measure.execution.progress import Progress
from testbed.measure.results.failed_run import keep_failed
from testbed.measure.results.parts import Parts
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import RunDirectory
from testbed.measure.results.writer import write_run
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario


def execute(scenario: Scenario, backend: Backend, scale: Scale, output: Path, progress: Progress) -> Result:
    """Do everything; returns what stands in the run directory `output`, which is there only when all went well.

    RunExists, FabricError, RunError, VirtualClockError: nothing is left behind, but for finished parts under the
    virtual clock, with which the same run goes on, and what ranks did last, in `<output>.failed`.
    """
    directory = RunDirectory(output)
    shards = backend.shards(scenario)
    parts = None
    try:
        parts = Parts(directory, backend.identity(scenario, scale))
        live = RunLive(directory.partial, parts.folder, scenario, shards, scale)
        progress = live.progress(progress)
        if there := len(parts.finished):
            progress.phase(f"{there} of {len(shards)} parts are there from before")
        carried = backend.carry_out(scenario, shards, scale, parts, progress)
        if len(shards) > 1:
            progress.phase("putting the parts together")
        result = write_run(directory, scenario, scale, carried)
        live.end()
        parts.remove()
        directory.finish()
    except BaseException as error:
        if (
            parts is not None
            and isinstance(error, TestbedError)
            and (left := keep_failed(output, parts.folder, str(error)))
        ):
            for line in who_words(left):
                progress.phase(line)
            progress.phase(f"what every rank did last: {left}; testbed diagnose {left} says more")
        if parts is not None and (kept := parts.stop()):
            progress.phase(f"{kept} of {len(shards)} parts kept in {parts.folder}; the same command goes on")
        directory.discard()
        raise
    return result.at(output)


def who_words(left: Path) -> list[str]:
    """Who it was that a run failed for, in a line, by what is left of it; nothing where that does not say."""
    try:
        found = [diagnose(part.dumps, part.paths) for part in read_evidence(left)]
    except (TestbedError, OSError):
        return []
    return [verdict_line(own.verdicts[0]) for own in found if own.verdicts]
