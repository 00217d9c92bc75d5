"""The words with which an exploration's page and terminal begin."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.show.report.exploration_findings import (
    Row,
    best_of,
    describe_findings,
    describe_results,
    pair_rows,
)
from tests.unit.show.report_run import measured_variant

BEST = {"workload.schedule.name": "ZBH1", "policy": "te"}


def row(kind: str, of: str, step_time_s: float, *, tuned: bool = False, measured: Any = None) -> Row:
    changes = BEST if kind == "best" else {"policy": "ecmp"}
    return {
        "kind": kind,
        "of": of,
        "name": f"{of} tuned" if tuned else of,
        "tuned": tuned,
        "step_time_s": step_time_s,
        "configuration": "schedule ZBH1, policy te",
        "changes": changes,
        "measured": measured,
    }


ROWS = [
    row("baseline", "production", 4.0),
    row("baseline", "production", 2.6, tuned=True),
    row("baseline", "atlas", 3.0),
    row("baseline", "atlas", 2.5, tuned=True),
    row("single", "only network", 3.2),
    row("single", "only network", 2.5, tuned=True),
    row("best", "best 1", 2.0),
]
DOCUMENT: dict[str, Any] = {
    "work": {"tokens": 4096, "computing_s": 1.5, "utilisation": 0.4},
    "indifferent": {"workload.schedule.wan_send_tokens": False},
    "agreement": None,
}


def test_it_tells_the_best_its_gains_what_is_worth_what_and_what_has_no_effect() -> None:
    assert describe_findings(DOCUMENT, ROWS) == [
        "The best: schedule ZBH1, policy te. 2 s a step by the model, 2,048 tokens/s, MFU 30 %, "
        "at least 1.5 s for compute alone.",
        "That is 1.25x as fast as atlas tuned, the quickest baseline, 20 % less time (by the model).",
        "2.00x over production as given and 1.30x over production tuned.",
        "Alone, against production as given: network 1.25x and with degrees 1.60x.",
        "No effect on the best, by the model: wan_send_tokens false.",
        "Nothing was measured yet; --confirm runs the compared configurations on the emulated network.",
    ]


SEND = "workload.schedule.wan_send_tokens"
SURE: dict[str, Any] = {
    **DOCUMENT,
    "indifferent": {SEND: False, "transport.congestion_control": "bbr"},
    "kept": [SEND],
    "model_errors": {
        **{"what": "clean networks, training", "median": 0.006, "points": 1, "of": 70},
        **{"worst": 0.089, "measured": 110},
    },
    "sensitivity": {
        "best_s": 2.0,
        "given_back": [
            {"choices": ["policy"], "step_time_s": 2.0004},
            {"choices": ["schedule"], "step_time_s": 2.1},
            {"choices": ["policy", "schedule"], "step_time_s": 2.001},
            {"choices": ["degrees"], "step_time_s": 2.01},
            {"choices": ["placement"], "step_time_s": None},
            {"choices": ["wan_send_tokens"], "step_time_s": 2.0},
        ],
    },
    "near": {
        "count": 3,
        "first": [
            {"changes": BEST, "step_time_s": 2.0},
            {"changes": {**BEST, "policy": "ecmp"}, "step_time_s": 2.004},
        ],
    },
    "confirm": "testbed explore runs/a/scenario.yaml -o runs/a --confirm",
}


def test_before_anything_is_measured_it_tells_how_far_off_the_model_was_and_what_to_confirm() -> None:
    assert describe_findings(SURE, ROWS)[-4:] == [
        "No effect on the best, by the model: wan_send_tokens false: yours kept; congestion_control bbr: any other is "
        "as good.",
        "At points like this one (clean networks, training) the model was 0.6 % off in the median of 70 that were "
        "measured, 8.9 % at the worst of 110; it cannot distinguish differences below 0.6 %.",
        "Each of these gains less than that alone: policy te (0.02 %), degrees (0.5 %). "
        "Kept only because the model has nothing faster.",
        "To confirm next: the best and the first 1 of 2 within the model's error of it (policy ecmp, 2.004 s). "
        "`testbed explore runs/a/scenario.yaml -o runs/a --confirm` runs that on the emulated network.",
    ]
    assert any("20 % less time (by the model)." in sentence for sentence in describe_findings(SURE, ROWS))
    narrow = [*ROWS[:-1], row("best", "best 1", 2.49)]
    assert any(
        "0.4 % less time (by the model, less than its error)." in one
        for one in describe_findings(SURE, narrow)
    )


def test_errors_of_several_points_are_told_as_the_largest_and_a_best_without_equals_is_alone() -> None:
    errors = {**SURE["model_errors"], "points": 2, "of": 20, "median": 0.138}
    near = {"count": 1, "first": SURE["near"]["first"][:1]}
    said = describe_findings({**SURE, "model_errors": errors, "near": near, "sensitivity": None}, ROWS)
    assert (
        "at most 13.8 % off in the median of each of 2 networks (20 that were measured), 8.9 % at" in said[-2]
    )
    assert said[-1].startswith(
        "To confirm next: the best, since nothing else is within the model's error of it. `testbed"
    )
    unknown = describe_findings({**SURE, "model_errors": None}, ROWS)
    assert unknown[-1] == (
        "Nothing was measured yet; `testbed explore runs/a/scenario.yaml -o runs/a --confirm` runs the "
        "compared configurations on the emulated network."
    )


def test_what_was_measured_says_no_more_of_other_points() -> None:
    some = [{**one, "measured": measured_variant(one["name"], one["step_time_s"])} for one in ROWS]
    said = describe_findings(SURE, some)
    assert said[-1] == "Measured on the emulated network."
    assert not any(
        words in " ".join(said) for words in ("At points like this one", "To confirm next", "gains less")
    )


def test_a_baseline_that_is_quicker_is_told_as_such() -> None:
    said = describe_findings({**DOCUMENT, "indifferent": {}}, [*ROWS[:-1], row("best", "best 1", 2.55)])
    assert said[1] == (
        "That is slower than atlas tuned, the quickest baseline, 2.5 s (by the model): it chooses among values that "
        "the search was not given."
    )
    assert not any("No effect" in sentence for sentence in said)


def test_what_was_measured_is_told_with_how_sure_it_is() -> None:
    times = [(one, [one["step_time_s"] * factor for factor in (1.1, 1.12, 1.13)]) for one in ROWS]
    some = [{**one, "measured": measured_variant(one["name"], *own)} for one, own in times]
    right = {"median_error": 0.01, "worst_error": 0.1, "kendall_tau": 0.9}
    said = describe_findings({**DOCUMENT, "work": None, "agreement": right}, some)
    assert said[0] == "The best: schedule ZBH1, policy te. 2.24 s a step."
    assert "1.25x as fast as atlas tuned" in said[1]
    assert "(measured; 1.25x to 1.25x at 95 % confidence)" in said[1]
    assert said[-1] == "The model was 1 % off in the median here, 10 % at the worst; Kendall's tau 0.90."


def test_a_baseline_is_shown_once_as_tuned_with_as_given_beside_it() -> None:
    shown = pair_rows(ROWS)
    assert [one["of"] for one in shown] == ["production", "atlas", "only network", "best 1"]
    assert [one["step_time_s"] for one in shown] == [2.6, 2.5, 2.5, 2.0]
    assert [one["as_given"]["step_time_s"] for one in shown[:-1]] == [4.0, 3.0, 3.2]
    (alone,) = pair_rows([row("baseline", "arnold", 3.0)])  # tuned it does not fit
    assert alone["as_given"] is not None
    assert alone["step_time_s"] == pytest.approx(3.0)


def test_packets_that_chose_are_told_with_where_their_choice_had_stood() -> None:
    def rung(*names: str) -> dict[str, Any]:
        steps = {"candidate-1": (2.0, 2.2), "candidate-2": (2.1, 2.0), "candidate-3": (2.2, 1.98)}
        chosen = [
            {"name": name, "predicted_s": steps[name][0], "step_time_s": steps[name][1]} for name in names
        ]
        return {"trials": 1, "candidates": chosen}

    third = [rung("candidate-3", "candidate-2", "candidate-1"), rung("candidate-3", "candidate-2")]
    (said,) = (words for words in describe_findings({**DOCUMENT, "rungs": third}, ROWS) if "packets" in words)
    assert said == "Of the 3 quickest by the model packets chose its number 3, 10 % less time than its first."
    first = [rung("candidate-1", "candidate-2")]
    (said,) = (words for words in describe_findings({**DOCUMENT, "rungs": first}, ROWS) if "packets" in words)
    assert said == "Of the 2 quickest by the model packets chose its first."


def test_queues_that_may_overflow_are_told() -> None:
    short = [["east", "west", 1_000_000_000, 3_427_500_000]]
    (said,) = (
        words
        for words in describe_findings({**DOCUMENT, "short_queues": short}, ROWS)
        if "round trip" in words
    )
    assert said.startswith("Queues that hold less than a round trip of bytes: east to west 1 GB of 3.43 GB. ")


def test_the_best_and_its_gain_go_by_all_steps_stalls_included() -> None:
    """The one with the quickest median has a step that stalls: 7 s in four steps, the other 6 s."""
    stalls, steady = (
        row("best", "stalls", 1.0, measured=measured_variant("stalls", 1.0, 1.0, 1.0, 4.0)),
        row("best", "steady", 1.5, measured=measured_variant("steady", 1.5, 1.5, 1.5, 1.5)),
    )
    base = row("baseline", "given", 3.0, measured=measured_variant("given", 3.0, 3.0, 3.0, 3.0))
    rows = [stalls, steady, base]
    assert best_of(rows) is steady
    document = {**DOCUMENT, "work": None}
    said = describe_results(document, rows)
    assert "2.00x as fast as" in said[1]


def test_the_best_is_the_quickest_that_was_measured_and_is_trusted() -> None:
    slow, quick = measured_variant("a", 2.5), measured_variant("b", 2.2)
    doubtful = measured_variant("c", 1.0, status="untrusted")
    rows = [
        row("best", name, predicted_s, measured=measured)
        for name, predicted_s, measured in (
            ("best 1", 2.0, slow),
            ("best 2", 2.1, quick),
            ("best 3", 2.2, doubtful),
        )
    ]
    assert best_of(rows)["name"] == "best 2"
    assert best_of(rows[2:])["name"] == "best 3"
