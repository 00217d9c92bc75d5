"""A run with its report: checked, carried out, again where it may be and must, written, handed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import PreparedRun, Request, prepare
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import hand_over
from testbed.show.report import write_report
from testbed.spec.errors import ConfigError, Problem


@dataclass(frozen=True)
class Listener:
    """Whoever is told meanwhile. begins: before each attempt, with the invariants that the one before did not hold."""

    progress: Progress
    begins: Callable[[PreparedRun, Sequence[str]], None] = lambda prepared, reasons: None


def run(
    request: Request, listener: Listener, *, strict: bool = False, most_dilation: float | None = None
) -> Result:
    """Check, build, measure, judge, write the folder and its report; the figures may be untrusted.

    Args:
        request: What to run, and how.
        listener: Is told how far it is.
        strict: No report of untrusted figures.
        most_dilation: An untrusted run is done again with its time stretched twice as far, up to so many times.

    Raises:
        ConfigError: For what cannot be run here.
        RunExists, RunError, FabricError, VirtualClockError: When it could not be brought to its end.
    """
    if most_dilation and request.clock == "virtual":
        raise ConfigError(
            [Problem("command line", None, "--retry-dilated", "--clock virtual", "--clock real")]
        )
    prepared = prepare(request)
    listener.begins(prepared, ())
    result = prepared.execute(listener.progress)
    while (
        result.status == "untrusted" and most_dilation and prepared.scale.time_dilation * 2 <= most_dilation
    ):
        prepared = prepared.slower()
        listener.begins(prepared, failed_invariants(result))
        shutil.rmtree(request.output)
        result = prepared.execute(listener.progress)
    if not (strict and result.status == "untrusted"):
        write_report(request.output)
    hand_over(request.output)
    return result


def failed_invariants(result: Result) -> list[str]:
    """The names of those that did not hold in any variant."""
    return sorted({entry.name for variant in result.variants for entry in variant.verdict.failed})
