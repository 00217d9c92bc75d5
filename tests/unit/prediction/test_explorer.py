"""The explorer: what fits, steps compared at the same sequences, what is best, and clear refusals."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.experiments.confirmation import agreement, confirmation, kendall_tau
from testbed.cli.experiments.explore import SearchLog, explore
from testbed.cli.main import app
from testbed.measure.results.result import Variant
from testbed.net.virtual.kernel_image import CACHE_VARIABLE
from testbed.prediction.closed_form import Screener
from testbed.prediction.executors import Processes, WorkStopped
from testbed.prediction.search import (
    Configuration,
    Evaluation,
    Infeasible,
    NothingFits,
    Search,
    SearchProgress,
    evaluate,
    evaluate_tail_s,
    search_space_of,
)
from testbed.prediction.search.evaluation import short_name
from testbed.prediction.search.exploration import RankedConfiguration
from testbed.prediction.search.space import Space, own_values, tuned_space
from testbed.prediction.step_flops import step_work
from testbed.prediction.step_prediction import predict_step
from testbed.show.report.exploration_findings import pair_rows
from testbed.spec.catalogue import baselines
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.units import time_text
from testbed.workload.job.job import job_of
from tests.unit.show.report_run import measured_variant

SCENARIO: dict[str, Any] = {
    "name": "search",
    "topology": {
        "name": "pair",
        "buildings": {
            "east": {"hosts": 2, "nic": {"rate": "400 Gbit/s"}},
            "west": {"hosts": 2, "nic": {"rate": "400 Gbit/s"}},
        },
        "wan": [{"a": "east", "b": "west", "rate": "100 Gbit/s", "delay": "1 ms"}],
    },
    "workload": {
        "model": {
            "dim": 1024,
            "n_layers": 8,
            "n_heads": 8,
            "n_kv_heads": 8,
            "ffn_dim": 4096,
            "vocab_size": 1024,
        },
        "accelerator": "h100",
        "sequence_length": 4096,
        "parallelism": {"data_parallel_replicate_degree": 4},
        "schedule": {"microbatches": 4},
    },
    "policy": "shortest",
    "explore": {
        "space": {
            "workload.parallelism.data_parallel_replicate_degree": [1, 2, 4],
            "workload.parallelism.pipeline_parallel_degree": [1, 2, 4],
            "workload.parallelism.placement": ["production", "crosspipe"],
        },
    },
}


def written(tmp_path: Path, **explore: Any) -> Path:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({**SCENARIO, "explore": {**SCENARIO["explore"], **explore}}))
    return file


def test_all_that_fit_are_tried_and_the_quickest_is_first(tmp_path: Path) -> None:
    told: list[SearchProgress] = []
    found = Search(load_scenario(written(tmp_path)), told.append).run()
    assert (found.combinations, found.tried) == (18, 18)
    assert [standing.done for standing in told] == sorted(standing.done for standing in told)
    assert told[-1].done <= told[-1].planned
    assert told[-1].best == (found.best.configuration, found.best.tried)
    assert len(found.fitting) == 6  # degrees of 1 x 4, 2 x 2 and 4 x 1
    assert found.infeasible == {"workload.parallelism": 12}
    times = [result.tried.step_time_s for result in found.fitting]
    assert times == sorted(times)
    assert found.best is found.fitting[0]
    assert [result.label for result in found.baselines] == [
        *("production", "production tuned", "atlas", "atlas tuned"),
        *("crosspipe", "crosspipe tuned", "arnold", "arnold tuned"),
    ]
    assert [result.label for result in found.single] == ["only placement"]
    assert found.single[0].tried.step_time_s == pytest.approx(times[0])
    assert found.pareto[0] is found.best
    assert found.sensitivity is not None
    assert found.sensitivity.best_s == times[0]
    assert found.sensitivity.first_s == found.baselines[0].tried.step_time_s
    assert found.sensitivity.taken[("degrees", "degrees")] is not None
    crossing = [result.tried.wan_bytes for result in found.pareto]
    assert crossing == sorted(set(crossing), reverse=True)


def test_a_baseline_is_tuned_in_what_it_chooses_and_in_nothing_else(tmp_path: Path) -> None:
    space = {**SCENARIO["explore"]["space"], "policy": ["ecmp", "te"], "workload.schedule.chunks": [1, 2]}
    scenario = load_scenario(written(tmp_path, space=space, baselines=list(baselines())))
    found = Search(scenario).run()
    tuned = {result.name: result for result in found.baselines if result.tuned}
    for name, entry in baselines().items():
        own = tuned_space(entry, space)
        assert "policy" not in own.values
        assert "workload.schedule.chunks" not in own.values
        every = [evaluate(scenario, one) for one in own]
        times = [one.step_time_s for one in every if isinstance(one, Evaluation)]
        assert tuned[name].tried.step_time_s == min(times)
        kept = {path: value for path, value in entry["changes"].items() if path not in own.values}
        assert kept.items() <= tuned[name].configuration.changes.items()
    given = {result.name: result for result in found.baselines if not result.tuned}
    assert all(tuned[name].tried.step_time_s <= given[name].tried.step_time_s for name in given)
    assert tuned["production"].tried.step_time_s < given["production"].tried.step_time_s
    own = tuned_space(baselines()["crosspipe"], space)
    assert own.values["workload.schedule.name"] == ["CrossUDSub", "CrossUD", "CrossWave"]
    assert own.base == {"workload.parallelism.placement": "crosspipe", "policy": "ecmp"}


def test_without_a_space_all_is_searched_with_the_scenarios_own_values_among_it(tmp_path: Path) -> None:
    document = {**SCENARIO, "explore": {"tries": 12}}
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump(document))
    scenario = load_scenario(file)
    space = search_space_of(scenario, "whole").space
    unsaid = space.keys() - own_values(scenario, space).keys()  # of these "ring" is what it is unless said
    assert {path.rpartition(".")[2] for path in unsaid} == {"data_parallel_shard", "tensor_parallel"}
    for path, values in space.items():
        for value in values:
            scenario.changed({path: value}, path)  # each is a value that the scenario takes
    assert Space(space, {}).size > 10**9
    found = Search(scenario).run()
    assert found.random is not None
    assert found.best.tried.step_time_s <= found.random.tried.step_time_s
    assert found.tried < 400
    own = load_scenario(written(tmp_path, whole=True))
    mixed = search_space_of(own, "own").space
    assert mixed.keys() == space.keys()
    assert mixed["workload.parallelism.placement"] == ("production", "crosspipe")


def test_a_process_that_was_killed_is_told_in_words(tmp_path: Path) -> None:
    space = {
        **SCENARIO["explore"]["space"],
        "policy": ["ecmp", "te"],
        "transport.congestion_control": ["reno", "bbr"],
    }

    def kill(configuration: Configuration, tried: object) -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it has gone already
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()

    search = Search(load_scenario(written(tmp_path, space=space)), found=kill, engine=Processes(2))
    with pytest.raises(WorkStopped, match="was killed, perhaps for lack of memory"):
        search.run()


def test_planners_of_unlike_accelerators_have_to_be_named(tmp_path: Path) -> None:
    usual = load_scenario(written(tmp_path)).explore
    assert usual is not None
    assert usual.baselines == ("production", "atlas", "crosspipe", "arnold")
    assert load_scenario(written(tmp_path, baselines=["metis"])).explore is not None


def test_what_every_baseline_tunes_says_why() -> None:
    for entry in baselines().values():
        for knob in entry["tunes"].values():
            assert knob["source"].startswith(("ours", "arXiv:", "USENIX ATC "))


def test_of_what_makes_no_difference_the_scenarios_own_is_kept_and_told(tmp_path: Path) -> None:
    """Which windows go by losses changes nothing on a clean network: 36 groups of equal time, one answer."""
    space = {
        **SCENARIO["explore"]["space"],
        "transport.congestion_control": ["reno", "cubic"],
        "policy": ["ecmp", "wcmp", "shortest"],
    }
    for tries in (500, 24):
        found = Search(load_scenario(written(tmp_path, space=space, tries=tries))).run()
        changes = found.best.configuration.changes
        assert (changes["transport.congestion_control"], changes["policy"]) == ("cubic", "shortest")
        assert found.indifferent == {"transport.congestion_control": "cubic", "policy": "shortest"}
        assert set(found.kept) == found.indifferent.keys()
        times = [result.tried.step_time_s for result in found.distinct]
        assert len(times) == len(set(times)) >= 3
        assert [result.tried for result in found.compared(2)[-2:]] == [
            one.tried for one in found.distinct[:2]
        ]


def test_pacing_is_told_from_windows(tmp_path: Path) -> None:
    """What BBR sends takes turns with others' packets, what others send at once is through before theirs."""
    space = {"transport.congestion_control": ["reno", "bbr", "cubic"]}
    apart = ["workload.parallelism={data_parallel_replicate_degree: 2, pipeline_parallel_degree: 2}"]
    apart += ["workload.parallelism.placement=crosspipe"]
    found = Search(load_scenario(written(tmp_path, space=space), apart)).run()
    assert [one.configuration.changes["transport.congestion_control"] for one in found.fitting] == [
        "cubic",
        "reno",
        "bbr",
    ]
    reno, cubic, bbr = (one.tried.step_time_s for one in found.fitting)
    assert reno == cubic < bbr


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    space = {**SCENARIO["explore"]["space"], "workload.schedule.name": ["GPipe", "1F1B", "ZBH1"]}
    scenario = load_scenario(written(tmp_path, space=space))
    kept: list[str] = []
    one = Search(scenario).run()
    two = Search(scenario, found=lambda some, _: kept.append(some.key), engine=Processes(2)).run()
    assert one == two
    assert len(kept) == len(set(kept)) >= one.tried


def test_no_step_is_shorter_than_its_computing(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path))
    work, found = step_work(scenario), Search(scenario).run()
    assert work is not None
    assert work.tokens == 16 * 4096
    # 8 layers of 4 * 1024^2 + 3 * 1024 * 4096 and the output's 1024^2 weights, six operations each a token
    flops = 6 * (8 * (4 * 1024**2 + 3 * 1024 * 4096) + 1024**2) * work.tokens
    assert work.computing_s == pytest.approx(flops / 4 / (989e12 * work.utilisation), rel=1e-3)
    assert all(result.tried.step_time_s > work.computing_s for result in found.fitting)
    assert work.model_flops_utilisation(2 * work.computing_s) == pytest.approx(work.utilisation / 2)


def test_losses_make_steps_longer_and_tails_longer_still(tmp_path: Path) -> None:
    plain = load_scenario(written(tmp_path))
    lost = plain.changed({"topology.wan.0.loss": "2 %"}, "lossy")
    stages = Configuration(
        {
            "workload.parallelism.data_parallel_replicate_degree": 1,
            "workload.parallelism.pipeline_parallel_degree": 4,
        }
    )
    clean, lossy = evaluate(plain, stages), evaluate(lost, stages)
    assert isinstance(clean, Evaluation)
    assert isinstance(lossy, Evaluation)
    assert evaluate_tail_s(plain, (stages, clean)) == clean.tail_s == clean.step_time_s < lossy.step_time_s
    tail_s = evaluate_tail_s(lost, (stages, lossy))
    assert lossy.tail_s is None  # a hundred steps, of what is shown alone
    assert tail_s is not None
    assert lossy.step_time_s < tail_s


def test_tails_are_told_of_what_is_shown_where_packets_are_lost(tmp_path: Path) -> None:
    degrees = "workload.parallelism.data_parallel_replicate_degree"
    stages = "workload.parallelism.pipeline_parallel_degree"
    file = written(tmp_path, space={degrees: [1, 2], stages: [2, 4]}, baselines=["production"])
    small = ["workload.model.dim=128", "workload.model.ffn_dim=256", "workload.sequence_length=512"]
    lost = load_scenario(file, ["topology.wan.0.loss=0.5 %", *small])
    document = explore(lost, str(file), tmp_path / "explored", lambda standing: None, Processes()).document
    for row in pair_rows([{**row, "measured": None} for row in document["compared"]]):
        assert row["tail_s"] > row["step_time_s"]
    best = next(row for row in document["compared"] if row["kind"] == "best")
    one = Configuration(best["changes"]), Evaluation(best["step_time_s"], None, 0, None)
    assert best["tail_s"] == evaluate_tail_s(lost, one)


def test_the_front_is_of_time_and_bytes(tmp_path: Path) -> None:
    found = Search(load_scenario(written(tmp_path))).run()
    shape = found.fitting[0].configuration

    def result(step_time_s: float, wan_bytes: int) -> RankedConfiguration:
        return RankedConfiguration(shape, Evaluation(step_time_s, None, wan_bytes, None))

    some = [result(1.0, 10), result(1.1, 10), result(1.2, 20), result(1.3, 5), result(1.4, 30)]
    assert replace(found, fitting=some).pareto == [some[0], some[3]]


def test_steps_have_the_same_sequences(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path))
    degree = "workload.parallelism.data_parallel_replicate_degree"
    stages = "workload.parallelism.pipeline_parallel_degree"
    alone = evaluate(scenario, Configuration({degree: 1, stages: 4}))
    said = evaluate(scenario, Configuration({degree: 1, stages: 4, "workload.schedule.microbatches": 16}))
    assert isinstance(alone, Evaluation)
    assert alone == said
    fewer = evaluate(scenario, Configuration({degree: 1, stages: 4, "workload.schedule.microbatches": 8}))
    assert fewer == Infeasible(
        "workload.schedule.microbatches", "8 sequences in a step", "16, the scenario's"
    )


def test_what_does_not_fit_in_memory_is_left_out_or_refused_in_one_line(tmp_path: Path) -> None:
    some = Search(load_scenario(written(tmp_path, memory="1.5 GB"))).run()
    assert some.infeasible["explore.memory"] == 2  # four replicas, each of the whole model
    with pytest.raises(
        NothingFits, match=r"because of explore.memory .one has .* GB, expected at most 0.1 GB"
    ):
        Search(load_scenario(written(tmp_path, memory="100 MB"))).run()
    ran = CliRunner().invoke(
        app, ["explore", str(written(tmp_path, memory="100 MB")), "-o", str(tmp_path / "explored")]
    )
    assert isinstance(ran.exception, ConfigError)
    assert "none of 18 configurations fits" in str(ran.exception)
    assert not (tmp_path / "explored").exists()


def test_controls_of_datagrams_are_searched(tmp_path: Path) -> None:
    controls = ["window", "credits", "swift"]
    scenario = load_scenario(
        written(
            tmp_path,
            space={"transport.kind": ["datagram"], "transport.datagram.control": controls},
            baselines=[],
        )
    )
    found = Search(scenario).run()
    assert (found.combinations, found.tried, len(found.fitting)) == (3, 3, 3)
    slowest = max(found.fitting, key=lambda result: result.tried.step_time_s)
    # a round trip of every message
    assert slowest.configuration.changes["transport.datagram.control"] == "credits"


def test_of_a_large_space_the_best_by_the_closed_form_are_tried(tmp_path: Path) -> None:
    whole = Search(load_scenario(written(tmp_path))).run()
    few = Search(load_scenario(written(tmp_path, tries=4)), at_random=False).run()
    assert (few.combinations, few.tried, len(few.fitting)) == (18, 4, 4)
    assert few.best.tried == whole.best.tried
    assert not few.infeasible  # what does not fit is not tried at all
    assert whole.random is None
    many = Search(load_scenario(written(tmp_path, tries=17))).run()
    assert many.random is not None
    assert many.random.name == "random search"
    assert many.random.tried.step_time_s >= many.best.tried.step_time_s
    assert many.random in many.compared(1)


def test_the_first_that_fits_the_bound_and_screening_are_told(tmp_path: Path) -> None:
    told: list[SearchProgress] = []
    scenario = load_scenario(written(tmp_path, tries=4))
    found, work = Search(scenario, told.append).run(), step_work(scenario)
    assert work is not None
    assert {standing.least_s for standing in told} == {work.computing_s}
    assert all(
        standing.first is not None for standing in told
    )  # a baseline as given, before anything is screened
    first, best = told[0], told[-1]
    assert first.first is not None
    assert first.first[0].changes["workload.parallelism.placement"] == "production"
    assert first.best is None
    assert best.first == first.first
    least = "at least 33.61 ms for compute alone"
    assert first.best_words == least
    assert best.best_words == f"best so far {time_text(found.best.tried.step_time_s)} ({least})"
    assert first.first_words.startswith("placement production, ")
    assert first.first_words.endswith(f" a step ({least})")
    places = [number for number, standing in enumerate(told) if standing.screened is not None]
    assert told[places[0]].doing == "screening by the closed form, 0 so far"
    tried = [number for number, standing in enumerate(told) if standing.best is not None]
    assert 0 < places[0] < tried[0]
    assert told[-1].doing == "trying configurations"


def test_the_command_tells_the_first_that_fits_on_one_line_without_a_terminal(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", str(tmp_path / "explored")])
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("first feasible one"))
    assert re.fullmatch(
        r"first feasible one after [\d.,]+ m?s: placement production, .*, [\d.]+ ms a step "
        r"\(at least [\d.]+ ms for compute alone\)",
        line,
    )
    assert "first feasible one" not in ran.stdout


def test_a_table_in_a_pipe_breaks_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stdout() -> str:
        ran = CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", str(tmp_path / "explored")])
        return str(ran.stdout)

    name = "best 2: data_parallel_replicate 1, pipeline_parallel 4"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in stdout()
    monkeypatch.setenv("COLUMNS", "60")
    assert name not in stdout()  # who says how many gets them


def test_what_is_found_at_random_is_of_all_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a closed form that has the slowest first three at random find what a search of three does not."""
    step_s = Screener.step_s

    def upside_down(self: Screener, changes: Mapping[str, Any]) -> float | None:
        seconds = step_s(self, changes)
        return None if seconds is None else -seconds

    monkeypatch.setattr(Screener, "step_s", upside_down)
    scenario = load_scenario(written(tmp_path, tries=3, baselines=[]), ["seed=3"])
    guided = Search(scenario, at_random=False).run()
    assert guided.random is None
    both = Search(scenario).run()
    assert both.random is not None
    assert both.random.tried.step_time_s < guided.best.tried.step_time_s
    assert both.best.tried == both.random.tried
    assert both.best.configuration == both.random.configuration
    luck, first, second = both.compared(2)[-3:]
    assert (luck.name, luck.kind) == ("random search", "random")
    assert (first.name, first.tried) == ("best 1", both.random.tried)
    assert (second.name, second.tried) == ("best 2", guided.best.tried)
    assert both.tried > guided.tried
    assert not both.infeasible  # what does not fit of those at random was not chosen


def test_what_the_closed_form_does_not_tell_apart_does_not_fill_the_budget(tmp_path: Path) -> None:
    # with one replica how replicas' all-reduces go makes no difference, and such are the quickest by the closed form
    space = {
        **SCENARIO["explore"]["space"],
        "workload.parallelism.collectives.data_parallel_replicate": [
            "ring",
            "hierarchical",
            "bidirectional_ring",
            "double_tree",
        ],
    }
    scenario = load_scenario(written(tmp_path, space=space, tries=4, baselines=[]))
    screener = Screener(scenario)
    tried: list[Configuration] = []
    Search(scenario, found=lambda one, _: tried.append(one)).run()
    times = {screener.step_s(one.changes) for one in Space(space, {})} - {None}
    first = {screener.step_s(one.changes) for one in tried[:4]}
    assert len(first) == min(4, len(times))


def test_the_closed_form_goes_with_the_model(tmp_path: Path) -> None:
    space = {
        **SCENARIO["explore"]["space"],
        "workload.parallelism.data_parallel_shard_degree": [1, 2, 4],
        "workload.parallelism.tensor_parallel_degree": [1, 2],
        "workload.schedule.name": ["GPipe", "1F1B", "ZBH1"],
    }
    scenario = load_scenario(written(tmp_path, space=space))
    screener = Screener(scenario)
    pairs = []
    for values in itertools.product(*space.values()):
        changes = dict(zip(space, values, strict=True))
        tried = evaluate(scenario, Configuration(changes))
        screened = screener.step_s(changes)
        assert (screened is None) == isinstance(tried, Infeasible), changes
        if isinstance(tried, Evaluation) and screened is not None:
            pairs.append((screened, tried.step_time_s))
    assert len(pairs) >= 50
    assert screener.step_s({"workload.schedule.name": "1F1B", "workload.schedule.chunks": 2}) is None
    assert kendall_tau(pairs) > 0.7
    errors = sorted(abs(screened / tried - 1) for screened, tried in pairs)
    assert errors[len(errors) // 2] < 0.15


def test_the_closed_form_knows_by_which_algorithm_shards_gather(tmp_path: Path) -> None:
    algorithms = ["ring", "hierarchical", "far_first", "near_first", "direct", "auto"]
    path = "workload.parallelism.collectives.data_parallel_shard"
    sharded = "workload.parallelism={data_parallel_shard_degree: 4}"
    scenario = load_scenario(written(tmp_path, space={path: algorithms}), [sharded])
    screener = Screener(scenario)
    screened, tried = {}, {}
    for algorithm in algorithms:
        found = evaluate(scenario, Configuration({path: algorithm}))
        assert isinstance(found, Evaluation)
        tried[algorithm] = found.step_time_s
        here = screener.step_s({path: algorithm})
        assert here is not None
        assert here == screener.step_s({path.rpartition(".")[0]: {"data_parallel_shard": algorithm}})
        screened[algorithm] = here
    assert screened["auto"] == screened["hierarchical"] < screened["ring"]
    assert min(screened, key=screened.__getitem__) in (min(tried, key=tried.__getitem__), "auto")
    assert kendall_tau([(screened[name], tried[name]) for name in algorithms]) > 0.5


def test_a_configuration_is_shown_by_what_differs() -> None:
    changes = {
        "workload.parallelism.pipeline_parallel_degree": 8,
        "workload.schedule.name": "ZBH1",
        "policy": "te",
    }
    assert str(Configuration(changes)) == "pipeline_parallel 8, schedule ZBH1, policy te"


def test_no_two_paths_have_the_same_short_name(tmp_path: Path) -> None:
    """Classes of distance have the same settings, degrees and collectives go over the same dimensions."""
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump({**SCENARIO, "explore": {}}))
    space = search_space_of(load_scenario(file), "whole").space
    assert "transport.stripes.same_region.connections" in space
    paths = [*space, "workload.algorithms", "workload.algorithms.dp", "topology.wan.0.delay"]
    paths += ["topology.wan.1.delay", "workload.parallelism.collectives"]
    names = [short_name(path) for path in paths]
    assert sorted(names) == sorted(set(names))
    changes = {
        "transport.stripes.same_region.connections": 4,
        "workload.parallelism.collectives.data_parallel_shard": "ring",
        "workload.parallelism.data_parallel_shard_degree": 2,
    }
    assert str(Configuration(changes)) == (
        "same_region connections 4, collectives data_parallel_shard ring, data_parallel_shard 2"
    )


def test_what_is_known_is_not_tried_again(tmp_path: Path) -> None:
    tried: list[Configuration] = []
    search = Search(
        load_scenario(written(tmp_path)), found=lambda configuration, _: tried.append(configuration)
    )
    search.run()
    assert len(tried) == len(search.known)
    search.run()
    assert len(tried) == len(search.known)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "a mapping of paths to lists"),
        ({"space": {"policy": []}}, "for policy a list of one or more values"),
        ({"space": {"policy": ["te", "te"]}}, "for policy each value once; 'te' is repeated"),
        ({"space": {"ranks": [2]}}, "paths of what configurations may differ in"),
        ({"baselines": ["productoin"]}, "production"),
        ({"baselines": ["atlas", "atlas"]}, "each baseline once"),
    ],
)
def test_a_wrong_search_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_scenario(written(tmp_path, **changes))


def points_of(page: str) -> int:
    """How many points the marks of a page's charts stand for."""
    return sum(map(int, re.findall(r'<circle [^>]*data-points="(\d+)"', page)))


def test_the_command_shows_baselines_and_the_best_and_writes_what_confirms_them(tmp_path: Path) -> None:
    folder = str(tmp_path / "explored")
    ran = CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", folder])
    assert ran.exit_code == 0, ran.output
    for words in (
        "The best: data_parallel_replicate 2, pipeline_parallel 2, placement crosspipe. ",
        " tokens/s, ",
        " sequences/s, MFU ",
        "18 combinations, 18 (all) evaluated with the model, 6 feasible",
        "production",
        "only placement",
        "1.00x",
        "confirm.yaml",
    ):
        assert words in ran.output
    again = CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", folder, "--json"])
    found = json.loads(again.stdout)
    assert found == json.loads((tmp_path / "explored/exploration.json").read_text())
    assert len(found["fitting"]) == 6
    assert [entry["name"] for entry in found["compared"][:10]] == [
        *("production", "production tuned", "atlas", "atlas tuned"),
        *("crosspipe", "crosspipe tuned", "arnold", "arnold tuned"),
        *("only placement", "best 1"),
    ]
    assert found["infeasible"][0]["constraint"] == "workload.parallelism"
    page = (tmp_path / "explored/exploration.html").read_text()
    assert points_of(page) == len(found["fitting"])
    assert "The best: " in page
    assert "Predicted and measured" not in page
    confirms = load_scenario(tmp_path / "explored/confirm.yaml")
    assert confirms.explore is None
    assert confirms.variant_names[0] == "production"
    variants = {entry["name"]: entry["variant"] for entry in found["compared"]}
    assert variants["production"] == "production"
    assert variants["arnold"] == "arnold"
    assert set(filter(None, variants.values())) == set(confirms.variant_names)
    best = job_of(confirms.variant(variants["best 1"]), Scale())
    assert predict_step(best, "ring").step_time_s == pytest.approx(found["fitting"][0]["step_time_s"])


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "explored")
    CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", folder])
    refused = CliRunner().invoke(app, ["explore", str(written(tmp_path, tries=9)), "-o", folder])
    assert "holds the search of another scenario" in str(refused.exception)


def test_a_search_that_was_stopped_goes_on(tmp_path: Path) -> None:
    scenario, folder = load_scenario(written(tmp_path)), tmp_path / "explored"
    with contextlib.closing(SearchLog(folder, scenario)) as keeper:
        whole = Search(scenario, known=keeper.known(), found=keeper.note).run()
    lines = (folder / "tried.jsonl").read_text()
    (folder / "tried.jsonl").write_text(lines[: len(lines) // 2])  # killed in the middle of a line
    tried: list[Configuration] = []
    with contextlib.closing(SearchLog(folder, scenario)) as keeper:
        known = keeper.known()

        def note(configuration: Configuration, one: Evaluation | Infeasible) -> None:
            tried.append(configuration)
            keeper.note(configuration, one)

        again = Search(scenario, known=known, found=note).run()
    assert 0 < len(tried) < len(lines.splitlines())
    assert again == whole
    with contextlib.closing(SearchLog(folder, scenario)) as keeper:
        assert len(keeper.known()) == len(lines.splitlines())


def test_a_scenario_without_a_search_is_refused(tmp_path: Path) -> None:
    plain = yaml.safe_load(written(tmp_path).read_text())
    del plain["explore"]
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(plain))
    refused = CliRunner().invoke(app, ["explore", str(tmp_path / "plain.yaml")])
    assert "a scenario that says what to search" in str(refused.exception)


def test_what_the_model_leaves_out_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unmodelled(scenario: Scenario) -> tuple[str, ...]:
        asked.append(scenario.name)
        return ("events",)

    monkeypatch.setattr("testbed.prediction.search.evaluation.unmodelled", unmodelled)
    folder = tmp_path / "explored"
    refused = CliRunner().invoke(app, ["explore", str(written(tmp_path)), "-o", str(folder)])
    assert "got events, expected a step that the model knows" in str(refused.exception)
    assert len(asked) == 1
    assert not folder.exists()


def test_agreement_of_predicted_and_measured() -> None:
    assert kendall_tau([(1, 10), (2, 20), (3, 30)]) == 1.0
    assert kendall_tau([(1, 30), (2, 20), (3, 10)]) == -1.0
    assert kendall_tau([(1, 10), (2, 30), (3, 20)]) == pytest.approx(1 / 3)
    assert kendall_tau([(1, 10), (1, 20), (2, 30), (3, 40)]) == pytest.approx(5 / 6)  # tau-b, SciPy's: 0.913

    def entry(predicted: float, measured: float, status: str = "trusted") -> Variant:
        return measured_variant("one", measured, status=status, predicted_s=predicted)

    some = [entry(1.1, 1.0), entry(1.9, 2.0), entry(3.0, 3.0), entry(9.0, 1.0, "untrusted")]
    found = agreement(some)
    assert found is not None
    assert (found.median_error, found.worst_error, found.kendall_tau) == pytest.approx((0.05, 0.1, 1.0))
    assert agreement(some[:1]) is None


def test_what_confirmed_an_exploration_is_taken_up_and_shown(tmp_path: Path) -> None:
    folder, file = tmp_path / "explored", str(written(tmp_path))
    CliRunner().invoke(app, ["explore", file, "-o", str(folder)])
    document = json.loads((folder / "exploration.json").read_text())

    def variant(entry: dict[str, Any]) -> dict[str, Any]:
        median = entry["step_time_s"] * 1.02
        return measured_variant(
            entry["variant"],
            median,
            median * 1.01,
            median * 0.99,
            predicted_s=entry["step_time_s"],
            limited_by="computing 90 %",
        ).document()

    measured = [entry for entry in document["compared"] if entry["variant"]]
    confirmed = {
        "schema": 1,
        "scenario": document["scenario"],
        "run_dir": str(folder / "confirmed"),
        "clock": "virtual",
        "scale": {"size_scale": 1.0, "time_dilation": 1.0},
        "dimensionless": [],
        "status": "trusted",
        "variants": list(map(variant, measured)),
    }
    (folder / "confirmed").mkdir()
    (folder / "confirmed/scenario.yaml").write_text((folder / "confirm.yaml").read_text())
    (folder / "confirmed/summary.json").write_text(json.dumps(confirmed))
    ran = CliRunner().invoke(app, ["explore", file, "-o", str(folder), "--confirm"])
    assert "Model error: median 2.0%, worst 2.0%; Kendall's tau" in ran.stdout
    assert "Nothing was measured" not in ran.stdout
    first, second = (line for line in ran.stdout.splitlines() if line.startswith("The best: "))
    assert "a step by the model" in first
    assert "a step by the model" not in second  # measured
    assert json.loads((folder / "exploration.json").read_text())["agreement"]["median_error"] < 0.02
    page = (folder / "exploration.html").read_text()
    assert points_of(page) == len(document["fitting"]) + len(measured)
    for words in (
        "confirmed: trusted",
        "2 % off in the median, 2 % at the worst, Kendall's tau",
        "at 95 % confidence)",
        "Where the model was wrong",
        "-2.0 %",
        "computing 90 %",
    ):
        assert words in page, words
    refused = CliRunner().invoke(app, ["explore", file, "-o", str(folder), "--confirm", "--clock", "real"])
    assert "got another run in" in str(refused.exception)


@pytest.mark.parametrize(
    ("clock", "words"),
    [("vrtual", "got vrtual, expected real or virtual"), ("virtual", "build it once")],
)
def test_what_cannot_be_confirmed_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, words: str
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "none"))
    folder = tmp_path / "explored"
    arguments = ["explore", str(written(tmp_path)), "-o", str(folder), "--confirm", "--clock", clock]
    refused = CliRunner().invoke(app, arguments)
    assert words in str(refused.exception)
    assert not folder.exists()


def test_what_is_the_same_configuration_is_run_once(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, baselines=["production", "crosspipe", "atlas"]))
    found = Search(scenario).run()
    again = replace(found.single[0], name="only schedule")
    confirms = confirmation(scenario, replace(found, single=[*found.single, again]))
    assert confirms.variants["only schedule"] == confirms.variants["only placement"] == "only-placement"
    assert confirms.scenario.variant_names.count("only-placement") == 1
    assert "only-schedule" not in confirms.scenario.variant_names


def test_what_tries_at_random_find_too_is_not_called_after_them(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, baselines=["production", "crosspipe", "atlas"]))
    found = Search(scenario).run()
    luck = replace(found.best, name="random search", kind="random")
    confirms = confirmation(scenario, replace(found, random=luck))
    assert confirms.variants["random search"] == confirms.variants["best 1"] == "best-1"
    assert "random-search" not in confirms.scenario.variant_names


OWN = f"{Path(__file__).parents[1] / 'comm/own_protocol.py'}:Own"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"transport": {"protocol": OWN}}, f"transport.protocol: {OWN}"),
        ({"space": {"transport.protocol": ["eager", OWN]}}, f"transport.protocol: {OWN}"),
        ({"events": [{"at": "1 s", "action": "plane_down", "target": 0, "for": "1 s"}]}, "events"),
    ],
)
def test_what_the_model_does_not_know_is_not_searched(
    tmp_path: Path, more: dict[str, Any], what: str
) -> None:
    content = dict(SCENARIO)
    if "space" in more:
        content["explore"] = {"space": {**SCENARIO["explore"]["space"], **more["space"]}}
    else:
        content |= more
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(content))
    ran = CliRunner().invoke(app, ["explore", str(file), "-o", str(tmp_path / "out")])
    assert isinstance(ran.exception, ConfigError)
    expected = f"search: explore: got {what}, expected a step that the model knows"
    assert expected in str(ran.exception)
    assert not (tmp_path / "out").exists()


def test_a_rival_from_within_the_space_is_not_quicker_than_the_best(tmp_path: Path) -> None:
    """A budget of two finds less than what baselines, each with two of its own, find together."""
    space = {**SCENARIO["explore"]["space"], "workload.schedule.name": ["1F1B", "ZBH1", "CrossUDSub"]}
    space = {**space, "workload.schedule.wan_send_tokens": [False, True], "policy": ["ecmp", "te"]}
    space["workload.parallelism.placement"] = ["production", "atlas", "crosspipe", "arnold"]
    found = Search(load_scenario(written(tmp_path, space=space, tries=2))).run()
    rivals = [result for result in (*found.baselines, *found.single) if result.name != "crosspipe"]
    assert found.best.tried.step_time_s <= min(result.tried.step_time_s for result in rivals)
    assert found.best.configuration.changes.keys() == space.keys()
