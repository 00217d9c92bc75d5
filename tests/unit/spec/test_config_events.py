"""Events and failure processes as scenarios say them: what is refused, what is drawn."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from pydantic import ValidationError

from testbed.spec.errors import ConfigError
from testbed.spec.events import ACTIONS, EventSpec, targets_of
from testbed.spec.failure_processes import FailureSpec, drawn_events
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology

REPOSITORY = Path(__file__).parents[3]
TWO = load_topology(REPOSITORY / "topologies" / "two-buildings.yaml").resolve()
HOSTS = [host.name for host in TWO.hosts]
NEEDED: dict[str, dict[str, Any]] = {
    "degrade": {"set": {"loss": "1 %"}},
    "nic_degrade": {"set": {"rate": "1 Gbit/s"}},
    "nic_loss": {"loss": "1 %"},
    "rank_slow": {"factor": 2},
    "rank_mismatch": {"what": "size"},
    "io_slow": {"delay": "10 ms"},
}


def event(**values: Any) -> EventSpec:
    return EventSpec.model_validate({"at": "1 s", **values})


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_taken_with_what_it_needs(action: str) -> None:
    known, _ = targets_of(action, TWO, HOSTS)
    made = event(action=action, target=known[0], **NEEDED.get(action, {}))
    assert list(made.target_findings(TWO, HOSTS)) == []
    assert EventSpec.model_validate(made.to_data()) == made


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"action": "rank_slow", "target": 0}, "what rank_slow changes, such as factor: 2"),
        (
            {"action": "link_down", "target": "x", "factor": 2},
            "got factor with link_down, expected it only with rank_slow",
        ),
        (
            {"action": "nic_down", "target": "x", "loss": "1 %"},
            "loss with nic_down, expected it only with nic_loss",
        ),
        ({"action": "rank_kill", "target": 0, "what": "size"}, "it only with rank_mismatch"),
        ({"action": "rank_slow", "target": 0, "factor": 0.5}, "a number from 1 to 1000"),
        (
            {"action": "nic_loss", "target": "x", "loss": "1 %", "direction": "a_to_b"},
            "out, in or both of a card",
        ),
        (
            {"action": "degrade", "target": "x", "set": {"loss": "1 %"}, "direction": "out"},
            "a_to_b, b_to_a or both of a link",
        ),
        (
            {"action": "nic_degrade", "target": "x", "set": {"jitter": "1 ms"}},
            "jitter of a card, expected one of: rate, delay, loss",
        ),
        ({"action": "rank_skip", "target": 0, "for": "1 s"}, "rank_skip with for or times"),
        ({"action": "nic_down", "target": "x", "random": {"from": "1 s", "to": "2 s"}}, "at and random"),
        ({"action": "rank_mismatch", "target": 0, "what": "colour"}, "a mismatch: size, type, order"),
    ],
)
def test_what_does_not_belong_together_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        event(**values)


def test_something_says_when() -> None:
    with pytest.raises(ValidationError, match="when: at, step or random"):
        EventSpec.model_validate({"action": "nic_down", "target": "east1"})
    with pytest.raises(ValidationError, match="more than 2 s"):
        EventSpec.model_validate(
            {"action": "nic_down", "target": "east1", "random": {"from": "2 s", "to": "1 s"}}
        )


def test_a_random_moment_goes_by_the_seed_and_the_place() -> None:
    drawn = EventSpec.model_validate(
        {"action": "nic_down", "target": "east1", "random": {"from": "1 s", "to": "3 s"}}
    )
    moments = {(seed, index): drawn.after_s(seed, index) for seed in range(20) for index in range(3)}
    assert all(1 <= moment <= 3 for moment in moments.values())
    assert len(set(moments.values())) == len(moments)
    assert drawn.after_s(4, 1) == moments[4, 1]


def scenario(more: str, folder: Path) -> Path:
    path = folder / "s.yaml"
    path.write_text(
        f"name: s\ntopology: {REPOSITORY}/topologies/two-buildings.yaml\n"
        f"workload: {{model: gpt2-124m, accelerator: h100}}\n"
        f"trials: 3\n{more}\n"
    )
    return path


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "events: [{step: 3, action: nic_down, target: east1}]",
            "events.0.step: got 3, expected one of 3 measured steps",
        ),
        ("events: [{at: 1 s, action: nic_down, target: east9}]", "events.0.target: got 'east9'"),
        (
            "events: [{at: 1 s, action: rank_slow, target: 99, factor: 2}]",
            "events.0.target: got 99, expected a rank",
        ),
        ("failures: [{what: rank_kill}]", "failures.0.mtbf: got nothing, expected mtbf with distribution"),
        ("failures: [{what: rank_skip, mtbf: 1 h}]", "failures.0.what: got 'rank_skip'"),
        (
            "failures: [{what: rank_kill, mtbf: 1 h, targets: [88]}]",
            "failures.0.targets.0: got 88, expected a rank",
        ),
        ("failures: [{what: rank_kill, mtbf: 1 us}]", "failures.0.mtbf: got 1 us, expected at least 36 ms"),
        ("failures: [{what: nic_loss, mtbf: 1 h}]", "failures.0.loss: got nothing"),
        (
            "failures: [{what: rank_kill, mtbf: 1 h, trace: x.csv}]",
            "failures.0.trace: got trace with exponential",
        ),
        ("failures: [{what: rank_kill, distribution: trace, trace: x.csv}]", "x.csv: No such file"),
    ],
)
def test_a_scenario_names_what_is_wrong(more: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scenario(scenario(more, tmp_path))
    assert said in " ".join(str(caught.value).split())


def failures(**values: Any) -> FailureSpec:
    return FailureSpec.model_validate({"what": "rank_kill", "mtbf": "18 min", "until": "100 h", **values})


def test_components_fail_by_themselves_at_their_rate() -> None:
    found = drawn_events([failures(**{"for": "3 min"})], TWO, HOSTS, seed=1)
    assert [event.at_s for event in found] == sorted(event.at_s or 0.0 for event in found)
    gaps = []
    for rank in range(len(HOSTS)):
        own = [event for event in found if event.target == rank]
        last_s = 0.0
        for each in own:
            assert each.for_s == 180
            assert each.at_s is not None
            assert each.at_s >= last_s
            gaps.append(each.at_s - last_s)
            last_s = each.at_s + 180
    assert len(gaps) > 1000
    assert mean(gaps) == pytest.approx(18 * 60, rel=0.1)  # three standard deviations


def test_what_does_not_return_fails_once_and_others_change_nothing_for_it() -> None:
    every = drawn_events([failures()], TWO, HOSTS, seed=1)
    assert sorted(int(event.target) for event in every) == list(range(len(HOSTS)))
    (alone,) = drawn_events([failures(targets=[2])], TWO, HOSTS, seed=1)
    assert alone.at_s == next(event.at_s for event in every if event.target == 2)
    (other,) = drawn_events([failures(targets=[2])], TWO, HOSTS, seed=2)
    assert other.at_s != alone.at_s


def test_recorded_failures_come_as_recorded(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("time_s,target,for_s\n5,east2,\n1.5,west1,2\n900,east1,1\n")
    more = (
        "failures: [{what: nic_down, distribution: trace, trace: log.csv, for: 7 s, until: 10 s}]\n"
        "events: [{at: 1 s, action: link_down, target: east-west-0}]"
    )
    found = load_scenario(scenario(more, tmp_path)).all_events
    assert [(event.action, event.at_s, event.target, event.for_s) for event in found] == [
        ("link_down", 1.0, "east-west-0", None),
        ("nic_down", 1.5, "west1", 2.0),
        ("nic_down", 5.0, "east2", 7.0),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,what\n1,east1\n", "the columns time_s, target"),
        ("time_s,target\n1,east1\nx,east1\n", "also in line 3"),
        ("time_s,target\n-1,east1\n", "also in line 2"),
        ("time_s,target\n1,nobody\n", "for 'nobody': a host that has a rank"),
    ],
)
def test_a_bad_record_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_scenario(scenario("failures: [{what: nic_down, distribution: trace, trace: log.csv}]", tmp_path))
