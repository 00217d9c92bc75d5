"""A run's result in a notebook: a row per variant, what did not hold, the steps drawn where the folder is there."""

from __future__ import annotations

from typing import Any

from testbed.errors import TestbedError
from testbed.notebooks import html_image, html_table
from testbed.spec.units import signed_percent_text, size_text, time_text

HEADINGS = (
    "variant",
    "verdict",
    "step time",
    "shortest",
    "longest",
    "trials",
    "by the model",
    "compute",
    "WAN bytes",
)


def result_html(result: Any) -> str:
    """Of a `Result`, which imports this: the worst verdict first, then all variants."""
    after = [f"{variant.name} is limited by {variant.limited_by}." for variant in result.variants]
    for variant in result.variants:
        after += [f"{variant.name}, {entry.name}: {entry.sentence}" for entry in variant.verdict.failed]
    after.append(f"Report: {result.folder / 'report.html'}")
    before = [f"{result.scenario}: {result.status}, by the {result.clock} clock"]
    table = html_table(HEADINGS, [_row(variant) for variant in result.variants], before, after)
    return f"{table}{_drawing(result)}"


def _row(variant: Any) -> list[str]:
    times = variant.step_time_s
    predicted = variant.predicted
    return [
        variant.name,
        variant.verdict.status,
        *(time_text(value) for value in (times.median, times.min, times.max)),
        f"{times.n} ({partial} partial)" if (partial := variant.done.partial_steps) else str(times.n),
        f"{time_text(predicted.step_time_s)} ({signed_percent_text(predicted.error)})" if predicted else "",
        time_text(variant.compute_s),
        size_text(variant.wan_bytes.observed),
    ]


def _drawing(result: Any) -> str:
    """Empty where the folder is elsewhere: what a notebook shows must not fail."""
    try:
        return html_image(result.figure("step_times").svg, "every measured step of each variant")
    except TestbedError:
        return ""
