"""Requests on packets: one card as queueing theory has it, whom they go to as the model has it, a node that dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from testbed.workload.serving.frontend import draw_arrivals
from tests.queueing import md1_wait_s, recent_wait_s, recent_waits_s, waits_s
from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.thorough, pytest.mark.timeout(900)]

SERVICE_S, RATE, REQUESTS, RECENT = 1e-3, 500.0, 1500, 20
SCENARIO = """\
name: serving
topology:
  name: serving
  buildings:
    users: {hosts: 1, nic: {rate: 100 Gbit/s}}
    east: {nodes: {count: 2, cards: 2, network: 25 Gbit/s}}
  wan:
    - {a: users, b: east, rate: 100 Gbit/s, delay: 100 us}
workload:
  inference:
    rate: 2000
    requests: 100
    recommendation: {tables: 0, samples: 1, features: 16, dense_flops: 10000000000, dense_parameters: 1000000}
    peak_flops: 10.204081632653061 Tflop/s  # 10 Gflop in 980 us, and 20 us for the launch
    flops_utilisation: 1.0
    slo: 10 ms
transport: {software_cost: {per_message: 0 ms, per_gigabyte: 0 ms}}
variants:
  fewest: {workload.inference.entry: users1, workload.inference.dispatch: least_outstanding}
  dies:
    workload.inference.entry: users1
    workload.inference.retry: {after: 6 ms}
    events: [{at: 20 ms, action: host_kill, target: east1}]
trials: 1
warmup: 0
scale: {size_scale: 1}
"""
ONE_CARD = {
    "topology": {"name": "one-card", "buildings": {"east": {"nodes": {"cards": 1, "network": "25 Gbit/s"}}}},
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(SCENARIO) as found:
        yield found


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict[str, Any]]:
    return variants_of(folder)


def one_card() -> str:
    """The same requests at a rate of their own to one card, as a scenario."""
    scenario = {**yaml.safe_load(SCENARIO), **ONE_CARD}
    del scenario["variants"]
    scenario["workload"]["inference"] |= {"rate": RATE, "requests": REQUESTS}
    return yaml.safe_dump(scenario)


def test_one_card_keeps_requests_waiting_as_theory_says() -> None:
    with finished_run(one_card()) as folder:
        (found,) = variants_of(folder).values()
    assert found["verdict"]["status"] == "trusted"
    measured_s = found["serving"]["mean_parts"]["queue_s"]
    arrivals_s = draw_arrivals("poisson", RATE, REQUESTS, seed=1)
    assert measured_s == pytest.approx(mean(waits_s(arrivals_s, SERVICE_S)), abs=1e-7)
    # of the draw that part is taken out whose mean is known
    own_s = mean(recent_waits_s(arrivals_s, SERVICE_S, RECENT))
    estimate_s = measured_s - own_s + recent_wait_s(RATE, SERVICE_S, RECENT)
    assert estimate_s == pytest.approx(md1_wait_s(RATE, SERVICE_S), rel=0.02)


def test_whoever_owes_the_fewest_is_the_same_on_packets_and_on_the_model(
    found: dict[str, dict[str, Any]],
) -> None:
    serving = found["fewest"]["serving"]
    for name in ("mean", "p50", "p99"):
        assert serving["latency"][name] == pytest.approx(serving["predicted"][name], rel=0.01)
    assert all(link["bytes_expected"] == link["bytes_observed"] for link in serving["links"])


def test_a_node_that_dies_loses_no_request(found: dict[str, dict[str, Any]], folder: Path) -> None:
    assert {one["verdict"]["status"] for one in found.values()} == {"trusted"}
    serving = found["dies"]["serving"]
    assert serving["requests"] == 100
    assert serving["lost"] == 0
    (outage,) = serving["outages"]
    assert outage["name"] == "node east1"
    # what was sent in the last moment before it died is missed first
    assert 0.020 < outage["noticed_s"] < 0.028
    assert outage["back_s"] is None
    assert outage["during"]["max"] > 0.006 > outage["after"]["p50"]
    assert 1 <= serving["sent_again"] <= 12
    assert all(link["bytes_expected"] == link["bytes_observed"] for link in serving["links"])
    steps = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {one["rank"] for one in steps if one["variant"] == "dies" and one["operation"] == "step"} == set(
        range(7)
    )
