"""Packets choose among the best by the model: all for one trial, the better half for longer, until few are left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testbed.cli.experiments.confirmation import WITHIN, candidates, halve_candidates
from testbed.prediction.search import Exploration, Search
from testbed.spec.scenario import Scenario, load_scenario
from tests.unit.prediction.test_explorer import SCENARIO
from tests.unit.show.report_run import measured_variant


def searched(**explore: Any) -> tuple[Scenario, Exploration]:
    space = {
        **SCENARIO["explore"]["space"],
        "topology.wan.0.delay": ["1 ms", "1.02 ms", "1.04 ms", "1.06 ms", "1.08 ms", "1.1 ms", "1.3 ms"],
    }
    scenario = load_scenario(
        {**SCENARIO, "trials": 5, "explore": {"space": space, "baselines": [], **explore}}
    )
    return scenario, Search(scenario).run()


class Network:
    """Takes the longer for a candidate, the better the model has it; `untrusted` are names that nobody can trust."""

    def __init__(self, untrusted: tuple[str, ...] = ()) -> None:
        self.untrusted = untrusted
        self.runs: list[tuple[str, int, list[str]]] = []

    def measure(self, scenario: Scenario, file: Path, folder: Path) -> Any:
        names = list(scenario.variants or ())
        self.runs.append((folder.name, scenario.trials, names))
        return SimpleNamespace(
            variants=[
                measured_variant(
                    name,
                    1 / int(name.removeprefix("candidate-")),
                    status="untrusted" if name in self.untrusted else "trusted",
                )
                for name in names
            ]
        )


def test_the_better_half_goes_on_to_more_trials_until_as_many_are_left_as_are_confirmed(
    tmp_path: Path,
) -> None:
    scenario, found = searched(candidates=6, confirm=1)
    near = candidates(scenario, found)
    assert len(near) == 6
    network = Network()
    chosen, rungs = halve_candidates(scenario, found, tmp_path, network.measure)
    assert [(folder, trials) for folder, trials, _ in network.runs] == [("1", 1), ("2", 3), ("3", 5)]
    assert [len(names) for *_, names in network.runs] == [6, 3, 2]
    assert list(chosen) == [near[5]]  # the last by the model
    first = rungs[0]["candidates"]
    assert [one["name"] for one in first] == [f"candidate-{number}" for number in (6, 5, 4, 3, 2, 1)]
    assert [one["goes_on"] for one in first] == [True] * 3 + [False] * 3
    assert first[0]["predicted_s"] == near[5].tried.step_time_s
    assert first[0]["step_time_s"] == 1 / 6


def test_what_is_untrusted_comes_behind_all_that_is_not(tmp_path: Path) -> None:
    scenario, found = searched(candidates=3, confirm=2)
    near = candidates(scenario, found)
    chosen, _ = halve_candidates(scenario, found, tmp_path, Network(untrusted=("candidate-3",)).measure)
    assert list(chosen) == [near[1], near[0]]


def test_where_no_more_are_candidates_than_are_confirmed_nothing_is_run(tmp_path: Path) -> None:
    scenario, found = searched(candidates=2, confirm=3)
    network = Network()
    chosen, rungs = halve_candidates(scenario, found, tmp_path, network.measure)
    assert (list(chosen), rungs, network.runs) == (candidates(scenario, found), [], [])


def test_what_the_model_has_too_far_behind_is_no_candidate() -> None:
    scenario, found = searched(candidates=1000)
    near = candidates(scenario, found)
    best_s = found.best.tried.step_time_s
    assert 1 < len(near) < len(found.distinct)
    assert all(one.tried.step_time_s <= WITHIN * best_s for one in near)
    assert found.distinct[len(near)].tried.step_time_s > WITHIN * best_s
