"""What a search found, in the words in which one would tell it: first of all that a page or a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from testbed.config.explore import USUAL
from testbed.explorer import Configuration
from testbed.explorer.rivals import AS_GIVEN
from testbed.model.work import StepWork
from testbed.paths.queues import ShortQueue
from testbed.report.compare import speedup_interval
from testbed.report.figures import percent_text, size_text, time_text
from testbed.report.rates import rates_words
from testbed.results.rates import rates_of
from testbed.results.records import JsonObject
from testbed.results.result import Variant

# of what is compared, in the order of their colours
KINDS = BASELINE, SINGLE, BEST, RANDOM = "baseline", "single", "best", "random"

Row = dict[str, Any]
"""An entry of what is compared, with what was `measured` of it, or None."""


def answer(document: JsonObject, rows: Sequence[Row]) -> list[str]:
    """Sentences: the best, what it gains, what each dimension is worth alone, what has no effect, how sure that is.

    document: of `exploration.json`; rows: what it compares.
    """
    best = best_of(rows)
    short = document.get("short_queues", [])  # searches of before have none of either
    return [
        _best(document, best),
        *_gains(best, [row for row in rows if row["kind"] == BASELINE]),
        *_alone(rows),
        *_indifferent(document["indifferent"]),
        *_recorded(document.get("recorded")),
        *([short_queue_words([ShortQueue(*one) for one in short])] if short else []),
        *_by_packets(document.get("rungs", [])),
        _sure(document, best),
    ]


def best_of(rows: Sequence[Row]) -> Row:
    """The very best of what is compared: the quickest that was measured and is not untrusted, or the first."""
    best = [row for row in rows if row["kind"] == BEST]
    trusted = [row for row in best if row["measured"] and row["measured"].verdict.status != "untrusted"]
    return min(trusted, key=step_time_s, default=best[0])


def _best(document: JsonObject, best: Row) -> str:
    measured: Variant | None = best["measured"]
    step_s = step_time_s(best)
    told = [f"{time_text(step_s)} a step{'' if measured else ' by the model'}"]
    if document["work"]:
        work = StepWork(**document["work"])
        if rates := rates_of(work, step_s):
            told.append(rates_words(rates))
        told.append(_least(work.computing_s))
    elif recorded := document.get("recorded"):
        told.append(_least(recorded["computing_s"]))
    return f"The best: {best['configuration']}. {', '.join(told)}."


def _least(computing_s: float) -> str:
    return f"no less than {time_text(computing_s)} by computing alone"


def _gains(best: Row, baselines: Sequence[Row]) -> Iterator[str]:
    """Over the quickest baseline, tuned or not, and over each of them."""
    if not baselines:
        return
    quickest = min(baselines, key=step_time_s)
    ratio, how = _ratio(best, quickest)
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
    each = [f"{_ratio(best, row)[0]:.2f}x over {_given(row)}" for row in first]
    if each:
        yield f"{' and '.join(each)}."


def _given(row: Row) -> str:
    if row["of"] == AS_GIVEN:
        return "the job as given"
    return str(row["name"] if row["tuned"] else f"{row['of']} as given")


def _alone(rows: Sequence[Row]) -> Iterator[str]:
    singles = [row for row in rows if row["kind"] == SINGLE]
    base = next((row for row in rows if row["kind"] == BASELINE and not row["tuned"]), None)
    worth: dict[str, list[str]] = {}
    for row in singles:
        if base is not None:
            ratio, _ = _ratio(row, base)
            more = "with degrees " if row["tuned"] else ""
            worth.setdefault(row["of"].removeprefix("only "), []).append(f"{more}{ratio:.2f}x")
    if worth and base is not None:
        each = ", ".join(f"{dimension} {' and '.join(some)}" for dimension, some in worth.items())
        yield f"Alone, against {_given(base)}: {each}."


def _indifferent(indifferent: JsonObject) -> Iterator[str]:
    if indifferent:
        yield f"No effect on the best, by the model: {Configuration(indifferent)}."


def _recorded(recorded: JsonObject | None) -> Iterator[str]:
    if recorded:
        planners = ", ".join(USUAL)
        yield (
            f"What each rank does is as recorded, so planners of parallelism ({planners}) are not among what it is "
            "held against."
        )


def _by_packets(rungs: Sequence[JsonObject]) -> Iterator[str]:
    """Of how many the best were chosen on the network, and where the quickest of them had stood."""
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


def _sure(document: JsonObject, best: Row) -> str:
    right = document["agreement"]
    if right:
        return (
            f"The model was {percent_text(right['median_error'])} off in the median here, "
            f"{percent_text(right['worst_error'])} at the worst; Kendall's tau {right['kendall_tau']:.2f}."
        )
    if best["measured"]:
        return "Measured on the emulated network."
    return "Nothing of it was measured yet; --confirm runs what is compared on the emulated network."


def short_queue_words(short: Sequence[ShortQueue]) -> str:
    """That the model is too quick where they overflow; there are some."""
    each = ", ".join(
        f"{one.here} to {one.there} {size_text(one.queue_bytes)} of {size_text(one.under_way_bytes)}"
        for one in short
    )
    return (
        f"Queues that hold less than a round trip of bytes: {each}. "
        "Where they overflow steps take longer than the model says, which knows nothing of that."
    )


def step_time_s(row: Row) -> float:
    """Measured where it was."""
    measured: Variant | None = row["measured"]
    return float(measured.step_time_s.median if measured else row["step_time_s"])


def _ratio(quick: Row, slow: Row) -> tuple[float, str]:
    """How many times as fast, and by what that is known."""
    one, other = quick["measured"], slow["measured"]
    if not (one and other):
        return slow["step_time_s"] / quick["step_time_s"], "by the model"
    here, there = one.step_time_s, other.step_time_s
    interval = speedup_interval(here.samples, there.samples)
    sure = f"; {interval[0]:.2f}x to {interval[1]:.2f}x at 95 % confidence" if interval else ""
    return there.median / here.median, f"measured{sure}"


def paired(rows: Sequence[Row]) -> list[Row]:
    """Those to show, one for each name: as tuned where that fits, with the same `as_given` beside it, or None."""
    shown: dict[str, Row] = {}
    for row in rows:
        if row["kind"] not in (BASELINE, SINGLE):
            shown[row["name"]] = {**row, "as_given": None}
        elif row["tuned"]:
            shown[row["of"]] = {**row, "as_given": shown.get(row["of"])}
        else:
            shown[row["of"]] = {**row, "as_given": row}
    return list(shown.values())
