"""Sentences that set variants, and observed and expected figures, against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from testbed.report.figures import percent_text, time_text
from testbed.report.rates import rates_words
from testbed.report.requests import served_words
from testbed.results.result import Bytes, Variant

# A median closer than this is called equal: well below what a handful of trials can tell apart.
_SAME_WITHIN = 0.005
_SAME_LOAD_WITHIN = 0.02
LEAST_PAIRS = 3
# Student's t at 0.975 for 1, 2, ... 30 degrees of freedom (two-sided 95 %), from any table
# (not by SciPy: everybody would have to install its 143 MB, and wait a second for scipy.stats, for thirty numbers).
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def opening(variants: Sequence[Variant]) -> list[str]:
    """The sentences that a run's page begins with: how variants compare, or what the only one takes."""
    served = [words for one in variants for words in served_words(one.name, one.serving)]
    if served:
        return [*served, *(comparisons(variants) if len(variants) > 1 else ())]
    if len(variants) > 1 or variants[0].verdict.status == "untrusted":
        return comparisons(variants)
    only = variants[0]
    rates = f", {rates_words(only.rates)}" if only.rates else ""
    return [f"{only.name}: {time_text(only.step_time_s.median)} a step{rates}."]


def comparisons(variants: Sequence[Variant]) -> list[str]:
    """How the variant with the shortest median step compares with each of the others, one sentence each.

    Says so where a verdict forbids the comparison, or where the observed step times of two variants overlap. A step of
    requests takes as long as they come: there latencies are compared, of variants that have the same load.
    """
    if all(variant.serving is not None for variant in variants):
        return _latencies(variants)
    by_median = sorted(variants, key=lambda variant: variant.step_time_s.median)
    return [_comparison(by_median[0], slower) for slower in by_median[1:]]


def _latencies(variants: Sequence[Variant]) -> list[str]:
    """Of those that serve requests as often as the one with the least 99th percentile; nothing of the others."""
    known = [(variant, variant.serving) for variant in variants if variant.serving is not None]
    (best, least), *others = sorted(known, key=lambda one: one[1].latency.p99)
    found = []
    for other, own in others:
        if abs(own.offered_per_s / least.offered_per_s - 1) > _SAME_LOAD_WITHIN:
            continue
        if forbidden := _forbidden(best, other):
            found.append(forbidden)
            continue
        late, later = least.latency.p99, own.latency.p99
        words = f"{best.name} answers 99 % within {time_text(late)}, {other.name} within {time_text(later)}"
        found.append(f"{words}: {later / late:.2f}x.")
    return found


def _forbidden(one: Variant, other: Variant) -> str:
    """Why two variants cannot be compared; empty where they can."""
    untrusted = [variant.name for variant in (one, other) if variant.verdict.status == "untrusted"]
    if not untrusted:
        return ""
    verb = "is" if len(untrusted) == 1 else "are"
    return f"{one.name} and {other.name} cannot be compared: {' and '.join(untrusted)} {verb} untrusted."


def _comparison(faster: Variant, slower: Variant) -> str:
    names = f"{faster.name} and {slower.name}"
    if forbidden := _forbidden(faster, slower):
        return forbidden
    quick, slow = faster.step_time_s, slower.step_time_s
    if slow.median <= quick.median * (1 + _SAME_WITHIN):
        return f"{names} take the same time, within {percent_text(_SAME_WITHIN)}."
    sentence = f"{faster.name} is {slow.median / quick.median:.2f}x faster than {slower.name}"
    less = f"{percent_text(1 - quick.median / slow.median)} less time"
    interval = speedup_interval(quick.samples, slow.samples)
    if interval is not None and interval[0] > 1:
        return f"{sentence} ({less}; trial by trial {interval[0]:.2f}x to {interval[1]:.2f}x at 95 % confidence)."
    if interval is not None or quick.max >= slow.min:
        return f"{sentence} ({less}), but their step times overlap: more trials are needed to be sure."
    return f"{sentence} ({less})."


def speedup_interval(quick: Sequence[float], slow: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval for the geometric mean of slow over quick, trial by trial; None for less than three."""
    if len(quick) != len(slow) or not LEAST_PAIRS <= len(quick) <= len(_T_975) + 1:
        return None
    logs = [math.log(there / here) for here, there in zip(quick, slow, strict=True)]
    middle = statistics.mean(logs)
    half = half_width(logs)
    return math.exp(middle - half), math.exp(middle + half)


def half_width(values: Sequence[float]) -> float:
    """How far to either side of the mean of two or more trials it is, with 95 % confidence; Student's."""
    return student_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student_975(freedom: float) -> float:
    """Student's t at 0.975 for so many degrees of freedom, one at least; beyond the table its last, which is larger.

    Between whole ones it goes as one over them, within 0.3 % from three on.
    """
    freedom = min(max(freedom, 1.0), float(len(_T_975)))
    below, above = math.floor(freedom), math.ceil(freedom)
    if below == above:
        return _T_975[below - 1]
    share = (1 / below - 1 / freedom) / (1 / below - 1 / above)
    return _T_975[below - 1] + share * (_T_975[above - 1] - _T_975[below - 1])


def deviation(wan_bytes: Bytes) -> float | None:
    """Relative deviation of observed from expected WAN bytes; None when they are the same.

    Both figures were multiplied by `size_scale` and rounded, so the same means within one in a million.
    """
    difference = float(wan_bytes.observed - wan_bytes.expected) / max(float(wan_bytes.expected), 1.0)
    return None if abs(difference) <= 1e-6 else difference


def deviation_text(share: float) -> str:
    """A relative deviation with its sign, for people."""
    return f"{'+' if share > 0 else '-'}{percent_text(abs(share))}"
