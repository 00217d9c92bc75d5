"""What a scenario's files by other programs have that is not used, on standard error."""

from __future__ import annotations

from rich.console import Console

from testbed.config import Scenario
from testbed.job.foreign_files import left_out


def tell_left_out(scenario: Scenario) -> None:
    """Say it line by line, after the files have been found to be right."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for what in left_out(scenario):
        console.print(f"left out: {what}", markup=False)
