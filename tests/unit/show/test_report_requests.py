"""Requests in reports: words, curves of variants, what held the objective, drawings."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from testbed.measure.results.result import Variant
from testbed.measure.results.serving_result import Serving
from testbed.show.report.serving import (
    curve_of,
    describe_serving,
    latency_chart,
    load_chart,
    most_within,
    serving_rows,
)
from testbed.show.report.variant_text import comparisons, opening_sentences
from tests.unit.show.report_run import measured_variant

PARTS = {"batching_s": 1e-4, "queue_s": 4e-4, "transfer_s": 2e-4, "compute_s": 3e-4}


def serving(per_s: float, p99: float, within: float = 1.0, **more: Any) -> dict[str, Any]:
    late = {"mean": p99 / 2, "p50": p99 / 2, "p99": p99, "p999": p99 * 1.1, "max": p99 * 1.2}
    link = {"rate_bps": 1e9, "bytes_expected": 1000, "bytes_observed": 1000}
    return {
        "requests": 100, "offered_per_s": per_s, "answered_per_s": per_s, "latency": late, "predicted": late,
        "objective_s": 0.002, "objective_share": 0.99, "within": within, "mean_parts": PARTS, "p99_parts": PARTS,
        "cdf_s": [p99 * (1 + number) / 103 for number in range(103)], "busiest_card": 0.5,
        "links": [{"name": "east1, in", "utilisation": 0.1, **link}, {"name": "east2, in", "utilisation": 0.4, **link}],
        "capacity_per_s": 5000.0, "limited_by": "card east2", "energy_j": 0.1, "cost_usd": 0.2, **more,
    }  # fmt: skip


def variants() -> list[dict[str, Any]]:
    own = {
        "direct-1000": serving(1000, 1e-3),
        "direct-4000": serving(4000, 1.9e-3),
        "direct-6000": serving(6000, 1.9e-3),  # more than it can go on with
        "host-2000": serving(2000, 5e-3, within=0.9),
    }
    return [{"name": name, "serving": one, "verdict": {"status": "trusted"}} for name, one in own.items()]


def test_what_is_said_of_requests() -> None:
    first, second = describe_serving("direct-1000", Serving.model_validate(serving(1000, 1e-3)))
    assert first == (
        "direct-1000: 1,000 requests/s, latency p50 500 us, p99 1 ms, p99.9 1.1 ms; 100 % within 2 ms."
    )
    assert "batching 100 us, queue 400 us, transfer 200 us, compute 300 us" in second
    assert "card east2 is full at 5,000 requests/s" in second
    tokens = serving(1.0, 1.0, first_token=serving(1, 0.2)["latency"], per_token=serving(1, 0.05)["latency"])
    assert (
        "first token p99 200 ms, 50 ms per token" in describe_serving("a", Serving.model_validate(tokens))[0]
    )
    assert describe_serving("training", None) == []
    full = Serving.model_validate(serving(8000, 1.0, answered_per_s=5000.0))
    assert describe_serving("a", full)[0].startswith(
        "a: 8,000 requests/s arrive, 5,000 are answered, latency p50"
    )


def test_variants_that_serve_are_compared_by_how_late_answers_are() -> None:
    def one(name: str, per_s: float, p99: float, status: str = "trusted") -> Variant:
        found = measured_variant(name, 1.0, status=status)
        return found.model_copy(update={"serving": Serving.model_validate(serving(per_s, p99))})

    near, far, busy = one("near", 1000, 1e-3), one("far", 1001, 5e-3), one("busy", 2000, 9e-3)
    assert comparisons([far, near, busy]) == ["near answers 99 % within 1 ms, far within 5 ms: 5.00x."]
    assert opening_sentences([far, near])[:2] == [
        "far: 1,001 requests/s, latency p50 2.5 ms, p99 5 ms, p99.9 5.5 ms; 100 % within 2 ms.",
        "near: 1,000 requests/s, latency p50 500 us, p99 1 ms, p99.9 1.1 ms; 100 % within 2 ms.",
    ]
    assert opening_sentences([near]) == opening_sentences([far, near])[1:2]
    assert comparisons([near, one("far", 1000, 5e-3, "untrusted")]) == [
        "near and far cannot be compared: far is untrusted."
    ]


def test_requests_that_nobody_answered_are_not_left_out_of_a_comparison() -> None:
    def one(name: str, p99: float, lost: int) -> Variant:
        own = Serving.model_validate(serving(1000, p99, lost=lost))
        return measured_variant(name, 1.0).model_copy(update={"serving": own})

    # of 100 that were answered, and 2 or 1 that were not
    assert comparisons([one("gives-up", 1e-3, 2), one("waits", 5e-3, 0)]) == [
        "waits and gives-up did not answer the same requests: gives-up lost 2."
    ]
    (sentence,) = comparisons([one("quick", 1e-3, 1), one("waits", 5e-3, 0)])
    assert sentence.startswith("quick answers 99 % within 1 ms")


def test_variants_with_a_load_in_their_name_make_a_curve() -> None:
    assert [curve_of(name) for name in ("direct-1000", "by-host-2.5k", "direct", "both-200km")] == [
        "direct",
        "by-host",
        "direct",
        "both-200km",
    ]


def test_the_most_load_is_one_that_can_go_on() -> None:
    assert most_within(variants()) == {"direct": 4000}
    assert [row["met"] for row in serving_rows(variants())] == [True, True, False, False]


def test_rows_have_parts_that_add_up_and_the_busiest_link_first() -> None:
    row = serving_rows(variants())[0]
    assert sum(part["share"] for part in row["parts"]) == 1.0
    assert [link["name"] for link in row["links"]] == ["east2, in", "east1, in"]


def test_drawings_have_a_line_for_each_curve() -> None:
    load = load_chart(variants())
    assert load is not None
    drawn = ET.fromstring(load)
    assert len(list(drawn.iter("circle"))) == 4
    assert {"direct", "host"} <= {one.text for one in drawn.iter("text")}
    # the model's beside them, of the one curve that has several loads
    assert len([one for one in drawn.iter("line") if one.get("class") == "whisker by-model"]) == 2
    assert load_chart(variants()[2:]) is None
    latencies = latency_chart(variants())
    assert latencies is not None
    assert len(list(ET.fromstring(latencies).iter("g"))) == 4
    assert latency_chart([{"name": "training"}]) is None
