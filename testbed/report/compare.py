"""Sentences that set variants, and observed and expected figures, against each other."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.report.data import JsonObject
from testbed.report.figures import percent_text

# A median closer than this is called equal: well below what a handful of trials can tell apart.
_SAME_WITHIN = 0.005


def comparisons(variants: Sequence[JsonObject]) -> list[str]:
    """How the variant with the shortest median step compares with each of the others, one sentence each.

    Says so where a verdict forbids the comparison, or where the observed step times of two variants overlap.
    """
    by_median = sorted(variants, key=lambda variant: float(variant["step_time_s"]["median"]))
    return [_comparison(by_median[0], slower) for slower in by_median[1:]]


def _comparison(faster: JsonObject, slower: JsonObject) -> str:
    names = f"{faster['name']} and {slower['name']}"
    untrusted = [v["name"] for v in (faster, slower) if v["verdict"]["status"] == "untrusted"]
    if untrusted:
        verb = "is" if len(untrusted) == 1 else "are"
        return f"{names} cannot be compared: {' and '.join(untrusted)} {verb} untrusted."
    quick, slow = faster["step_time_s"], slower["step_time_s"]
    if slow["median"] <= quick["median"] * (1 + _SAME_WITHIN):
        return f"{names} take the same time, within {percent_text(_SAME_WITHIN)}."
    sentence = (
        f"{faster['name']} is {slow['median'] / quick['median']:.2f}x faster than {slower['name']} "
        f"({percent_text(1 - quick['median'] / slow['median'])} less time)"
    )
    if quick["max"] >= slow["min"]:
        sentence += ", but their step times overlap: more trials are needed to be sure"
    return f"{sentence}."


def deviation(wan_bytes: JsonObject) -> float | None:
    """Relative deviation of observed from expected WAN bytes; None when they are the same.

    Both figures were multiplied by `size_scale` and rounded, so the same means within one in a million.
    """
    expected, observed = wan_bytes["expected"], wan_bytes["observed"]
    difference = float(observed - expected) / max(float(expected), 1.0)
    return None if abs(difference) <= 1e-6 else difference


def deviation_text(share: float) -> str:
    """A relative deviation with its sign, for people."""
    return f"{'+' if share > 0 else '-'}{percent_text(abs(share))}"


def failing(variant: JsonObject) -> list[JsonObject]:
    """The invariants that did not hold for `variant`."""
    return [invariant for invariant in variant["verdict"]["invariants"] if invariant["ok"] is False]
