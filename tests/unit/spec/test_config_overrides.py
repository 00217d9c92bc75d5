"""A scenario with other values is what a file with those would be, however much of it was looked at before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.prediction.search.evaluation import search_space_of
from testbed.spec import overrides
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.search_space import ExploreSpec

EXPLORED = ("dense-70b-region", "moe-region", "recorded-8b-region")


def explored(name: str) -> tuple[Scenario, ExploreSpec]:
    scenario = load_scenario(Path("scenarios/explore") / f"{name}.yaml")
    return scenario, search_space_of(scenario, name)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are never put together."""
    monkeypatch.setattr(overrides._ScenarioParts, "changed", lambda self, asked: None)


def outcome(scenario: Scenario, changes: Mapping[str, object]) -> object:
    try:
        found = scenario.changed(changes, "a test")
    except ConfigError as error:
        return str(error)
    return found, found.to_data()


@pytest.mark.parametrize("name", EXPLORED)
def test_parts_put_together_are_what_comes_of_the_whole(name: str, request: pytest.FixtureRequest) -> None:
    scenario, explore = explored(name)
    asked = [{path: value} for path, values in explore.space.items() for value in values]
    # of all dimensions the first values, the last ones, and so on
    asked += [
        {path: values[at % len(values)] for path, values in explore.space.items()} for at in range(-3, 3)
    ]
    found = [[outcome(scenario, one) for one in asked] for _ in range(2)]
    request.getfixturevalue("whole")
    assert found[0] == [outcome(scenario, one) for one in asked]
    assert found[1] == found[0]


def test_a_part_that_was_made_is_found_again() -> None:
    scenario, _ = explored("dense-70b-region")
    changes = {"workload.schedule.prefetch": 2, "policy": "te"}
    one, other = scenario.changed(changes, "one"), scenario.changed({**changes, "policy": "ecmp"}, "other")
    assert one.workload is other.workload
    assert one.policy is not other.policy
    assert scenario.changed({"policy": "te"}, "a third").policy is one.policy
    assert load_scenario(Path("scenarios/explore/dense-70b-region.yaml")).changed(changes, "read anew") == one


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload.schedule.prefetch": "many"}, "workload.schedule.prefetch"),
        ({"policy": "tee"}, "policy"),
        ({"transport.stripes.wan.connection": 2}, "transport.stripes.wan"),
        ({"wrokload.schedule.prefetch": 2}, "wrokload"),
        ({"ranks": 1000}, "ranks"),
        # each is sound by itself: what is wrong is the two together
        ({"policy": "ecmp", "transport.sockets": [{"pacing": "planned"}]}, "transport.sockets.0.pacing"),
        ({"preset": "ncc"}, "preset"),
    ],
)
def test_what_is_wrong_is_said_as_of_the_whole(
    changes: Mapping[str, object], field: str, request: pytest.FixtureRequest
) -> None:
    scenario, _ = explored("dense-70b-region")
    with pytest.raises(ConfigError) as raised:
        scenario.changed(changes, "a test")
    assert raised.value.problems[0].field == field
    said = str(raised.value)
    request.getfixturevalue("whole")
    assert outcome(scenario, changes) == said


def test_a_preset_says_something_of_all_parts(request: pytest.FixtureRequest) -> None:
    scenario, _ = explored("dense-70b-region")
    asked: list[Mapping[str, object]] = [{"preset": "ncclx"}, {"preset": "nccl", "policy": "te"}]
    found = [outcome(scenario, one) for one in asked]
    preset = scenario.changed(asked[0], "a test")
    assert preset.transport != scenario.transport
    found.append(outcome(preset, {"policy": "te"}))
    request.getfixturevalue("whole")
    assert found == [*(outcome(scenario, one) for one in asked), outcome(preset, {"policy": "te"})]
