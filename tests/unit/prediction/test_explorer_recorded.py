"""Searches of jobs that were recorded: what there is to choose of them, and that the best of all is found."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.experiments.confirmation import confirmation, kendall_tau
from testbed.cli.experiments.explore import SearchLog
from testbed.cli.main import app
from testbed.prediction.closed_form_recorded import RecordedScreener
from testbed.prediction.search import Configuration, Evaluation, Search, evaluate, search_space_of
from testbed.prediction.search.space import Space, own_values
from testbed.show.exchange import export_chakra, load_job
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import load_scenario
from testbed.workload.traces.trace import Collective, Compute, JobTrace
from tests.unit.workload.recorded_jobs import PIPELINE, REPLICATE, SHARD, asked, recorded

MESH = recorded(2, 2, 2)
CROSSED = [0, 4, 1, 5, 2, 6, 3, 7]
SPACE: dict[str, Any] = {
    "workload.placement": ["as_recorded", [PIPELINE, REPLICATE, SHARD], [SHARD, REPLICATE, PIPELINE]],
    "workload.mapping": [CROSSED, "consecutive", "topology_aware"],
    "workload.algorithms.shard": ["ring", "far_first"],
    "algorithms": [["ring"], ["double_tree"]],
    "policy": ["shortest", "ecmp"],
}


def given(folder: Path, **explore: Any) -> Any:
    """A job whose shards lie across two buildings."""
    return asked(
        folder, MESH, workload={"mapping": CROSSED}, explore={"space": SPACE, **explore}, algorithms=["ring"]
    )


def test_what_is_not_the_scripts_is_searched_unless_a_space_says_what(tmp_path: Path) -> None:
    scenario = asked(tmp_path, MESH, workload={"mapping": CROSSED}, explore={})
    space = search_space_of(scenario, "mine").space
    assert space["workload.placement"][0] == "as_recorded"
    assert len(space["workload.placement"]) == 6  # all orders of three kinds
    assert space["workload.mapping"] == (CROSSED, "consecutive", "topology_aware")
    assert "hierarchical" in space["workload.algorithms.shard"]
    assert {"algorithms", "policy", "transport.congestion_control", "transport.kind"} <= space.keys()
    assert not any(path.startswith(("workload.parallelism", "workload.schedule")) for path in space)
    assert not any(path.endswith((PIPELINE, REPLICATE)) for path in space)
    own = own_values(scenario, space)
    assert own["workload.mapping"] == CROSSED
    assert space.keys() - own.keys() == {"workload.algorithms.shard"}  # unsaid: the trace names none
    for path, values in space.items():
        for value in values:
            scenario.changed({path: value}, path)  # each is a value that the scenario takes
    far = asked(tmp_path, MESH, 4, explore={})
    assert search_space_of(far, "mine").space["workload.mapping"][-1] == "by_distance"


def test_a_search_finds_what_trying_all_finds(tmp_path: Path) -> None:
    scenario = given(tmp_path)
    found = Search(scenario).run()
    assert (found.combinations, found.tried, len(found.fitting)) == (72, 72, 72)
    every = [evaluate(scenario, one) for one in Space(SPACE, {})]
    least_s = min(one.step_time_s for one in every if isinstance(one, Evaluation))
    assert found.best.tried.step_time_s == least_s
    few = Search(given(tmp_path, tries=12)).run()
    assert few.tried < 40
    assert few.best.tried.step_time_s == least_s
    assert few.random is not None
    assert few.random.tried.step_time_s >= least_s
    (as_given,) = found.baselines
    assert as_given.name == "as given"
    assert as_given.tried == evaluate(scenario, Configuration({}))
    assert as_given.tried.step_time_s > 1.2 * least_s
    assert [one.label for one in found.single] == ["only placement", "only collectives", "only network"]
    assert found.single[0].tried.step_time_s < as_given.tried.step_time_s
    assert found.indifferent.keys() >= {"policy"}  # one link alone
    assert found.sensitivity is not None
    assert found.sensitivity.first_s == as_given.tried.step_time_s
    confirms = confirmation(scenario, found)
    assert confirms.variants["as given"] == "as-given"
    assert confirms.scenario.variants is not None
    changed = [path for one in confirms.scenario.variants.values() for path in one]
    assert set(changed) == SPACE.keys()  # and no microbatches


def test_traces_of_chakra_are_searched_alike(tmp_path: Path) -> None:
    """Those that are written of a job; kinds are in them."""
    space = {path: SPACE[path] for path in ("workload.placement", "workload.mapping")}
    own = asked(tmp_path, MESH, explore={"space": space}, algorithms=["ring"])
    export_chakra(load_job(tmp_path / "scenario.yaml"), tmp_path / "out")
    document = yaml.safe_load((tmp_path / "out/scenario.yaml").read_text())
    file = tmp_path / "out/again.yaml"
    file.write_text(yaml.safe_dump({**document, "explore": {"space": space}}))
    one, other = (Search(some).run() for some in (own, load_scenario(file)))
    assert other.best.configuration == one.best.configuration
    assert [both.tried for both in other.fitting] == [both.tried for both in one.fitting]


def test_the_closed_form_goes_with_the_model(tmp_path: Path) -> None:
    scenario = given(tmp_path)
    screener = RecordedScreener(scenario)
    pairs = []
    for one in Space({path: values for path, values in SPACE.items() if path != "policy"}, {}):
        tried, step_s = evaluate(scenario, one), screener.step_s(one.changes)
        assert isinstance(tried, Evaluation)
        assert step_s is not None
        pairs.append((step_s, tried.step_time_s))
    apart = [(one, other) for one, other in itertools.combinations(pairs, 2) if one[0] != other[0]]
    agree = sum((one[0] - other[0]) * (one[1] - other[1]) > 0 for one, other in apart)
    assert agree > 0.85 * len(apart)
    assert kendall_tau(pairs) > 0.5
    best = min(pairs)
    assert best[1] < 1.1 * min(step_s for _, step_s in pairs)
    assert screener.step_s({"workload.placement": ["shards"]}) is None
    assert not screener.looks_at("policy")


def test_by_the_closed_form_a_step_takes_what_its_longest_way_does(tmp_path: Path) -> None:
    """Of one gather beside computing: the longer of both; of two streams on one link: what the link carries."""
    gather = Collective("all", "comm", group="all", collective="all_gather", numel=10**8, dtype="int8")
    groups = {"all": (0, 1, 2, 3)}
    for seconds in (1.0, 0.001):
        trace = JobTrace(((Compute("own", duration_s=seconds), gather),) * 4, groups)
        step_s = RecordedScreener(asked(tmp_path, trace)).step_s({"workload.algorithms.collective": "ring"})
        # three quarters of it cross at 25 Gbit/s, and headers
        assert step_s == pytest.approx(max(seconds, 0.75e8 * 8 / 25e9), rel=0.12)
    both = JobTrace(((gather, Collective(**{**vars(gather), "stream": "other"})),) * 4, groups)
    alone_s, both_s = (
        RecordedScreener(asked(tmp_path, one)).step_s({})
        for one in (JobTrace(((gather,),) * 4, groups), both)
    )
    assert alone_s is not None
    assert both_s == pytest.approx(2 * alone_s, rel=0.1)


@pytest.mark.parametrize(
    ("explore", "said"),
    [
        (
            {"space": {"workload.schedule.microbatches": [1, 2]}},
            "explore.space.workload.schedule.microbatches: got .* which the trace determines, expected with trace or "
            "chakra one of workload.placement, workload.mapping, workload.algorithms, workload.tuning",
        ),
        (
            {"space": {"workload.model": ["llama3-8b"]}},
            "explore.space.workload.model: got workload.model, which",
        ),
        ({"memory": "80 GB"}, "explore.memory: got memory with trace .*a trace does not record memory"),
        ({"baselines": ["atlas"]}, r"explore.baselines: got \[atlas\] with trace or chakra"),
    ],
)
def test_what_is_the_scripts_is_refused_by_its_field(
    explore: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        given(tmp_path, **explore)


def test_a_trace_of_other_ranks_is_one_error_and_no_misfits(tmp_path: Path) -> None:
    scenario = given(tmp_path)
    recorded(2, 1, 2).write(tmp_path / "job.json.gz")
    with pytest.raises(ConfigError, match=r"workload.trace: got .*, of 4 ranks, expected a trace of 8 ranks"):
        Search(scenario).run()


def test_the_command_says_what_it_is_held_against_and_goes_on_where_it_was(tmp_path: Path) -> None:
    given(tmp_path, tries=12)
    command = ["explore", str(tmp_path / "scenario.yaml"), "-o", str(tmp_path / "out"), "--jobs", "1"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "x as fast as the job as given" in done.stdout
    assert "at least 10 ms for compute alone" in done.stdout
    assert "Alone, against the job as given: placement" in done.stdout
    assert "parallelism planners (production, atlas, crosspipe, arnold) are not among" in done.stdout
    assert "memory" not in done.stdout
    document = json.loads((tmp_path / "out/exploration.json").read_text())
    assert document["recorded"] == {"source": str(tmp_path / "job.json.gz"), "computing_s": 0.01}
    page = (tmp_path / "out/exploration.html").read_text()
    assert "the job as given" in page
    assert "Memory" not in page
    lines = (tmp_path / "out/tried.jsonl").read_text()
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert again.stdout == done.stdout
    assert (tmp_path / "out/tried.jsonl").read_text() == lines
    confirms = load_scenario(tmp_path / "out/confirm.yaml")
    assert confirms.variants is not None
    assert confirms.variants["as-given"] == {}
    assert confirms.variant("as-given").workload.mapping == tuple(CROSSED)


def test_the_shipped_job_gains_what_its_page_says() -> None:
    scenario = load_scenario("explore/recorded-8b-region")
    best = {
        "workload.mapping": "by_distance",
        "workload.algorithms.shard": "bidirectional_ring",
        "policy": "spray",
    }
    found = [evaluate(scenario, Configuration(changes)) for changes in ({}, best)]
    assert [one.step_time_s for one in found if isinstance(one, Evaluation)] == [
        pytest.approx(3.238, abs=0.001),
        pytest.approx(1.261, abs=0.001),
    ]


def test_another_trace_under_the_same_name_is_another_search(tmp_path: Path) -> None:
    scenario = given(tmp_path)
    SearchLog(tmp_path / "out", scenario).close()
    SearchLog(tmp_path / "out", scenario).close()
    later_ns = (tmp_path / "out/tried.jsonl").stat().st_mtime_ns + 1
    os.utime(tmp_path / "job.json.gz", ns=(later_ns, later_ns))
    with pytest.raises(ConfigError, match="a trace that has changed since"):
        SearchLog(tmp_path / "out", scenario)
