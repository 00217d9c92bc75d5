"""Sentences on variants: comparisons, deviations, throughput."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from testbed.measure.results.committed_work import Rates, Work, compute_rates, have_same_steps
from testbed.measure.results.result import Bytes, Variant
from testbed.measure.results.serving_result import Serving
from testbed.prediction.step_flops import StepWork
from testbed.show.report.serving import describe_requests
from testbed.spec.units import per_second_text, percent_text, time_text

# Ratios closer to one than this count as equal. This is well below what a few trials can distinguish.
_SAME_WITHIN = 0.005
_SAME_LOAD_WITHIN = 0.02
_LIKE_MEDIAN = 0.02  # if the ratio of medians differs by more from the ratio of all work, both are given
_FEW = 4  # number of variants up to which a sentence names all of them
LEAST_PAIRS = 3
# Student's t at 0.975 for 1, 2, ... 30 degrees of freedom (two-sided 95 %), from any table.
# For thirty numbers, SciPy would be a 143 MB dependency, and importing scipy.stats takes a second.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def opening_sentences(variants: Sequence[Variant]) -> list[str]:
    """Return the first sentences of a run's page: a comparison of variants, or the only variant's step time."""
    served = [words for one in variants for words in describe_requests(one.name, one.serving)]
    if served:
        return [*served, *(comparisons(variants) if len(variants) > 1 else ())]
    if len(variants) > 1 or variants[0].verdict.status == "untrusted":
        return comparisons(variants)
    only = variants[0]
    rates = f", {rates_text(only.rates)}{elapsed_text(only.done)}" if only.rates else ""
    return [f"{only.name}: {time_text(only.step_time_s.median)} a step{rates}."]


def comparisons(variants: Sequence[Variant]) -> list[str]:
    """Compare the variant with the most work per time to each of the others, one sentence each.

    Only variants with the same workload are compared; otherwise a sentence says that they are not. Sentences also say
    if a verdict forbids a comparison, or if step times overlap. For variants that serve requests, a step takes as long
    as requests keep arriving. So their latencies are compared, between variants with the same load.
    """
    by_workload: dict[str, list[Variant]] = {}
    for variant in variants:
        by_workload.setdefault(variant.done.workload, []).append(variant)
    found = []
    for own in by_workload.values():
        if all(variant.serving is not None for variant in own):
            found += _latencies(own)
            continue
        best, *others = sorted(own, key=lambda variant: -variant.done.per_second)
        found += [_comparison(best, other) for other in others]
    return found if len(by_workload) == 1 else [*found, _explain_not_compared(by_workload)]


def _explain_not_compared(by_workload: Mapping[str, Sequence[Variant]]) -> str:
    """Explain that variants are not compared because their workloads differ."""
    each = "; ".join(f"{_names(own)} ({words})" for words, own in by_workload.items())
    return f"Not compared, since their steps are different work: {each}."


def _names(variants: Sequence[Variant]) -> str:
    """Name a few variants, or the first of many."""
    names = [variant.name for variant in variants]
    return ", ".join(names) if len(names) <= _FEW else f"{names[0]} and {len(names) - 1} more"


def _latencies(variants: Sequence[Variant]) -> list[str]:
    """Compare latencies with the variant that has the lowest 99th percentile, for variants with the same load.

    Latencies are those of answered requests. A variant that loses more than 1 % of requests has no such percentile.
    """
    known = [(variant, variant.serving) for variant in variants if variant.serving is not None]
    (best, least), *others = sorted(known, key=lambda one: _p99_s(one[1]))
    found = []
    for other, own in others:
        if abs(own.offered_per_s / least.offered_per_s - 1) > _SAME_LOAD_WITHIN:
            continue
        if refusal := _refusal(best, other):
            found.append(refusal)
            continue
        late, later = _p99_s(least), _p99_s(own)
        if math.isinf(later):
            lost = [f"{one.name} lost {by.lost:,}" for one, by in ((best, least), (other, own)) if by.lost]
            found.append(f"{best.name} and {other.name} did not answer the same requests: {', '.join(lost)}.")
            continue
        words = f"{best.name} answers 99 % within {time_text(late)}, {other.name} within {time_text(later)}"
        found.append(f"{words}: {later / late:.2f}x.")
    return found


def _p99_s(found: Serving) -> float:
    """Return the 99th percentile over all counted requests; infinite if more than 1 % were never answered."""
    return math.inf if found.lost > 0.01 * (found.requests + found.lost) else found.latency.p99


def _refusal(one: Variant, other: Variant) -> str:
    """Explain why two variants cannot be compared; empty if they can."""
    untrusted = [variant.name for variant in (one, other) if variant.verdict.status == "untrusted"]
    if not untrusted:
        return ""
    verb = "is" if len(untrusted) == 1 else "are"
    return f"{one.name} and {other.name} cannot be compared: {' and '.join(untrusted)} {verb} untrusted."


def speedup(one: Variant, other: Variant) -> float:
    """Return the ratio of work per time, `one` over `other`; both must have the same workload."""
    return one.done.per_second / other.done.per_second


def _comparison(best: Variant, other: Variant) -> str:
    """Compare two variants in one sentence; `best` does at least as much work in the same time."""
    if refusal := _refusal(best, other):
        return refusal
    ratio = speedup(best, other)
    if have_same_steps((best.done, other.done)):
        return _same_steps_words(best, other, ratio)
    if ratio <= 1 + _SAME_WITHIN:
        return (
            f"{best.name} and {other.name} do as much in the same time, within {percent_text(_SAME_WITHIN)}."
        )
    here, there = best.done, other.done
    words = f"{best.name} does {ratio:.2f}x the work of {other.name} in the same time: "
    words += f"{per_second_text(here.per_second)} against {per_second_text(there.per_second)} {here.unit}/s"
    if here.with_stalls or there.with_stalls:
        return f"{words}, stalls included."
    each = " against ".join(f"{round(one.per_step):,}" for one in (here, there))
    return f"{words} ({each} {here.unit} a step{_confidence_text(best, other)}"


def _same_steps_words(best: Variant, other: Variant, ratio: float) -> str:
    if ratio <= 1 + _SAME_WITHIN:
        return f"{best.name} and {other.name} take the same time, within {percent_text(_SAME_WITHIN)}."
    less = f"{percent_text(1 - 1 / ratio)} less time"
    by_median = other.step_time_s.median / best.step_time_s.median
    if not 1 - _LIKE_MEDIAN < by_median / ratio < 1 + _LIKE_MEDIAN:
        less += f", by the median step {by_median:.2f}x"
    return f"{best.name} is {ratio:.2f}x faster than {other.name} ({less}{_confidence_text(best, other)}"


def _confidence_text(best: Variant, other: Variant) -> str:
    """Return the ratio's confidence, from both variants' steps, as the end of a sentence with an open bracket."""
    here, there = (
        [seconds / variant.done.per_step for seconds in variant.step_time_s.samples]
        for variant in (best, other)
    )
    interval = speedup_interval(here, there)
    if interval is not None and interval[0] > 1:
        return f"; trial by trial {interval[0]:.2f}x to {interval[1]:.2f}x at 95 % confidence)."
    if interval is not None or max(here) >= min(there):
        return "), but their step times overlap: more trials are needed to be sure."
    return ")."


def speedup_interval(quick: Sequence[float], slow: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the geometric mean of slow over fast, trial by trial; None below three."""
    if len(quick) != len(slow) or not LEAST_PAIRS <= len(quick) <= len(_T_975) + 1:
        return None
    logs = [math.log(there / here) for here, there in zip(quick, slow, strict=True)]
    middle = statistics.mean(logs)
    half = half_width(logs)
    return math.exp(middle - half), math.exp(middle + half)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of the mean, for two or more trials."""
    return student_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student_975(freedom: float) -> float:
    """Return Student's t at 0.975 for at least one degree of freedom; beyond the table, its last (larger) value.

    Values are interpolated linearly in 1/freedom, which is within 0.3 % from three degrees of freedom on.
    """
    freedom = min(max(freedom, 1.0), float(len(_T_975)))
    below, above = math.floor(freedom), math.ceil(freedom)
    if below == above:
        return _T_975[below - 1]
    share = (1 / below - 1 / freedom) / (1 / below - 1 / above)
    return _T_975[below - 1] + share * (_T_975[above - 1] - _T_975[below - 1])


def deviation(wan_bytes: Bytes) -> float | None:
    """Return the relative deviation of observed from expected WAN bytes; None if they are equal.

    Both were multiplied by `size_scale` and rounded, so values within one in a million count as equal.
    """
    difference = float(wan_bytes.observed - wan_bytes.expected) / max(float(wan_bytes.expected), 1.0)
    return None if abs(difference) <= 1e-6 else difference


def deviation_text(share: float) -> str:
    """Format a relative deviation with its sign."""
    return f"{'+' if share > 0 else '-'}{percent_text(abs(share))}"


def rates_text(rates: Rates) -> str:
    """Format rates, such as "32,760 tokens/s, 4 sequences/s, MFU 20.1 %"."""
    parts = [f"{per_second_text(rates.tokens_per_s)} tokens/s"]
    if rates.sequences_per_s:  # older searches did not count them
        parts.append(f"{per_second_text(rates.sequences_per_s)} sequences/s")
    return ", ".join([*parts, f"MFU {percent_text(rates.mfu)}"])


def describe_rates(variant: Variant) -> str:
    """Describe a variant's rates; empty if its figures must not be used, or if step times are sufficient."""
    done = variant.done
    if variant.verdict.status == "untrusted" or not (variant.rates or done.with_stalls):
        return ""
    rates = (
        rates_text(variant.rates) if variant.rates else f"{per_second_text(done.per_second)} {done.unit}/s"
    )
    return f"{variant.name}: {rates}{elapsed_text(done)}."


def elapsed_text(done: Work) -> str:
    """Describe the time that a variant's rates cover, if it is more than its steps."""
    if not done.with_stalls:
        return ""
    without_replicas = (
        f", {done.partial_steps} of its steps without all replicas" if done.partial_steps else ""
    )
    return f", over {time_text(done.elapsed_s)} with all stalls{without_replicas}"


def predicted_rates_text(name: str, work: StepWork | None, step_time_s: float) -> str:
    """Describe the rates of a predicted step; empty if it trains no model."""
    rates = compute_rates(work, step_time_s)
    return f"{name}: {rates_text(rates)}." if rates else ""
