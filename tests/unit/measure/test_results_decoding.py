"""What a summary and a report say of tokens that were decoded, of steps whose times the model made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.comm.transport import Software
from testbed.measure.results.committed_work import Work
from testbed.measure.results.result import Variant
from testbed.measure.results.serving_result import Decoding
from testbed.measure.results.serving_summary import (
    decoded_steps,
    decoding_figures,
    find_token_ends,
    predicted_latencies,
    quantiles,
    token_times,
)
from testbed.measure.results.summary import StepResult
from testbed.net.paths import network_of
from testbed.prediction.dry_run import dry_runs
from testbed.prediction.simulation import simulate
from testbed.prediction.timeline import Timeline
from testbed.show.report.serving import decoding_rows, describe_decoding
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Job, job_of

RANKS, TOKENS = 4, 3
SCALE = Scale(size_scale=2, time_dilation=4)


def job_that_decodes(**options: Any) -> Job:
    topology = {"name": "hall", "buildings": {"hall": {"hosts": RANKS, "nic": {"rate": "400 Gbit/s"}}}}
    workload = {
        "plan": "decode",
        "options": {"batch": 8, "experts": 8, "row": 64, "tokens": TOKENS, "layers": 2, **options},
    }
    scenario = {"name": "decode", "topology": topology, "workload": workload}
    scenario["transport"] = {"software_cost": {"synchronisation": "20 us"}}
    return job_of(load_scenario(scenario), SCALE)


def summary(job: Job) -> tuple[dict[str, Any], Timeline]:
    """Of two steps that took what the model says, and what it says."""
    plan = job.workload.plan.with_algorithm("ring")
    software = Software(message_s=1e-6)
    timeline = simulate(plan, network_of(job.topology, job.hosts), job.workload.itemsize, software)
    steps, samples = [], []
    for number in (3, 4):
        start_s = 10.0 * number
        whole_s = timeline.step_time_s
        sent = {(0, 1): 1000, (1, 0): 600}
        steps.append(StepResult(number, "a", 0, start_s, start_s + whole_s, 0.0, sent, 0, 0))
        samples += [
            {
                "step": number,
                "rank": rank,
                "index": index,
                "operation": "all_to_all_v",
                "start_s": start_s + begin_s,
                "end_s": start_s + end_s,
            }
            for rank, spans in enumerate(timeline.spans)
            for index, (begin_s, end_s) in enumerate(spans)
        ]
    found = [decoded_steps(job, [step], samples, timeline) for step in steps]  # each of a shard of its own
    return decoding_figures([one for one in found if one is not None]), timeline


@pytest.mark.parametrize("metadata", ["gathered", "resident", "eager"])
def test_a_step_is_its_tokens_and_a_token_its_parts(metadata: str) -> None:
    job = job_that_decodes(metadata=metadata)
    found, timeline = summary(job)
    Decoding.model_validate(found)
    assert found["tokens"] == 2 * TOKENS
    whole_s = SCALE.real_s(timeline.step_time_s)
    assert found["token_s"]["mean"] * TOKENS == pytest.approx(whole_s)
    assert found["predicted"] == pytest.approx(found["token_s"], rel=1e-6)
    parts = dict(found["parts"])
    put_s = parts.pop("put_s")
    busy_s = sum(end - begin for rank in timeline.spans for begin, end in rank) / RANKS
    assert sum(parts.values()) * TOKENS == pytest.approx(SCALE.real_s(busy_s))
    assert (parts["gathered_s"] > 0) == (metadata == "gathered")
    assert (parts["read_s"] > 0) == (metadata != "resident")
    # 1,600 bytes of an emulated step at half of 400 Gbit/s, on four ranks
    emulated_s = 1600 * 8 / job.hosts[0].nic.rate_bps / RANKS / TOKENS
    assert put_s == pytest.approx(SCALE.real_s(emulated_s))
    assert found["cached"] is False


def test_what_decodes_nothing_has_no_tokens() -> None:
    plain = load_scenario("scenarios/quickstart.yaml")
    job = (
        job_of(plain.variant(plain.names[0]), Scale()) if hasattr(plain, "names") else job_of(plain, Scale())
    )
    assert find_token_ends(job.workload.plan) == {}
    assert decoded_steps(job, [], [], None) is None


def test_a_token_ends_with_the_last_rank_that_has_its_rows() -> None:
    spans = [[(0.0, 1.0), (1.0, 4.0)], [(0.0, 2.0), (2.0, 3.0)]]
    assert token_times({0: 0, 1: 1}, spans) == [2.0, 2.0]
    assert quantiles([3.0, 1.0, 2.0]) == {"mean": 2.0, "p50": 2.0, "p99": 3.0, "max": 3.0}


def test_control_is_what_cached_handles_save() -> None:
    def decoding(dispatch_s: float, *, cached: bool) -> dict[str, Any]:
        times = {"mean": 1e-3, "p50": 1e-3, "p99": 2e-3, "max": 2e-3}
        parts = {"compute_s": 1e-4, "gathered_s": 0.0, "read_s": 0.0, "posted_s": 0.0}
        parts |= {"dispatch_s": dispatch_s, "combine_s": 2e-4, "put_s": 1e-4}
        return {"tokens": 5, "token_s": times, "predicted": None, "parts": parts, "cached": cached}

    both = {"exchange": decoding(6e-4, cached=False), "cached": decoding(2e-4, cached=True)}
    variants = [
        Variant.model_construct(name=name, decoding=Decoding.model_validate(own))
        for name, own in both.items()
    ]
    first, second = describe_decoding(variants)
    done = Work(steps=2, elapsed_s=0.5, tokens=1280, workload="decode")
    rated = variants[0].model_copy(update={"work": done})
    assert describe_decoding([rated])[0].startswith("exchange: 2,560 tokens/s, a token takes 1 ms, p99 2 ms")
    assert first == (
        "exchange: a token takes 1 ms, p99 2 ms; dispatch and combine: control 50 %, put 12.5 %, wait 37.5 %."
    )
    assert "control 0 %" in second
    assert "control" not in describe_decoding(variants[:1])[0]
    rows = decoding_rows([{"name": name, "decoding": own} for name, own in both.items()])
    assert rows[0]["cells"] == pytest.approx([1e-4, 0.0, 0.0, 0.0, 4e-4, 1e-4, 3e-4])


def test_a_plan_says_how_long_a_token_takes_and_a_request(tmp_path: Path) -> None:
    decoding = {
        "name": "decode",
        "topology": {"name": "hall", "buildings": {"hall": {"hosts": RANKS, "nic": {"rate": "400 Gbit/s"}}}},
        "workload": {"plan": "decode", "options": {"batch": 8, "experts": 8, "row": 64, "tokens": 2}},
    }
    (tried,) = dry_runs(load_scenario(decoding), Scale()).values()
    token = predicted_latencies(tried, Scale())["token"]
    assert token["mean"] * 2 == pytest.approx(tried.timeline.step_time_s)
    card = load_scenario("scenarios/inference/one-card.yaml", ["workload.inference.requests=200"])
    served = dry_runs(card, Scale())
    found = {name: predicted_latencies(one, Scale())["latency"] for name, one in served.items()}
    assert all(0 < one["p50"] <= one["p99"] <= one["p999"] <= one["max"] for one in found.values())
    assert found["load-800"]["mean"] > found["load-300"]["mean"]
