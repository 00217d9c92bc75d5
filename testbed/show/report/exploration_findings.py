"""The findings of a configuration search, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from testbed.measure.results.committed_work import compute_rates
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant
from testbed.net.paths.buffer_checks import ShortQueue
from testbed.prediction.search import Configuration
from testbed.prediction.search.baselines import AS_GIVEN
from testbed.prediction.search.evaluation import short_name
from testbed.prediction.step_flops import StepWork
from testbed.show.report.variant_text import rates_text, speedup, speedup_interval
from testbed.spec.search_space import DEFAULT_BASELINES
from testbed.spec.units import percent_text, size_text, time_text

# kinds of compared entries, in the order of their colours
KINDS = BASELINE, SINGLE, BEST, RANDOM = "baseline", "single", "best", "random"
BY_MODEL = "by the model"

Row = dict[str, Any]
"""A compared entry, with what was `measured` of it, or None."""


def describe_findings(document: JsonObject, rows: Sequence[Row]) -> list[str]:
    """Return sentences on the best, its gain, each dimension's value, paths without effect, and the accuracy.

    If nothing was measured, the last sentence says what to confirm next. `document` is an `exploration.json`, and
    `rows` are its compared entries.
    """
    return [*describe_results(document, rows), *describe_accuracy(document, rows)]


def describe_results(document: JsonObject, rows: Sequence[Row]) -> list[str]:
    """Return all sentences except those on the accuracy."""
    best = best_of(rows)
    queues = document.get("short_queues", [])  # older searches have none
    return [
        _best(document, best),
        *_describe_gains(document, best, [row for row in rows if row["kind"] == BASELINE]),
        *_describe_dimensions(rows),
        *_indifferent(document["indifferent"], document.get("kept")),
        *_recorded(document.get("recorded")),
        *([describe_short_queues([ShortQueue(*one) for one in queues])] if queues else []),
        *_by_packets(document.get("rungs", [])),
    ]


def describe_accuracy(document: JsonObject, rows: Sequence[Row]) -> list[str]:
    """Describe the model's error here if measured, else at similar measured points, and what to confirm."""
    right, best = document["agreement"], best_of(rows)
    if right:
        return [
            f"The model was {percent_text(right['median_error'])} off in the median here, "
            f"{percent_text(right['worst_error'])} at the worst; Kendall's tau {right['kendall_tau']:.2f}."
        ]
    if best["measured"]:
        return ["Measured on the emulated network."]
    command, errors = document.get("confirm"), document.get("model_errors")  # older searches have neither
    if not errors:
        by = f"`{command}`" if command else "--confirm"
        return [f"Nothing was measured yet; {by} runs the compared configurations on the emulated network."]
    return [
        _describe_error(errors),
        *_describe_small_gains(document, best, float(errors["median"])),
        f"{_describe_near(document['near'], best)} `{command}` runs that on the emulated network.",
    ]


def best_of(rows: Sequence[Row]) -> Row:
    """Return the fastest of the best entries that was measured and is not untrusted, or else the first."""
    best = [row for row in rows if row["kind"] == BEST]
    trusted = [row for row in best if row["measured"] and row["measured"].verdict.status != "untrusted"]
    return min(trusted, key=whole_step_s, default=best[0])


def _best(document: JsonObject, best: Row) -> str:
    measured: Variant | None = best["measured"]
    step_s = step_time_s(best)
    told = [f"{time_text(step_s)} a step{'' if measured else ' by the model'}"]
    if document["work"]:
        work = StepWork(**document["work"])
        if rates := compute_rates(work, whole_step_s(best)):
            told.append(rates_text(rates))
        told.append(_lower_bound_text(work.computing_s))
    elif recorded := document.get("recorded"):
        told.append(_lower_bound_text(recorded["computing_s"]))
    return f"The best: {best['configuration']}. {', '.join(told)}."


def _lower_bound_text(computing_s: float) -> str:
    return f"at least {time_text(computing_s)} for compute alone"


def _describe_gains(document: JsonObject, best: Row, baselines: Sequence[Row]) -> Iterator[str]:
    """Compare with the fastest baseline, tuned or not, and with the first baseline as given and tuned."""
    if not baselines:
        return
    quickest = min(baselines, key=whole_step_s)
    ratio, how = _speed_up(best, quickest)
    errors = document.get("model_errors")
    if how == BY_MODEL and errors and 1 < ratio < 1 + errors["median"]:
        how += ", less than its error"
    than = _given(quickest) if quickest["of"] == AS_GIVEN else f"{quickest['name']}, the quickest baseline"
    if ratio >= 1:
        less = f", {percent_text(1 - 1 / ratio)} less time" if ratio > 1 else ""
        yield f"That is {ratio:.2f}x as fast as {than}{less} ({how})."
    else:
        yield (
            f"That is slower than {than}, {time_text(step_time_s(quickest))} ({how}): it chooses among values that "
            "the search was not given."
        )
    first = [row for row in baselines if row["of"] == baselines[0]["of"] and row is not quickest]
    each = [f"{_speed_up(best, row)[0]:.2f}x over {_given(row)}" for row in first]
    if each:
        yield f"{' and '.join(each)}."


def _given(row: Row) -> str:
    if row["of"] == AS_GIVEN:
        return "the job as given"
    return str(row["name"] if row["tuned"] else f"{row['of']} as given")


def _describe_dimensions(rows: Sequence[Row]) -> Iterator[str]:
    singles = [row for row in rows if row["kind"] == SINGLE]
    base = next((row for row in rows if row["kind"] == BASELINE and not row["tuned"]), None)
    worth: dict[str, list[str]] = {}
    for row in singles:
        if base is not None:
            ratio, _ = _speed_up(row, base)
            more = "with degrees " if row["tuned"] else ""
            worth.setdefault(row["of"].removeprefix("only "), []).append(f"{more}{ratio:.2f}x")
    if worth and base is not None:
        each = ", ".join(f"{dimension} {' and '.join(some)}" for dimension, some in worth.items())
        yield f"Alone, against {_given(base)}: {each}."


def _indifferent(indifferent: JsonObject, kept: Sequence[str] | None) -> Iterator[str]:
    """Describe the paths without effect; `kept` has those with the scenario's own value, None for older searches."""
    if not indifferent:
        return
    if kept is None:
        yield f"No effect on the best, by the model: {Configuration(indifferent)}."
        return
    own = {path: value for path, value in indifferent.items() if path in kept}
    others = {path: value for path, value in indifferent.items() if path not in kept}
    told = [f"{Configuration(own)}: yours kept"] if own else []
    told += [f"{Configuration(others)}: any other is as good"] if others else []
    yield f"No effect on the best, by the model: {'; '.join(told)}."


def _recorded(recorded: JsonObject | None) -> Iterator[str]:
    if recorded:
        planners = ", ".join(DEFAULT_BASELINES)
        yield (
            f"Each rank's operations are as recorded, so parallelism planners ({planners}) are not among what it is "
            "held against."
        )


def _by_packets(rungs: Sequence[JsonObject]) -> Iterator[str]:
    """Describe how packet-level measurements reordered the model's best configurations."""
    if not rungs:
        return
    by_model = sorted(rungs[0]["candidates"], key=lambda one: float(one["predicted_s"]))
    steps = {one["name"]: float(one["step_time_s"]) for rung in rungs for one in rung["candidates"]}
    quickest = rungs[-1]["candidates"][0]["name"]
    place = [one["name"] for one in by_model].index(quickest)
    told = f"Of the {len(by_model)} quickest by the model packets chose "
    if place == 0:
        yield f"{told}its first."
    else:
        less = percent_text(1 - steps[quickest] / steps[by_model[0]["name"]])
        yield f"{told}its number {place + 1}, {less} less time than its first."


def _describe_error(errors: JsonObject) -> str:
    """Describe the model's error at similar measured points."""
    median, of = percent_text(errors["median"]), f"{errors['of']} that were measured"
    each = f"{median} off in the median of {of}"
    if errors["points"] > 1:
        each = f"at most {median} off in the median of each of {errors['points']} networks ({of})"
    worst = f"{percent_text(errors['worst'])} at the worst of {errors['measured']}"
    told = f"{each}, {worst}; it cannot distinguish differences below {median}."
    return f"At points like this one ({errors['what']}) the model was {told}"


def _describe_small_gains(document: JsonObject, best: Row, median: float) -> Iterator[str]:
    """Name the best's choices that gain less than the model's error, with the cost of reverting each alone."""
    found = document.get("sensitivity")
    if not found:
        return
    told = {short_name(path) for path in document["indifferent"]}
    gains = []
    for entry in found["given_back"]:
        alone, step_s = entry["choices"], entry["step_time_s"]
        if len(alone) > 1 or step_s is None or alone[0] in told:
            continue
        if 0 <= step_s / found["best_s"] - 1 < median:
            own = {path: value for path, value in best["changes"].items() if short_name(path) == alone[0]}
            what, gain = str(Configuration(own)) or alone[0], 1 - found["best_s"] / step_s
            gains.append(f"{what} ({percent_text(gain)})" if gain else f"{what} (nothing)")
    if gains:
        yield (
            f"Each of these gains less than that alone: {', '.join(gains)}. "
            "Kept only because the model has nothing faster."
        )


def _describe_near(near: JsonObject, best: Row) -> str:
    """Name configurations within the model's error of the best, with their differences from it."""
    first, count = near["first"], near["count"]
    if count == 1:
        return "To confirm next: the best, since nothing else is within the model's error of it."
    each = "; ".join(f"{difference_text(best, one)}, {time_text(one['step_time_s'])}" for one in first[1:])
    which = f"the first {len(first) - 1} of " if each and count > len(first) else ""
    told = f" ({each})" if each else ""
    return f"To confirm next: the best and {which}{count - 1} within the model's error of it{told}."


def difference_text(best: Row, row: JsonObject) -> str:
    """Describe how a configuration differs from the best: "policy ecmp"; empty if it does not."""
    changes = {path: value for path, value in row["changes"].items() if best["changes"].get(path) != value}
    return str(Configuration(changes))


def describe_short_queues(queues: Sequence[ShortQueue]) -> str:
    """Warn that the model is too fast where short queues overflow."""
    each = ", ".join(
        f"{one.here} to {one.there} {size_text(one.queue_bytes)} of {size_text(one.bdp_bytes)}"
        for one in queues
    )
    return (
        f"Queues that hold less than a round trip of bytes: {each}. "
        "Where they overflow steps take longer than the model predicts, which does not cover this."
    )


def step_time_s(row: Row) -> float:
    """Return the step time, measured if possible."""
    measured: Variant | None = row["measured"]
    return float(measured.step_time_s.median if measured else row["step_time_s"])


def whole_step_s(row: Row) -> float:
    """Return the mean time per step, including stalls, if measured; rates and speed-ups are based on it."""
    measured: Variant | None = row["measured"]
    return measured.done.step_s if measured else float(row["step_time_s"])


def _speed_up(quick: Row, slow: Row) -> tuple[float, str]:
    """Return the speed-up and how it was obtained."""
    one, other = quick["measured"], slow["measured"]
    if not (one and other):
        return slow["step_time_s"] / quick["step_time_s"], BY_MODEL
    here, there = one.step_time_s, other.step_time_s
    interval = speedup_interval(here.samples, there.samples)
    sure = f"; {interval[0]:.2f}x to {interval[1]:.2f}x at 95 % confidence" if interval else ""
    return speedup(one, other), f"measured{sure}"


def pair_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row per name: the tuned one if it fits, with the other as `as_given`, or None."""
    shown: dict[str, Row] = {}
    for row in rows:
        if row["kind"] not in (BASELINE, SINGLE):
            shown[row["name"]] = {**row, "as_given": None}
        elif row["tuned"]:
            shown[row["of"]] = {**row, "as_given": shown.get(row["of"])}
        else:
            shown[row["of"]] = {**row, "as_given": row}
    return list(shown.values())
