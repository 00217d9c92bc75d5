"""What a scenario's files by other programs have that is not used, on standard error."""

from __future__ import annotations

from rich.console import Console

from testbed.errors import BadInput
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import unused_inputs


def tell_left_out(scenario: Scenario, strict: bool = False) -> None:
    """Say it line by line, after the files have been found to be right. BadInput where something is, if strict."""
    found = unused_inputs(scenario)
    if found and strict:
        hint = "\n".join(f"left out: {what}" for what in found)
        got = f"{len(found)} left out"
        raise BadInput(where=f"{scenario.name}: --strict", got=got, expected="none", hint=hint)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for what in found:
        console.print(f"left out: {what}", markup=False)
