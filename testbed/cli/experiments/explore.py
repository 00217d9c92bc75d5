"""A resumable search of configurations in a folder, and the run that confirms it."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.cli.experiments.confirmation import (
    RUNGS,
    Agreement,
    agreement,
    confirmation,
    halve_candidates,
    indistinguishable_from_best,
    model_errors_of,
)
from testbed.cli.experiments.run import run_or_reopen
from testbed.jsonl_log import JsonlLog
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import check_here
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import chown_to_sudo_user, make_folder
from testbed.net.paths.buffer_checks import short_queues
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.search import (
    Exploration,
    NothingFits,
    Search,
    SearchProgress,
    evaluate_tail_s,
    search_space_of,
)
from testbed.prediction.search.baselines import document as sensitivity_document
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible
from testbed.prediction.search.exploration import RankedConfiguration
from testbed.prediction.step_flops import recorded_work, step_work
from testbed.show.report.exploration import write_exploration
from testbed.spec.errors import ConfigError, Problem, option_error
from testbed.spec.scenario import Scenario
from testbed.workload.job.kinds.trace import changed_ns

SHOWN = 5  # number of best configurations shown, in addition to baselines
CONFIRMATION, CONFIRMED = "confirm.yaml", "confirmed"


@dataclass(frozen=True)
class Explored:
    """The result of a search; `document` is the content of `exploration.json`; for `tails_s` see `_tails_s`."""

    folder: Path
    scenario: Scenario
    found: Exploration
    document: dict[str, Any]
    tails_s: Mapping[str, float | None]

    @property
    def confirmation(self) -> Path:
        """The file of the scenario that confirms the search."""
        return self.folder / CONFIRMATION


@dataclass(frozen=True)
class Confirmed:
    """The run that confirms a search; `ran`: whether it ran just now; `agreement`: None below two trusted variants."""

    result: Result
    ran: bool
    agreement: Agreement | None


def check(scenario: Scenario, file: str, folder: Path, confirm_by: str | None) -> None:
    """Check early for problems that would otherwise appear after the search; `confirm_by` is the clock, if any.

    ConfigError, FabricError or VirtualClockError is raised for a problem.
    """
    search_space_of(scenario, file)
    if confirm_by is not None and not (folder / CONFIRMED).exists():
        check_here(scenario, file, confirm_by)


def explore(
    scenario: Scenario, file: str, folder: Path, progress: Callable[[SearchProgress], None], engine: Executor
) -> Explored:
    """Run or resume a search and write its folder.

    Args:
        scenario: A scenario with `explore`.
        file: The scenario's file, for messages.
        folder: Folder of the search.
        progress: Called with the state of the search.
        engine: Executor that evaluates configurations.

    Raises:
        ConfigError: If no configuration is feasible, or the folder has another search.
    """
    fresh = not folder.exists()
    log = SearchLog(folder, scenario)
    try:
        with contextlib.closing(log):
            found = Search(scenario, progress, log.known(), log.note, engine).run()
    except NothingFits as error:
        if fresh:
            shutil.rmtree(folder)
        expected = "a space, or constraints, with a feasible configuration"
        raise ConfigError([Problem(file, None, "explore", str(error), expected)]) from None
    except ConfigError:
        if fresh:
            shutil.rmtree(folder)
        raise
    confirms = confirmation(scenario, found)
    tails_s = _tails_s(scenario, found, engine)
    document = _document(scenario, found, confirms.variants, tails_s, folder)
    explored = Explored(folder, scenario, found, document, tails_s)
    explored.confirmation.write_text(confirms.scenario.to_yaml())
    _write(explored)
    return explored


def confirm(
    explored: Explored, clock: str, jobs: int | None, listener: Progress, engine: Executor | None = None
) -> Confirmed:
    """Select from the best configurations on the network, then run these and the baselines, unless already done.

    This adds the measurements and the model's accuracy to the page and to `exploration.json`.

    Args:
        explored: The search.
        clock: Clock of the runs.
        jobs: Number of guests to run at once.
        listener: Receives the progress of runs.
        engine: Executor that runs guests.

    Raises:
        ConfigError: If the folder has another run.
        BadResult: If the folder has no run; all errors of a run are also possible.
    """
    new: list[Path] = []

    def measure(scenario: Scenario, file: Path, folder: Path) -> Result:
        if not folder.exists():
            new.append(folder)
        return run_or_reopen(scenario, file, folder, clock, jobs, listener, engine)

    scenario, document = explored.scenario, explored.document
    confirms = confirmation(scenario, explored.found)
    if (explored.folder / RUNGS).exists() or not (explored.folder / CONFIRMED).exists():
        chosen, rungs = halve_candidates(scenario, explored.found, explored.folder, measure)
        found = replace(explored.found, chosen=chosen)
        confirms = confirmation(scenario, found)
        tails_s = _tails_s(scenario, found, engine or Processes(), explored.tails_s)
        document.update(_document(scenario, found, confirms.variants, tails_s, explored.folder), rungs=rungs)
        _write(explored)
    result = measure(confirms.scenario, explored.confirmation, explored.folder / CONFIRMED)
    right = agreement(result.variants)
    document["agreement"] = asdict(right) if right else None
    _write(explored, result)
    return Confirmed(result, explored.folder / CONFIRMED in new, right)


def _write(explored: Explored, confirmed: Result | None = None) -> None:
    (explored.folder / RESULT).write_text(json.dumps(explored.document, indent=1) + "\n")
    write_exploration(explored.folder, explored.document, confirmed)
    chown_to_sudo_user(explored.folder)


def _tails_s(
    scenario: Scenario, found: Exploration, engine: Executor, known: Mapping[str, float | None] | None = None
) -> dict[str, float | None]:
    """Return the 99th percentile of step times by configuration; None if the model has none.

    It is computed only for configurations that are shown, since it is expensive. `known` has earlier results.
    """
    compared, tails_s = found.compared(SHOWN), dict(known or {})
    tuned = {
        one.name for one in compared if one.tuned
    }  # their untuned versions are only shown as a step time
    shown = [one for one in compared if one.tuned or one.name not in tuned]
    new = {one.configuration.key: one for one in shown if one.configuration.key not in tails_s}
    lossy = {key: (one.configuration, one.tried) for key, one in new.items() if one.tried.tail_s is None}
    if lossy:
        with engine.workers(evaluate_tail_s, scenario) as workers:
            tails_s.update(zip(lossy, workers.map(list(lossy.values())), strict=True))
    return tails_s


def _document(
    scenario: Scenario,
    found: Exploration,
    variants: Mapping[str, str],
    tails_s: Mapping[str, float | None],
    folder: Path,
) -> dict[str, Any]:
    """Return the content of `exploration.json`; `variants` has the names in the confirming scenario, by label."""
    assert scenario.explore is not None

    def entries(results: Sequence[RankedConfiguration]) -> list[dict[str, Any]]:
        return [
            {
                "name": result.label,
                "of": result.name,
                "kind": result.kind,
                "tuned": result.tuned,
                "configuration": str(result.configuration),
                "changes": dict(result.configuration.changes),
                **asdict(result.tried),
                "tail_s": tails_s.get(result.configuration.key, result.tried.tail_s),
            }
            for result in results
        ]

    work, recorded = step_work(scenario), recorded_work(scenario)
    errors = model_errors_of(scenario)
    alike = indistinguishable_from_best(found, errors) if errors else []
    return {
        "scenario": scenario.name,
        "work": asdict(work) if work else None,
        "recorded": asdict(recorded) if recorded else None,
        "combinations": found.combinations,
        "tried": found.tried,
        "indifferent": dict(found.indifferent),
        "kept": list(found.kept),
        "model_errors": asdict(errors) if errors else None,
        "near": {"count": len(alike), "first": entries(alike[: scenario.explore.candidates])},
        "confirm": shlex.join(["testbed", "explore", str(folder / SCENARIO), "-o", str(folder), "--confirm"]),
        "sensitivity": sensitivity_document(found.sensitivity),
        "infeasible": [
            {"count": count, **asdict(found.examples[name])} for name, count in found.infeasible.items()
        ],
        "compared": [
            {**entry, "variant": variants.get(entry["name"])} for entry in entries(found.compared(SHOWN))
        ],
        "pareto": entries(found.pareto),
        "fitting": entries(found.fitting),
        "short_queues": short_queues(scenario.topology.resolve()),
        "rungs": [],
        "agreement": None,
    }


SCENARIO, TRIED, RESULT = "scenario.yaml", "tried.jsonl", "exploration.json"


class SearchLog:
    """The folder of a search, created if necessary; raises ConfigError if the folder has another search."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder = folder
        text = scenario.to_yaml()
        make_folder(folder, there=True)
        file = folder / SCENARIO
        if file.exists() and file.read_text() != text:
            raise option_error("--output", f"{folder} holds the search of another scenario", "another folder")
        lines = folder / TRIED
        if lines.exists() and changed_ns(scenario.workload) > lines.stat().st_mtime_ns:
            found = f"{folder} holds the search of a trace that has changed since"
            raise option_error("--output", found, "another folder")
        file.write_text(text)
        self._lines = JsonlLog(lines)

    def close(self) -> None:
        """Close the log."""
        self._lines.close()

    def known(self) -> dict[str, Evaluation | Infeasible]:
        """Return the results of earlier searches, by configuration."""
        found: dict[str, Evaluation | Infeasible] = {}
        for entry in self._lines.known:
            made = Evaluation(**entry["fits"]) if "fits" in entry else Infeasible(**entry["misfit"])
            found[Configuration(entry["changes"]).key] = made
        return found

    def note(self, configuration: Configuration, tried: Evaluation | Infeasible) -> None:
        """Append a result."""
        kind = "fits" if isinstance(tried, Evaluation) else "misfit"
        self._lines.add({"changes": dict(configuration.changes), kind: asdict(tried)})
