"""From samples to figures."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.comm.collectives import between_groups
from testbed.measure.results.summary import describe_bottleneck, distribution, gather_steps


def rank_samples(
    rank: int, step: int, start_s: float, compute_s: float, end_s: float
) -> list[dict[str, Any]]:
    head = {"variant": "ring", "trial": step, "step": step, "rank": rank}
    return [
        {
            **head,
            "operation": "forward",
            "name": "f",
            "start_s": start_s,
            "end_s": start_s + compute_s / 2,
            "bytes": 0,
        },
        {**head, "operation": "backward", "name": "b", "start_s": 0.0, "end_s": compute_s / 2, "bytes": 0},
        {**head, "operation": "all_reduce", "name": "g", "start_s": start_s, "end_s": end_s, "bytes": 100},
        {
            **head,
            "operation": "step",
            "name": "ring",
            "start_s": start_s,
            "end_s": end_s,
            "bytes": 70,
            "sent_bytes": {"0" if rank else "1": 50, "2": 20},
            "wrong": rank,
            "checked": 10,
        },
    ]


def test_a_step_lasts_until_its_last_rank_and_computes_as_long_as_its_slowest() -> None:
    samples = [*rank_samples(0, 0, 10.0, 1.0, 12.0), *rank_samples(1, 0, 10.0, 1.5, 12.5)]
    (step,) = gather_steps(samples, ranks=2)
    assert step.step_time_s == pytest.approx(2.5)
    assert step.compute_s == pytest.approx(1.5)
    assert step.sent_bytes == {(0, 1): 50, (0, 2): 20, (1, 0): 50, (1, 2): 20}
    assert (step.wrong, step.checked) == (1, 20)
    assert between_groups(step.sent_bytes, [0, 0, 1]) == 40


def test_a_missing_rank_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="samples of 1 ranks, expected 2"):
        gather_steps(rank_samples(0, 0, 10.0, 1.0, 12.0), ranks=2)


def test_distribution() -> None:
    figures = distribution([3.0, 1.0, 2.0, 10.0])
    assert (figures["median"], figures["p95"], figures["min"], figures["max"], figures["n"]) == (
        2.5,
        10.0,
        1.0,
        10.0,
        4,
    )
    assert figures["samples"] == [3.0, 1.0, 2.0, 10.0]
    assert distribution(list(range(100)))["p95"] == 94


def wan_row(utilisation: float) -> dict[str, Any]:
    return {"a": "east", "b": "west", "plane": 1, "direction": "b_to_a", "utilisation": utilisation}


def test_the_limit_is_named() -> None:
    assert describe_bottleneck(1.0, 0.01, 0.99, [wan_row(0.9)], ("", 0.0)).startswith(
        "computing: 99% of the step"
    )
    said = describe_bottleneck(2.0, 1.5, 0.5, [wan_row(0.3), wan_row(0.8)], ("NIC of a, sending", 0.5))
    assert said.startswith("WAN link west to east, plane 1: busy 80% of the step")
    assert describe_bottleneck(2.0, 1.5, 0.5, [wan_row(0.3)], ("NIC of a, sending", 0.9)).startswith(
        "NIC of a, sending"
    )
    assert describe_bottleneck(2.0, 1.5, 0.5, [wan_row(0.1)], ("NIC of a, sending", 0.2)).startswith(
        "latency"
    )
