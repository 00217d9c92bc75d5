"""Has the oracle look at each run that a test makes, and at the tables that a notebook would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from testbed.measure.results.result import Result
from tests.oracle import check_run


def hold_figures(arguments: Sequence[str], status: int, printed: str) -> None:
    """Hold all that a command wrote and printed against the oracle, if it was `testbed run` and there are figures.

    Args:
        arguments: Of `testbed`.
        status: Its exit status; of a run that nobody should use, figures are written and not printed.
        printed: Its standard output.

    Raises:
        AssertionError: With a line for each figure that is not what the raw files say.
    """
    outputs = [after for word, after in pairwise(arguments) if word in ("-o", "--output")]
    if arguments[0] != "run" or not outputs or status not in (0, 3):
        return
    folder = Path(outputs[0])
    # `--strict` withholds the page of figures that nobody should use
    if (folder / "summary.json").exists() and (status == 0 or (folder / "report.html").exists()):
        check_run(folder, printed if status == 0 else "", tables_of(folder))


def tables_of(folder: Path) -> dict[str, str]:
    """A run's frames as CSV, by name."""
    result = Result.open(folder)
    frames = {"steps": result.steps(), "operations": result.operations(), "links": result.links()}
    return {name: frame.to_csv(index=False) for name, frame in frames.items()}
