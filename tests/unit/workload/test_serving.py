"""Requests on inference nodes: topology, arrivals, batches, bytes by formula, queues, latencies, capacity."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from testbed.documents import from_json, to_json
from testbed.measure.results.serving_result import Serving
from testbed.prediction.request_metrics import (
    ServedStep,
    at_share,
    request_times,
    served_step,
    serving_figures,
)
from testbed.prediction.step_prediction import predict_step
from testbed.show.exchange import ImportDefaults, export_graphml, import_topology
from testbed.show.exchange.topology_export import list_losses
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.topology import load_topology
from testbed.workload.dependency_tracker import DependencyTracker
from testbed.workload.job.endpoint_resolution import sum_pairs
from testbed.workload.job.job import Job, job_of
from testbed.workload.plan import QUEUE, Computing, JobPlan
from testbed.workload.serving.frontend import draw_arrivals, form_batches, read_arrivals
from tests.queueing import (
    md1_wait_s,
    mdc_wait_s,
    recent_wait_s,
    recent_waits_s,
    waits_s,
)

SCENARIOS = Path(__file__).parents[3] / "scenarios/inference"
CARDS, SAMPLES, TABLES, DIM, POOLING, REQUESTS = 6, 4, 20, 8, 3, 30
RECOMMENDATION = {
    "tables": TABLES,
    "rows": 1000,
    "dim": DIM,
    "pooling": POOLING,
    "samples": SAMPLES,
    "features": 5,
    "dense_flops": 1e8,
    "dense_parameters": 1000,
}


def scenario(**inference: Any) -> Scenario:
    """One node in a building `east`, and a host `users1` in another."""
    given: dict[str, Any] = {"rate": 5000, "requests": REQUESTS, **inference}
    if "generation" not in given:
        given = {"recommendation": RECOMMENDATION, **given}
    return load_scenario(
        {
            "name": "serving",
            "topology": {
                "name": "serving",
                "buildings": {
                    "east": {"nodes": {"count": 2, "cards": CARDS, "network": "25 Gbit/s"}},
                    "users": {"hosts": 1, "nic": {"rate": "100 Gbit/s"}},
                },
                "wan": [{"a": "east", "b": "users", "rate": "100 Gbit/s", "delay": "1 ms"}],
            },
            "workload": {"inference": {"serve": ["east1"], **given}},
            "transport": {"software_cost": {"per_message": "0 ms", "per_gigabyte": "0 ms"}},
            "trials": 1,
        }
    )


def job(**inference: Any) -> Job:
    return job_of(scenario(**inference), Scale())


def sent(of: Job) -> Counter[tuple[int, int]]:
    return Counter(sum_pairs(of.workload.pairs("ring").values()))


def test_a_node_is_a_host_and_cards_behind_a_switch_of_its_own() -> None:
    topology = scenario().topology
    building = topology.resolve().building("east")
    assert building.cards == CARDS
    assert [host.name for host in building.leaf_hosts(1)] == [f"east{number}" for number in range(8, 15)]
    lane = 8e9 * 128 / 130
    rates = [host.nic.rate_bps for host in building.leaf_hosts(1)]
    assert rates == pytest.approx([16 * lane, *[4 * lane] * CARDS])
    assert building.clos is not None
    assert building.clos.leaf_uplink.rate_bps == 25e9
    assert load_topology(topology.to_data()) == topology


@pytest.mark.parametrize(
    ("more", "field", "expected"),
    [
        ({"hosts": 3}, "hosts", "14"),
        ({"nic": {"rate": "1 Gbit/s"}}, "nic", "only one of the two"),
        ({"clos": {"leaves": 2, "spines": 1}}, "clos", "only one of the two"),
    ],
)
def test_nodes_say_all_of_a_building(more: dict[str, Any], field: str, expected: str) -> None:
    building = {"nodes": {"count": 2, "network": "25 Gbit/s"}, **more}
    with pytest.raises(ConfigError) as caught:
        load_topology({"name": "n", "buildings": {"east": building}})
    (problem,) = caught.value.problems
    assert problem.field == f"buildings.east.{field}"
    assert expected in problem.expected


def test_arrivals_have_the_rate_that_was_asked_for_and_are_the_same_again() -> None:
    for kind in ("poisson", "bursts", "even"):
        drawn = draw_arrivals(kind, 500.0, 100_000, seed=7, burst=4)
        assert drawn == sorted(drawn) == draw_arrivals(kind, 500.0, 100_000, seed=7, burst=4)
        assert len(drawn) / drawn[-1] == pytest.approx(500.0, rel=0.02)
    gaps = Counter(draw_arrivals("bursts", 500.0, 4000, seed=7, burst=4))
    assert set(gaps.values()) == {4}


def test_mean_waits_of_one_server_are_those_of_theory() -> None:
    for load, count in ((0.3, 200_000), (0.5, 300_000), (0.8, 1_000_000)):
        service_s = 1e-3
        waits = waits_s(draw_arrivals("poisson", load / service_s, count, seed=3), service_s)
        assert sum(waits) / len(waits) == pytest.approx(md1_wait_s(load / service_s, service_s), rel=0.02)
    with pytest.raises(ValueError, match="less than 1"):
        md1_wait_s(1000.0, 1e-3)


def test_mean_waits_of_servers_that_take_turns_are_those_of_one_queue() -> None:
    for load in (0.3, 0.5, 0.8):
        assert mdc_wait_s(load, 1.0, 1) == pytest.approx(md1_wait_s(load, 1.0), rel=1e-6)
    # taking turns is the same as one queue before all, where service is equal
    for servers, load in ((2, 0.6), (6, 0.7)):
        arrivals = draw_arrivals("poisson", servers * load, 300_000, seed=7)
        waits = [wait for turn in range(servers) for wait in waits_s(arrivals[turn::servers], 1.0)]
        assert sum(waits) / len(waits) == pytest.approx(mdc_wait_s(servers * load, 1.0, servers), rel=0.03)


def test_waits_by_the_last_arrivals_alone_have_the_mean_of_spitzer() -> None:
    for load, count in ((0.5, 20), (0.8, 40)):
        arrivals = draw_arrivals("poisson", load, 200_000, seed=9)
        recent = recent_waits_s(arrivals, 1.0, count)
        assert sum(recent) / len(recent) == pytest.approx(recent_wait_s(load, 1.0, count), rel=0.02)
        assert all(own <= whole + 1e-6 for own, whole in zip(recent, waits_s(arrivals, 1.0), strict=True))
    assert recent_wait_s(0.8, 1.0, 600) == pytest.approx(md1_wait_s(0.8, 1.0), rel=1e-6)
    assert recent_waits_s(arrivals[:50], 1.0, 100) == pytest.approx(waits_s(arrivals[:50], 1.0))


def test_batches_go_when_they_are_full_or_their_first_has_waited() -> None:
    arrivals = [0.0, 0.1, 0.2, 0.9, 2.0, 2.1]
    found = form_batches(arrivals, 3, 0.5)
    assert [(one.first, one.end, one.closed_s) for one in found] == [
        (0, 3, 0.2),
        (3, 4, pytest.approx(1.4)),
        (4, 6, pytest.approx(2.5)),
    ]
    assert [one.closed_s for one in form_batches(arrivals, 1, 0.0)] == arrivals


def test_a_file_of_arrivals_is_read_and_what_is_wrong_in_it_is_said(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.txt"
    file.write_text("0.5\n\n1\n1\n")
    assert read_arrivals(file) == [0.5, 1.0, 1.0]
    for text, words in (("1\nsoon\n", "line 2: 'soon'"), ("1\n0.5\n", "line 2"), ("", "no line")):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_arrivals(file)


def test_a_queue_takes_what_can_begin_first_and_one_at_a_time() -> None:
    other = Computing("other", "beside", "compute")
    late = Computing("late", f"{QUEUE} 0", "compute", after=(0,))
    early = Computing("early", f"{QUEUE} 0", "compute")
    tracker = DependencyTracker((other, late, early, early))
    assert tracker.ready == [0, 2]
    tracker.ready = []
    tracker.done(0)  # what was there before goes first
    assert tracker.ready == []
    tracker.done(2)
    assert tracker.ready == [3]
    assert tracker.before[3] == (2,)
    tracker.done(3)
    assert tracker.ready == [3, 1]
    assert tracker.before[1] == (0, 3)


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("gather", ["host", "peer_to_peer"])
def test_bytes_of_sharded_tables_are_those_of_the_formula(partial: bool, precision: str, gather: str) -> None:
    made = job(partition="sparse_sharded", gather=gather, partial_tensors=partial, precision=precision)
    found = sent(made)
    index = 4 * POOLING + 4 if partial else 4 * 4 * POOLING
    vector = DIM * {"bf16": 2, "fp8": 1}[precision]
    tables = [4, 4, 3, 3, 3, 3]
    turns = REQUESTS // CARDS
    for place, own in enumerate(tables):
        card = 1 + place
        indices = REQUESTS * SAMPLES * own * index + turns * SAMPLES * 5 * 4
        elsewhere = SAMPLES * (TABLES - own) * vector * turns
        pooled = (REQUESTS - turns) * SAMPLES * own * vector
        scores = turns * SAMPLES * 4
        if gather == "host":
            assert found[0, card] == indices + elsewhere
            assert found[card, 0] == pooled + scores
        else:
            assert found[0, card] == indices
            assert found[card, 0] == scores
            assert sum(found[card, other] for other in range(1, 7)) == pooled
            assert sum(found[other, card] for other in range(1, 7)) == elsewhere


def test_gathering_by_the_host_takes_the_pooled_vectors_over_its_link_twice() -> None:
    by_host, direct = (
        sent(job(partition="sparse_sharded", gather=gather)) for gather in ("host", "peer_to_peer")
    )
    pooled = sum(count for (source, target), count in direct.items() if source and target)
    over_host = [sum(n for pair, n in found.items() if 0 in pair) for found in (by_host, direct)]
    assert over_host[0] - over_host[1] == 2 * pooled > 0


def test_how_vectors_are_gathered_makes_no_difference_to_replicas() -> None:
    by_host, direct = (job(partition="replicate", gather=gather) for gather in ("host", "peer_to_peer"))
    assert by_host.workload.plan.ranks == direct.workload.plan.ranks


def test_a_pipeline_hands_on_all_vectors_so_far() -> None:
    found = sent(job(partition="pipeline"))
    so_far = 0
    for place, own in enumerate([4, 4, 3, 3, 3]):
        so_far += own
        assert found[1 + place, 2 + place] == REQUESTS * SAMPLES * (so_far * DIM * 2 + 5 * 4)


def test_requests_from_another_building_cross_and_answers_come_back() -> None:
    made = job(entry="users1")
    request = SAMPLES * (TABLES * (4 * POOLING + 4) + 5 * 4)
    assert sent(made)[14, 0] == REQUESTS * request
    assert sent(made)[0, 14] == REQUESTS * SAMPLES * 4
    spans = predict_step(made, "ring").spans
    assert made.workload.serving is not None
    times = request_times(made.workload.serving, spans, Scale())
    assert all(one.latency_s > 2e-3 for one in times)


@pytest.mark.parametrize(
    "inference",
    [
        {"rate": 60_000},
        {"rate": 60_000, "partition": "sparse_sharded", "gather": "host"},
        {"rate": 60_000, "partition": "pipeline", "batching": {"size": 4, "wait": "1 ms"}},
        {"generation": {"output_tokens": 4}, "requests": 6, "rate": 20, "precision": "fp8"},
        {
            "generation": {"output_tokens": 3, "decode": ["east8"]},
            "requests": 6,
            "rate": 20,
            "partition": "pipeline",
            "gather": "host",
        },
    ],
)
def test_a_request_s_time_is_the_sum_of_its_parts(inference: dict[str, Any]) -> None:
    made = job(**inference)
    serving = made.workload.serving
    assert serving is not None
    times = request_times(serving, predict_step(made, "ring").spans, Scale())
    assert len(times) == made.scenario.workload.inference.requests  # type: ignore[union-attr]
    for one in times:
        assert one.parts.total_s == pytest.approx(one.latency_s, rel=1e-9)
        assert min(one.parts.batching_s, one.parts.queue_s, one.parts.transfer_s) >= -1e-12
        assert one.parts.compute_s > 0


def test_one_card_on_the_model_waits_as_lindley_says() -> None:
    made = job(rate=4000, requests=300, recommendation={**RECOMMENDATION, "tables": 0})
    serving = made.workload.serving
    assert serving is not None
    times = request_times(serving, predict_step(made, "ring").spans, Scale())
    card = serving.nodes[0].cards[0]
    service_s = serving.card.takes_s(SAMPLES * 1e8, 2000)
    assert serving.computing_s[card] == pytest.approx(service_s * 300 / CARDS)
    # each card serves every sixth request
    own = [waits_s(serving.arrivals_s[turn::CARDS], service_s) for turn in range(CARDS)]
    expected = [own[number % CARDS][number // CARDS] for number in range(300)]
    assert [one.parts.queue_s for one in times] == pytest.approx(expected, abs=2e-6)


def test_figures_say_what_limits_and_what_a_request_costs() -> None:
    made = job(rate=2000, requests=60)
    serving = made.workload.serving
    assert serving is not None
    step = served_step(made, "ring", predict_step(made, "ring").spans)
    found = Serving.model_validate(serving_figures(serving.spec, [step]))
    each_s = serving.computing_s[1] / 10
    assert found.capacity_per_s == pytest.approx(CARDS / each_s)
    assert found.limited_by == "card east2"
    assert found.latency.p50 <= found.latency.p99 <= found.latency.p999 <= found.latency.max
    assert all(link.bytes_expected == link.bytes_observed for link in found.links)
    step_s = predict_step(made, "ring").step_time_s
    assert found.energy_j == pytest.approx(CARDS * 72 * step_s / 60)
    assert at_share([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert at_share(range(1, 201), 0.07) == 14  # though 0.07 * 200 is a little more


def test_figures_are_of_all_steps_that_were_measured() -> None:
    made = [job(rate=2000, requests=requests) for requests in (60, 30)]
    serving = made[0].workload.serving
    assert serving is not None
    kept = TypeAdapter(ServedStep)  # as shards keep them in a file
    steps = [
        kept.validate_json(kept.dump_json(served_step(one, "ring", predict_step(one, "ring").spans)))
        for one in made
    ]
    found, *single = (
        Serving.model_validate(serving_figures(serving.spec, own)) for own in (steps, steps[:1], steps[1:])
    )
    assert found.requests == 90
    latencies = [one.latency_s for step in steps for one in step.times]
    assert found.latency.mean == pytest.approx(sum(latencies) / 90)
    assert found.latency.max == max(one.latency.max for one in single)
    answering_s = [one.requests / one.answered_per_s for one in single]
    assert found.answered_per_s == pytest.approx(90 / sum(answering_s))
    assert found.energy_j == pytest.approx((60 * single[0].energy_j + 30 * single[1].energy_j) / 90)
    assert found.capacity_per_s == pytest.approx(single[0].capacity_per_s)
    for together, *own in zip(found.links, *(one.links for one in single), strict=True):
        assert together.bytes_observed == pytest.approx(sum(one.bytes_observed for one in own) / 2, abs=1)


@pytest.mark.parametrize(
    ("inference", "field", "expected"),
    [
        ({"card_memory": "100 kB"}, "partition", "100 kB, a card's memory"),
        ({"serve": ["east2"]}, "serve", "the host of a node"),
        ({"entry": "user"}, "entry", "a host"),
        ({"serve": ["east1", "east8"], "dispatch": "random"}, "dispatch", "an entry"),
        ({"serve": ["east1", "east8"], "batching": {"size": 2, "wait": "1 ms"}}, "batching.size", "entry"),
    ],
)
def test_what_does_not_fit_is_said(inference: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**inference)
    (problem,) = caught.value.problems
    assert problem.field == f"workload.inference.{field}"
    assert expected in problem.expected


def test_the_cache_of_keys_and_values_crosses_where_decode_is_apart() -> None:
    generation = {"prompt_tokens": 100, "output_tokens": 2, "decode": ["east8"]}
    made = job(generation=generation, requests=6, rate=10)
    # 32 layers, keys and values of 8 heads of 128 elements, 2 bytes each
    cache = 100 * 32 * 2 * 8 * 128 * 2
    for card in range(1, 7):
        assert sent(made)[card, 7 + card] == cache
    through = job(generation=generation, requests=6, rate=10, gather="host")
    assert sent(through)[0, 7] == 6 * cache


def test_a_layer_s_tokens_go_to_the_experts_and_back() -> None:
    generation = {
        "model": "mixtral-8x7b",
        "prompt_tokens": 60,
        "output_tokens": 2,
        "experts": ["east8"],
    }
    made = job(generation=generation, requests=2, rate=1, precision="fp8")
    # in each of 32 layers, two experts for each token, an equal part on each of six cards
    one = 32 * 4096 * 2 / CARDS
    for card in range(8, 14):
        # the prompt's and one more token of a request; batches take turns over cards
        assert sent(made)[1, card] == pytest.approx(61 * one, abs=4 * 64)
        assert sent(made)[card, 1] == sent(made)[1, card]


def test_plans_of_requests_are_plain_ones() -> None:
    made = job(requests=3).workload.plan
    assert from_json(JobPlan, to_json(made)).ranks == made.ranks


def test_lanes_are_long_enough_to_be_emulated() -> None:
    nodes = {"network": "25 Gbit/s", "lane_delay": "250 ns"}
    with pytest.raises(ConfigError, match="at least 1 us"):
        load_topology({"name": "n", "buildings": {"east": {"nodes": nodes}}})


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_scenarios_serve_what_they_ask_for(file: Path) -> None:
    loaded = load_scenario(file, ["workload.inference.requests=4"])
    for name in loaded.variant_names:
        serving = job_of(loaded.variant(name), Scale()).workload.serving
        assert serving is not None
        assert sum(answer.batch.size for answer in serving.answers) == 4


def test_a_topology_with_nodes_goes_out_as_a_graph_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("networkx")
    file = tmp_path / "nodes.graphml"
    spec = scenario().topology
    assert export_graphml(spec, file) == []
    text, _ = import_topology(file, ImportDefaults())
    assert load_topology(yaml.safe_load(text)) == spec
    assert any("inference nodes" in words for words in list_losses(spec))
