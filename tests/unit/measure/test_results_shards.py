"""How a run is cut into shards, and what comes of putting their results together."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.measure.execution.job_run import LinkSample
from testbed.measure.execution.shard_records import link_lines
from testbed.measure.fidelity.verdict import Invariant, Verdict
from testbed.measure.results.records import COUNTERS
from testbed.measure.results.result import (
    Control,
    PredictedTimeSplit,
    TimeSplit,
    Training,
)
from testbed.measure.results.shard_merge import GAP_S, merge_records, merge_variants, merge_verdicts
from testbed.measure.results.shards import (
    Shard,
    ShardFigures,
    ShardRecord,
    ShardVariant,
    split_into_shards,
    whole_run_shard,
)
from testbed.net.fabric.running_fabric import FabricCounters, WanCounters
from testbed.net.links.link_engine import DirectionStats, EngineStats
from testbed.prediction.calibration import Calibration
from testbed.prediction.dry_run import dry_runs
from testbed.prediction.step_prediction import predict_variants
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario

TOPOLOGY: dict[str, Any] = {
    "name": "pair",
    "buildings": {
        "east": {"hosts": 1, "nic": {"rate": "1 Gbit/s"}},
        "west": {"hosts": 1, "nic": {"rate": "1 Gbit/s"}},
    },
    "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
}


def scenario(trials: int, *algorithms: str) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "s",
            "topology": TOPOLOGY,
            "workload": {"model": "llama3-8b", "peak_flops": "1 Tflop/s"},
            "algorithms": list(algorithms),
            "trials": trials,
            "seed": 5,
        }
    )


OWN = """
from testbed.comm.collectives import ALL_REDUCE, algorithm_of

@ALL_REDUCE.algorithm()
def mine(request):
    return algorithm_of(ALL_REDUCE, "ring").make(request)
"""


def test_algorithms_of_files_are_called_by_file_and_name(tmp_path: Path) -> None:
    """In shards, folders, merged figures and predictions; not by folders of this machine."""
    files = [tmp_path / "a" / "own.py", tmp_path / "b" / "own.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(OWN)
    asked = scenario(1, "ring", *(f"{file}:mine" for file in files))
    assert asked.variant_names == ("ring", "own:mine", "own:mine-2")
    shards = split_into_shards(asked)
    assert [shard.variant for shard in shards] == list(asked.variant_names)
    assert [shard.folder for shard in shards] == list(asked.variant_names)
    assert shards[2].scenario(asked).algorithms == (f"{files[1]}:mine",)
    results = [result(shard, [1.0]) for shard in shards]
    merged = merge_variants(asked, Scale(), results, merge_records(results))
    assert [(variant.name, variant.algorithm) for variant in merged] == [
        (name, name) for name in asked.variant_names
    ]
    assert list(dry_runs(asked, Scale())) == list(asked.variant_names)
    predicted = predict_variants(asked, Calibration({}), Scale())
    assert list(predicted) == list(asked.variant_names)
    assert predicted["own:mine-2"].step_time_s > 0


def verdict(status: Any, **held: bool | None) -> Verdict:
    """With one invariant by each name."""
    rows = [Invariant(name=name, bound="", measured=status, ok=ok, sentence="") for name, ok in held.items()]
    return Verdict(status=status, invariants=tuple(rows))


def divided(step_s: float) -> Training:
    """A step of which ranks compute for half, and wait for others for the rest; the model thought of a longer one."""
    split = TimeSplit(compute_s=step_s / 2, bubble_s=step_s / 2, exposed=())
    return Training(
        predicted=PredictedTimeSplit(step_time_s=1.1 * step_s, error=0.1, **split.document()),
        measured=split,
        critical_path=(),
        bytes={},
        median_step=1,
    )


def result(shard: Shard, step_times: list[float], status: str = "trusted") -> ShardRecord:
    """A shard whose steps begin every two seconds; the link carries 1000 bytes in each."""
    samples, links = [], [{"time_s": -0.5, "bytes": 0}]
    for trial, step_time in enumerate(step_times):
        start = 2.0 * trial
        for rank in (0, 1):
            sample = {"variant": shard.variant or "ring", "trial": trial, "step": trial + 1, "rank": rank}
            sample |= {
                "operation": "step",
                "name": shard.variant,
                "start_s": start,
                "end_s": start + step_time,
            }
            sample |= {"bytes": 10, "sent_bytes": {str(1 - rank): 10}, "wrong": 0, "checked": 4}
            samples.append(sample)
        links.append({"time_s": start + 1.5, "bytes": 1000 * (trial + 1)})
    wan = {"a": "east", "b": "west", "plane": 0}
    rows = [
        {**wan, "direction": direction, **dict.fromkeys(COUNTERS, 0), "queue_bytes": 7, **link}
        for link in links
        for direction in ("a_to_b", "b_to_a")
    ]
    variant = ShardVariant(
        algorithm="ring",
        step_time_s=statistics.median(step_times),
        expected_wan_bytes=20,
        predicted_s=1.1 * statistics.median(step_times),
        verdict=verdict(status, conservation=status == "trusted"),
        control=Control(carrier_down_s=0, carrier_up_s=0, reaction_s=0, rule_s=0),
        training=divided(statistics.median(step_times)),
    )
    figures = ShardFigures.model_construct(variants=(variant,))
    return ShardRecord(shard, Path(), figures, samples, rows)


def test_a_shard_is_one_variant_and_at_most_ten_trials() -> None:
    parts = split_into_shards(scenario(12, "ring", "hierarchical"))
    assert [(part.variant, part.first_trial, part.trials) for part in parts] == [
        ("ring", 0, 10),
        ("ring", 10, 2),
        ("hierarchical", 0, 10),
        ("hierarchical", 10, 2),
    ]
    assert parts[0].seed == parts[2].seed == 5
    assert parts[1].seed == parts[3].seed != 5
    own = parts[1].scenario(scenario(12, "ring", "hierarchical"))
    assert (own.algorithms, own.trials, own.seed) == (("ring",), 2, parts[1].seed)


def test_shards_follow_each_other_in_time_and_are_numbered_through() -> None:
    first, second = split_into_shards(scenario(12, "ring"))
    happened = {"event": 0, "time_s": 0.7}, {"event": 0, "time_s": None}
    reading = {"time_s": 0.2, "rank": 0, "peer": 1, "dscp": 0, "channel": 0, "retransmits": 3}
    parts = [
        result(first, [1.0, 1.0]),
        replace(result(second, [1.5]), events=happened, sockets=[reading]),
    ]
    merged = merge_records(parts)
    samples, links, events = merged.samples, merged.links, merged.events
    assert merged.sockets == [{**reading, "variant": "ring", "time_s": 0.5 + 3.5 + GAP_S + 0.5 + 0.2}]
    assert [event["time_s"] for event in events] == [0.5 + 3.5 + GAP_S + 0.5 + 0.7, None]
    starts = sorted({sample["start_s"] for sample in samples})
    # a shard begins with its first record of a link, half a second before its first step
    assert starts[:2] == [0.5, 2.5]
    assert starts[2] == 0.5 + 3.5 + GAP_S + 0.5
    assert sorted({sample["trial"] for sample in samples}) == [0, 1, 10]
    assert len({sample["step"] for sample in samples}) == 3
    counted = [link["bytes"] for link in links if link["direction"] == "a_to_b"]
    assert counted == [0, 1000, 2000, 2000, 3000]
    assert [link["time_s"] for link in links] == sorted(link["time_s"] for link in links)


@pytest.mark.parametrize(("first", "second"), [(80, 5), (5, 80)])
def test_connections_of_later_shards_do_not_take_their_counts_back(first: int, second: int) -> None:
    """Each shard makes its connections anew, and moves the very same bytes over them."""
    twelve = scenario(12, "ring")
    same = {"rank": 0, "peer": 1, "dscp": 0, "channel": 0, "rtt_s": 0.01, "bytes_acked": 1000}
    results = [
        replace(
            result(part, [1.0]),
            sockets=[
                {**same, "time_s": 0.2, "retransmits": 3},
                {**same, "time_s": 0.9, "retransmits": count},
            ],
        )
        for part, count in zip(split_into_shards(twelve), (first, second), strict=True)
    ]
    (variant,) = merge_variants(twelve, Scale(), results, merge_records(results))
    (connection,) = variant.connections
    assert connection.retransmits == 85


def reading(time_s: float, packets: int) -> LinkSample:
    """Of the pair's link: so many frames of 1000 bytes since its engine started, each way."""
    directions = ("a_to_b", "b_to_a")
    wan = tuple(WanCounters("east", "west", 0, direction, packets, packets) for direction in directions)
    books = DirectionStats(
        *(packets, 1000 * packets, packets, 1000 * packets, packets, 1000 * packets), *(0, 0, 0, 0, 0, 0)
    )
    account = EngineStats(time_s, {("east-west-0", direction): books for direction in directions})
    return LinkSample(time_s, FabricCounters(wan, {}, 0), account)


def test_what_went_by_before_a_shard_began_is_in_no_interval() -> None:
    first, second = split_into_shards(scenario(12, "ring"))
    rows = list(link_lines([reading(9.5, 500), reading(11.5, 504), reading(11.6, 505)], 10.0))
    parts = [replace(result(part, [1.0]), links=rows) for part in (first, second)]
    forth = [row for row in merge_records(parts).links if row["direction"] == "a_to_b"]
    assert [row["bytes"] for row in forth] == [0, 4000, 5000, 5000, 9000, 10_000]
    assert [row["packets"] for row in forth] == [0, 4, 5, 5, 9, 10]


def test_a_network_without_links_between_buildings_has_steps_all_the_same() -> None:
    parts = split_into_shards(scenario(12, "ring"))
    merged = merge_records([replace(result(part, [1.0]), links=[]) for part in parts])
    assert merged.links == []
    assert len({sample["step"] for sample in merged.samples if sample["operation"] == "step"}) == len(parts)


def test_the_summary_is_that_of_all_trials() -> None:
    twelve = scenario(12, "ring")
    first, second = split_into_shards(twelve)
    results = [result(first, [1.0, 1.2]), result(second, [1.4], "caution")]
    (variant,) = merge_variants(twelve, Scale(10), results, merge_records(results))
    times = variant.step_time_s
    assert (times.n, round(times.median, 9), round(times.max, 9)) == (3, 1.2, 1.4)
    assert variant.wan_bytes.document() == {"expected": 200, "observed": 200}
    assert variant.predicted is not None
    assert variant.predicted.document() == {
        "step_time_s": pytest.approx(1.375),
        "error": pytest.approx(1.375 / 1.2 - 1),
    }
    assert variant.training is not None
    assert variant.training.predicted is not None
    # of the first shard, the shorter of two; held against the median of all steps
    assert variant.training.measured.compute_s == pytest.approx(1.1 / 2)
    assert variant.training.predicted.step_time_s == pytest.approx(1.1 * 1.1)
    assert variant.training.predicted.error == pytest.approx(1.1 * 1.1 / 1.2 - 1)
    assert variant.training.median_step == 2
    assert variant.verdict.status == "caution"
    assert variant.wan_links[0].bytes == 10_000


def test_a_whole_scenario_in_one_network_keeps_its_times_and_names() -> None:
    of = scenario(2, "ring")
    (shard,) = whole_run_shard(of)
    records = merge_records([result(shard, [1.0, 1.2])])
    assert min(sample["start_s"] for sample in records.samples) == 0.0
    assert {sample["variant"] for sample in records.samples} == {"ring"}
    assert records.links[0]["time_s"] == -0.5
    assert shard.mark({"rank": 0}) == {"rank": 0}
    (variant,) = merge_variants(of, Scale(10), [result(shard, [1.0, 1.2])], records)
    assert variant.name == "ring"
    assert list(variant.step_time_s.samples) == pytest.approx([1.0, 1.2])


def test_of_each_invariant_the_worst_is_kept() -> None:
    good, bad = verdict("trusted", a=True, b=None), verdict("untrusted", a=False, b=None)
    for verdicts in ((good, bad), (bad, good)):
        merged = merge_verdicts(verdicts)
        assert merged.status == "untrusted"
        assert [(entry.name, entry.ok) for entry in merged.invariants] == [("a", False), ("b", None)]
