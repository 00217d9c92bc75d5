"""What a variant got done in what time, and how variants compare by it; expected values are computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.measure.results.committed_work import Work, committed_work, compute_rates, describe_workload
from testbed.measure.results.replication import Replication, replication_summary
from testbed.measure.results.result import Variant
from testbed.prediction.step_flops import StepWork, step_work
from testbed.show.report.variant_text import comparisons, describe_rates, opening_sentences
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from tests.unit.show.report_run import measured_variant

SCENARIOS = Path(__file__).parents[3] / "scenarios"
QUICKSTART = load_scenario(SCENARIOS / "quickstart.yaml")
STEP_TOKENS = 3 * 4 * 8192  # three replicas, four sequences each
OF_STEP = StepWork(STEP_TOKENS, 0.3, 0.4, 12)


def replication(elapsed_s: float, replicas: list[tuple[int, int]]) -> Replication:
    """Commits of these trials, by so many of three replicas."""
    commits = [
        {"time_s": float(number), "trial": trial, "replicas": count, "share": count / 3}
        for number, (trial, count) in enumerate(replicas)
    ]
    return Replication.model_validate(
        {
            "replicas": 3, "mode": "ftar", "catch_up": None, "period_s": 0.4, "elapsed_s": elapsed_s,
            "effective": 0.5, "steps_lost": 0, "catch_up_bytes": 0, "losses": [], "commits": commits,
        }
    )  # fmt: skip


def variant_of(name: str, times_s: list[float], elapsed_s: float, commits: list[tuple[int, int]]) -> Variant:
    done = committed_work(QUICKSTART, OF_STEP, times_s, [replication(elapsed_s, commits)])
    one = measured_variant(name, *times_s, work=done.document())
    return one.model_copy(update={"rates": compute_rates(OF_STEP, done.elapsed_s, done.steps)})


@pytest.fixture(scope="module")
def lossy() -> list[Variant]:
    """Twenty steps each, through the loss of a replica: one waits for 20.5 s, the other goes on with two of three."""
    began_again = [(trial, 3) for trial in (*range(-1, 5), *range(2, 20))]  # 2, 3 and 4 were lost
    went_on = [(trial, 2 if 2 <= trial < 18 else 3) for trial in range(20)]
    return [
        variant_of("restart", [0.465] * 20, 30.58, began_again),
        variant_of("ftar", [0.345] * 20, 7.961, went_on),
    ]


def test_tokens_are_those_of_commits_that_stand_over_all_the_time(lossy: list[Variant]) -> None:
    restart, ftar = (variant.done for variant in lossy)
    assert (restart.steps, restart.partial_steps) == (20, 0)
    assert restart.tokens == 20 * 98_304
    assert ftar.steps == pytest.approx(4 + 16 * 2 / 3)
    assert ftar.partial_steps == 16
    assert ftar.sequences == pytest.approx(12 * 4 + 8 * 16)
    found = [variant.rates.tokens_per_s for variant in lossy if variant.rates]
    # 20 x 98,304 / 30.58, (4 + 16 x 2/3) x 98,304 / 7.961; by the median step it was 211,400 and 284,900
    assert found == [pytest.approx(64_293, abs=1), pytest.approx(181_107, abs=1)]
    assert ftar.per_second == pytest.approx(found[1])
    # 0.4 x 0.3 s of computing, for 14.67 steps in 7.961 s
    assert lossy[1].rates is not None
    assert lossy[1].rates.mfu == pytest.approx(0.4 * 0.3 * 14.667 / 7.961, rel=1e-4)


def test_the_headline_says_which_work_in_which_time(lossy: list[Variant]) -> None:
    assert opening_sentences(lossy) == [
        "ftar does 2.82x the work of restart in the same time: 181,100 against 64,290 tokens/s, stalls included."
    ]
    words = describe_rates(lossy[1])
    assert words.startswith("ftar: 181,100 tokens/s, 22.11 sequences/s, MFU ")
    assert words.endswith(", over 7.961 s with all stalls, 16 of its steps without all replicas.")
    assert "over 7.961 s with all stalls" in opening_sentences(lossy[1:])[0]


def test_without_a_model_whole_steps_are_what_was_done(lossy: list[Variant]) -> None:
    done = committed_work(QUICKSTART, None, [0.5] * 4, [replication(8.0, [(0, 3), (1, 2), (2, 2), (3, 2)])])
    one = lossy[0].model_copy(update={"rates": None, "work": done})
    words = "restart: 0.375 steps/s, over 8 s with all stalls, 3 of its steps without all replicas."
    assert describe_rates(one) == words


def test_replicas_count_by_their_sequences() -> None:
    def committed(step: int, members: list[int]) -> dict[str, Any]:
        return {"event": "committed", "time_s": 1.0 + step, "step": step, "epoch": 1, "members": members}

    records = [
        {"event": "start", "time_s": 1.0, "step": 1, "epoch": 1, "start_s": 1.5},
        *(committed(step, [0, 1]) for step in range(3)),
        *(committed(step, [0]) for step in range(3, 5)),
    ]
    found = replication_summary(
        records, [], [], Scale(1.0, 2.0), replicas=2, mode="ftar", catch_up="blocking", warmup=1,
        microbatches=(6, 2),
    )  # fmt: skip
    assert [entry["share"] for entry in found["commits"]] == [1, 1, 0.75, 0.75]
    done = committed_work(QUICKSTART, OF_STEP, [0.5] * 4, [Replication.model_validate(found)])
    assert done.sequences == 3.5 * 12
    assert done.elapsed_s == (5.0 - 1.5) / 2


def test_without_replicas_elapsed_are_all_steps_also_one_that_stalls() -> None:
    times_s = [1.0, 1.0, 1.0, 6.0]
    work = step_work(QUICKSTART)
    done = committed_work(QUICKSTART, work, times_s, [])
    assert done.document() == {
        "steps": 4, "elapsed_s": 9, "tokens": 4 * 65_536, "sequences": 32,
        "workload": "llama3-8b, sequences of 8192 tokens",
    }  # fmt: skip
    rates = compute_rates(work, done.elapsed_s, done.steps)
    assert rates is not None
    assert rates.tokens_per_s == pytest.approx(4 * 65_536 / 9)


def of(name: str, *times_s: float, tokens: int | None = None, workload: str = "a model") -> Variant:
    done = Work(
        steps=len(times_s),
        elapsed_s=sum(times_s),
        tokens=None if tokens is None else tokens * len(times_s),
        workload=workload,
    )
    return measured_variant(name, *times_s, work=done.document())


def test_a_stalled_step_counts_and_the_median_is_told_beside_it() -> None:
    variants = [of("steady", 1.1, 1.1, 1.1, tokens=8), of("stalls", 1.0, 1.0, 6.0, tokens=8)]
    (sentence,) = comparisons(variants)
    assert sentence.startswith(
        "steady is 2.42x faster than stalls (58.8 % less time, by the median step 0.91x)"
    )
    assert "overlap" in sentence


def test_steps_of_unequal_size_compare_by_their_tokens() -> None:
    variants = [of("small", 1.0, 1.0, tokens=1000), of("large", 1.5, 1.5, tokens=2000)]
    assert comparisons(variants) == [
        "large does 1.33x the work of small in the same time: 1,333 against 1,000 tokens/s "
        "(2,000 against 1,000 tokens a step)."
    ]
    (same,) = comparisons([of("small", 1.0, tokens=1000), of("large", 2.0, tokens=2000)])
    assert same == "small and large do as much in the same time, within 0.5 %."
    variants = [of("small", 1.0, 1.1, 0.9, tokens=1000), of("large", 1.5, 1.65, 1.35, tokens=2000)]
    assert "a step; trial by trial 1.33x to 1.33x at 95 % confidence)." in comparisons(variants)[0]


def test_steps_of_other_work_are_not_compared() -> None:
    variants = [
        of("a", 1.0, workload="all_reduce"),
        of("b", 2.0, workload="all_gather"),
        of("c", 3.0, workload="all_gather"),
    ]
    assert comparisons(variants) == [
        "b is 1.50x faster than c (33.3 % less time).",
        "Not compared, since their steps are different work: a (all_reduce); b, c (all_gather).",
    ]


def test_what_a_step_works_on_is_said_in_the_scenarios_words() -> None:
    windows = load_scenario(SCENARIOS / "controller/windows.yaml")
    words = {name: describe_workload(windows.variant(name)) for name in windows.variant_names}
    assert words["v-open"] == words["v-windows"] != words["gather-open"] == words["gather-windows"]
    assert words["gather-open"].startswith("all_gather of 4.29")
    decode = load_scenario(SCENARIOS / "decode.yaml")
    own = [decode.variant(name) for name in decode.variant_names]
    assert len({describe_workload(one) for one in own}) == 1, "they differ in how, not in what"
    options = own[0].workload.options or {}
    done = committed_work(own[0], step_work(own[0]), [0.5, 0.5], [])
    assert done.tokens == 2 * own[0].ranks * options["batch"] * options.get("tokens", 1)


def test_runs_of_earlier_versions_compare_by_their_steps() -> None:
    variants = [measured_variant("a", 1.0), measured_variant("b", 2.0)]
    assert comparisons(variants) == ["a is 2.00x faster than b (50 % less time)."]
