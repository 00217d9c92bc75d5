"""What a search has tried, kept in a folder, so that it goes on where it was stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from testbed.errors import BadInput
from testbed.jsonl_log import JsonlLog
from testbed.measure.results.run_directory import make_folder
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible
from testbed.spec.scenario import Scenario
from testbed.workload.job.recorded_trace import changed_ns

SCENARIO, TRIED, RESULT = "scenario.yaml", "tried.jsonl", "exploration.json"


class OtherSearch(BadInput):
    """The folder holds the search of another scenario, or of another trace."""


class Keeper:
    """A search's folder, made where there is none. OtherSearch."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder = folder
        text = scenario.to_yaml()
        make_folder(folder, there=True)
        file = folder / SCENARIO
        if file.exists() and file.read_text() != text:
            raise OtherSearch(f"{folder} holds the search of another scenario")
        lines = folder / TRIED
        if lines.exists() and changed_ns(scenario.workload) > lines.stat().st_mtime_ns:
            raise OtherSearch(f"{folder} holds the search of a trace that has changed since")
        file.write_text(text)
        self._lines = JsonlLog(lines)

    def close(self) -> None:
        """All is written."""
        self._lines.close()

    def known(self) -> dict[str, Evaluation | Infeasible]:
        """What earlier searches tried, by configuration."""
        found: dict[str, Evaluation | Infeasible] = {}
        for entry in self._lines.known:
            made = Evaluation(**entry["fits"]) if "fits" in entry else Infeasible(**entry["misfit"])
            found[Configuration(entry["changes"]).key] = made
        return found

    def note(self, configuration: Configuration, tried: Evaluation | Infeasible) -> None:
        """One more."""
        kind = "fits" if isinstance(tried, Evaluation) else "misfit"
        self._lines.add({"changes": dict(configuration.changes), kind: asdict(tried)})
