"""The best by packets: of the quickest by the model all run shortly, the better half for longer, until few are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from testbed.cli.experiments.search_confirmation import candidates, short_run, survivors
from testbed.measure.results.result import Result, Variant
from testbed.prediction.search import Exploration
from testbed.prediction.search.search import Result as Found
from testbed.spec.scenario import Scenario

RUNGS = "rungs"
LONGER = 3  # times the trials for each half

Measure = Callable[[Scenario, Path, Path], Result]
"""Writes a scenario into a file and runs it into a folder, or opens what it came to there."""


def halve(
    scenario: Scenario, found: Exploration, folder: Path, measure: Measure
) -> tuple[Sequence[Found], list[dict[str, Any]]]:
    """As many as the search confirms, the quickest first; and what each rung, a run in `folder`, has measured.

    What is untrusted comes behind all that is not. No rungs where no more are candidates than are confirmed.
    """
    assert scenario.explore is not None
    least, trials = scenario.explore.confirm, 1
    standing: Sequence[Found] = candidates(scenario, found)
    names = {one.configuration: f"candidate-{number}" for number, one in enumerate(standing, start=1)}
    rungs: list[dict[str, Any]] = []
    while len(standing) > least:
        asked = short_run(scenario, {names[one.configuration]: one for one in standing}, trials)
        rung = folder / RUNGS / str(len(rungs) + 1)
        variants = {
            variant.name: variant for variant in measure(asked, rung.with_suffix(".yaml"), rung).variants
        }
        ranked = [(one, variants[names[one.configuration]]) for one in standing]
        ranked.sort(key=lambda pair: (pair[1].verdict.status == "untrusted", pair[1].done.step_s))
        standing = survivors([one for one, _ in ranked], least)
        tried = [_entry(one, variant, one in standing) for one, variant in ranked]
        rungs.append({"trials": trials, "candidates": tried})
        trials = min(trials * LONGER, scenario.trials)
    return standing, rungs


def _entry(one: Found, variant: Variant, goes_on: bool) -> dict[str, Any]:
    return {
        "name": variant.name,
        "configuration": str(one.configuration),
        "changes": dict(one.configuration.changes),
        "predicted_s": one.tried.step_time_s,
        "step_time_s": variant.done.step_s,
        "status": variant.verdict.status,
        "goes_on": goes_on,
    }
