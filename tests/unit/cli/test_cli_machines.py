"""What `testbed run --machines` takes, before anything is reached or built."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.execution.run import parse_machines
from testbed.prediction.dry_run import workloads_of
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def asked_of(asked: str | None, scenario: Scenario) -> list[str]:
    return parse_machines(asked, scenario, workloads_of(scenario, Scale()).values())


def test_names_are_one_for_each_building_in_their_order() -> None:
    scenario = load_scenario(SCENARIOS / "quickstart.yaml")
    assert asked_of(None, scenario) == []
    assert asked_of("alpha, root@beta", scenario) == ["alpha", "root@beta"]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("quickstart", ["events=[{action: rank_kill, target: 3, at: 1 s}]"], "events that stop a rank"),
        (
            "quickstart",
            ["events=[{action: host_pause, target: east2, at: 1 s, for: 1 s}]"],
            "events that stop a rank",
        ),
        ("controller/priority", [], None),
        ("crosspipe", [], "messages that wait for their receivers"),
    ],
)
def test_what_needs_one_machine_is_refused(name: str, settings: list[str], words: str | None) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml", settings)
    if words is None:
        assert asked_of("a,b", scenario) == ["a", "b"]
        return
    with pytest.raises(ConfigError) as refused:
        asked_of("a,b", scenario)
    assert f"command line: --machines: got a,b, expected a scenario without {words}" in str(refused.value)
