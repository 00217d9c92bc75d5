"""Report sections on served requests and decoded tokens: latencies as text and charts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant
from testbed.measure.results.serving_result import Decoding, Serving, TokenParts
from testbed.show.report.charts import series_class, variant_css
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing
from testbed.spec.units import per_second_text, percent_text, time_text

PARTS = {
    "batching_s": "batching",
    "queue_s": "queue",
    "transfer_s": "transfer",
    "compute_s": "compute",
}
LEAST_ANSWERED = 0.98  # share of arrivals below which both rates are given
_LABEL_ROOM, _TOP, _AXIS_ROOM, _HEIGHT = 64, 10, 42, 240
_CURVE = re.compile(r"(.+)-[0-9][0-9.]*k?")


def describe_requests(variant: str, found: Serving | None) -> list[str]:
    """Describe a variant's latencies, and late or lost requests; empty without requests."""
    if found is None:
        return []
    load, late = found.offered_per_s, found.latency
    words = f"{variant}: {per_second_text(load)} requests/s"
    if found.answered_per_s < LEAST_ANSWERED * load:
        words += f" arrive, {per_second_text(found.answered_per_s)} are answered"
    words += f", latency p50 {time_text(late.p50)}, "
    words += f"p99 {time_text(late.p99)}, p99.9 {time_text(late.p999)}; "
    words += f"{percent_text(found.within)} within {time_text(found.objective_s)}"
    if found.first_token is not None:
        words += f"; first token p99 {time_text(found.first_token.p99)}"
    if found.per_token is not None:
        words += f", {time_text(found.per_token.p99)} per token"
    return [f"{words}.", *(f"{variant}: {own}." for own in describe_failures(found))]


def describe_serving(variant: str, found: Serving | None) -> list[str]:
    """Describe a variant's requests, and how a late request's time was spent; empty without requests."""
    if found is None:
        return []
    first, *failures = describe_requests(variant, found)
    parts = found.p99_parts.document()
    where = ", ".join(f"{name} {time_text(parts[key])}" for key, name in PARTS.items() if parts[key] >= 1e-9)
    full = f"{found.limited_by} is full at {per_second_text(found.capacity_per_s)} requests/s"
    return [first, f"{variant}: the p99 request's time: {where}; {full}.", *failures]


def describe_failures(found: Serving) -> list[str]:
    """Describe retries, losses and outages; empty if there were none."""
    if not (found.outages or found.lost or found.sent_again):
        return []
    words = [f"{found.sent_again:,} requests sent again, {found.lost:,} lost"]
    for one in found.outages:
        back = "never answered again" if one.back_s is None else f"answered again at {time_text(one.back_s)}"
        spans = {"before": one.before, "until then": one.during, "after": one.after}
        late = ", ".join(f"{name} {time_text(own.p99)}" for name, own in spans.items() if own is not None)
        words.append(f"{one.name} was given up at {time_text(one.noticed_s)} and {back}; p99 {late}")
    return words


def serving_rows(variants: Sequence[JsonObject]) -> list[JsonObject]:
    """Return figures, parts of late requests, and links by utilisation for each variant that serves requests."""
    found = []
    for index, variant in enumerate(variants):
        serving = variant.get("serving")
        if not serving:
            continue
        total_s = sum(serving["p99_parts"].values()) or 1.0
        parts = [
            {"name": name, "seconds": serving["p99_parts"][key], "share": serving["p99_parts"][key] / total_s}
            for key, name in PARTS.items()
        ]
        links = sorted(serving["links"], key=lambda link: -link["utilisation"])
        found.append(
            {
                "name": variant["name"],
                "series": series_class(index),
                **serving,
                "parts": parts,
                "links": links,
                "met": _meets_objective(serving),
            }
        )
    return found


def most_within(variants: Sequence[JsonObject]) -> dict[str, float]:
    """Return, per curve, the highest measured load that met the objective, in requests per second."""
    found: dict[str, float] = {}
    for variant in variants:
        serving = variant.get("serving")
        if serving and _meets_objective(serving):
            name = curve_of(variant["name"])
            found[name] = max(found.get(name, 0.0), serving["offered_per_s"])
    return found


def _meets_objective(serving: JsonObject) -> bool:
    """Return whether the objective is met at a sustainable load, since a step may end before queues grow visibly."""
    held: bool = serving["within"] >= serving["objective_share"]
    return held and serving["offered_per_s"] <= serving["capacity_per_s"]


def curve_of(name: str) -> str:
    """Return the curve of a variant; variants named NAME-LOAD form one curve."""
    match = _CURVE.fullmatch(name)
    return match[1] if match else name


def latency_chart(variants: Sequence[JsonObject], width: float = CHART_WIDTH) -> Markup | None:
    """Plot the share of requests answered within a time; None without requests."""
    own = [(index, one, one["serving"]["cdf_s"]) for index, one in enumerate(variants) if one.get("serving")]
    if not own:
        return None
    drawing = Drawing(width, _HEIGHT, "Share of requests answered within a time")
    shares = [*(number / 100 for number in range(100)), 0.995, 0.999, 1.0]
    low = min(values[0] for _, _, values in own)
    axis = _log_axis(drawing, low, max(values[-1] for _, _, values in own), width, "latency")
    up = Axis(0.0, 1.0, _HEIGHT - _AXIS_ROOM, _TOP)
    for share in (0.0, 0.5, 0.99):
        drawing.line((_LABEL_ROOM, up(share)), (width - 16, up(share)), "grid")
        drawing.text(_LABEL_ROOM - 8, up(share) + 4, f"{share:.0%}", "tick", anchor="end")
    for index, variant, values in own:
        group = drawing.group(variant_css(index, variant), variant["name"])
        points = [(axis(math.log10(value)), up(share)) for value, share in zip(values, shares, strict=True)]
        for start, end in pairwise(points):
            drawing.line(start, end, "whisker", parent=group)
    return drawing.markup()


def load_chart(variants: Sequence[JsonObject], width: float = CHART_WIDTH) -> Markup | None:
    """Plot the 99th percentile against the load, with a line per curve; None if no curve has several loads.

    The model's prediction is dashed.
    """
    curves: dict[str, list[tuple[float, float, int, JsonObject]]] = {}
    for index, variant in enumerate(variants):
        if serving := variant.get("serving"):
            point = serving["offered_per_s"], serving["latency"]["p99"], index, variant
            curves.setdefault(curve_of(variant["name"]), []).append(point)
    if all(len(points) < 2 for points in curves.values()):
        return None
    every = [point for points in curves.values() for point in points]
    drawing = Drawing(width, _HEIGHT, "99th percentile of latency against requests per second")
    wide = width >= CHART_WIDTH
    room = 140 if wide else 84  # for curves' names
    said = [seconds for *_, variant in every if (seconds := _predicted_p99_s(variant)) is not None]
    shown = [*(p99 for _, p99, _, _ in every), *said]
    low, high = (pick(map(math.log10, shown)) for pick in (min, max))
    up = Axis(low - 0.05, high + 0.05, _HEIGHT - _AXIS_ROOM, _TOP)
    across = Axis(0.0, 1.05 * max(load for load, *_ in every), _LABEL_ROOM, width - room)
    for seconds in _decades(10**low, 10**high):
        y = up(math.log10(seconds))
        drawing.line((_LABEL_ROOM, y), (width - room, y), "grid")
        drawing.text(_LABEL_ROOM - 8, y + 4, time_text(seconds), "tick", anchor="end")
    for load in across.ticks(6 if wide else 3):
        drawing.text(across(load), _HEIGHT - _AXIS_ROOM + 17, f"{load:,.6g}/s", "tick", anchor="middle")
    for number, (name, points) in enumerate(curves.items()):
        group = drawing.group(series_class(number), name)
        by_load = sorted(points, key=lambda point: point[0])
        places = [(across(load), up(math.log10(p99))) for load, p99, *_ in by_load]
        for start, end in pairwise(places):
            drawing.line(start, end, "whisker", parent=group)
        model = [
            (across(load), up(math.log10(seconds)))
            for load, _, _, variant in by_load
            if (seconds := _predicted_p99_s(variant)) is not None
        ]
        for start, end in pairwise(model):
            drawing.line(start, end, "whisker by-model", parent=group)
        drawing.text(places[-1][0] + 6, places[-1][1] + 4, name, "value", room=room - 10, parent=group)
        for load, p99, _, variant in points:
            tip = f"{variant['name']}: p99 {time_text(p99)} at {load:,.4g}/s"
            place = across(load), up(math.log10(p99))
            drawing.circle(*place, 3, f"{series_class(number)} point", tooltip=tip)
    return drawing.markup()


def _predicted_p99_s(variant: JsonObject) -> float | None:
    """Return the 99th percentile that the model predicts, if any."""
    predicted = variant["serving"].get("predicted")
    return None if predicted is None else float(predicted["p99"])


def _log_axis(drawing: Drawing, low: float, high: float, width: float, what: str) -> Axis:
    """Draw a logarithmic time axis with grid lines."""
    if high <= low:
        low, high = low * 0.9, high * 1.1
    axis = Axis(math.log10(low), math.log10(high), _LABEL_ROOM, width - 16)
    lines = _decades(low, high)
    for seconds in lines if width >= CHART_WIDTH else lines[:: len(lines) // 5 + 1]:
        x = axis(math.log10(seconds))
        drawing.line((x, _TOP), (x, _HEIGHT - _AXIS_ROOM), "grid")
        drawing.text(x, _HEIGHT - _AXIS_ROOM + 17, time_text(seconds), "tick", anchor="middle")
    drawing.text(width - 16, _HEIGHT - 6, what, "tick", anchor="end")
    return axis


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two times."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        value
        for power in powers
        for value in (factor * 10.0**power for factor in (1, 2, 5))
        if low <= value <= high
    ]


def describe_decoding(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence per variant that decodes."""
    own = [(variant, variant.decoding) for variant in variants if variant.decoding is not None]
    cached = _cached([found for _, found in own])
    return [_words(variant, found, cached) for variant, found in own]


def _words(variant: Variant, found: Decoding, cached: TokenParts | None) -> str:
    parts, times = found.parts, found.token_s
    # runs of earlier versions have no work
    rate = f"{per_second_text(variant.work.per_second)} tokens/s, " if variant.work else ""
    words = f"{variant.name}: {rate}a token takes {time_text(times.p50)}, p99 {time_text(times.p99)}"
    for what, seconds in (
        ("counts gathered", parts.gathered_s),
        ("counts read", parts.read_s),
        ("buffers posted", parts.posted_s),
    ):
        if seconds:
            words += f", {what} {time_text(seconds)} of it"
    rounds_s = parts.dispatch_s + parts.combine_s
    shares = {"control": control_s(parts, cached), "put": parts.put_s, "wait": wait_s(parts, cached)}
    if rounds_s and shares["control"] is not None:
        said = ", ".join(f"{what} {percent_text((part or 0.0) / rounds_s)}" for what, part in shares.items())
        words += f"; dispatch and combine: {said}"
    return f"{words}."


def decoding_rows(variants: Sequence[JsonObject]) -> list[JsonObject]:
    """Return times and parts per variant that decodes; `cells` are the table's seconds, None if unknown."""
    own = [(index, one["name"], one["decoding"]) for index, one in enumerate(variants) if one.get("decoding")]
    typed = [Decoding.model_validate(found) for _, _, found in own]
    cached = _cached(typed)
    rows = []
    for (index, name, found), known in zip(own, typed, strict=True):
        parts = known.parts
        cells: list[float | None] = [parts.compute_s, parts.gathered_s, parts.read_s, parts.posted_s]
        cells += [control_s(parts, cached), parts.put_s, wait_s(parts, cached)]
        rows.append({"name": name, "series": series_class(index), **found, "cells": cells})
    return rows


def control_s(parts: TokenParts, cached: TokenParts | None) -> float | None:
    """Return the control overhead of dispatch and combine: time beyond their bytes, minus a cached variant's.

    A cached variant sends only rows. The result is None if there is no cached variant.
    """
    if cached is None:
        return None
    return max(0.0, _beyond_bytes_s(parts) - _beyond_bytes_s(cached))


def wait_s(parts: TokenParts, cached: TokenParts | None) -> float:
    """Return the rest of dispatch and combine: latency, waiting for others, and control overhead if that is unknown."""
    return max(0.0, _beyond_bytes_s(parts) - (control_s(parts, cached) or 0.0))


def _beyond_bytes_s(parts: TokenParts) -> float:
    return parts.dispatch_s + parts.combine_s - parts.put_s


def _cached(found: Sequence[Decoding]) -> TokenParts | None:
    return next((one.parts for one in found if one.cached), None)
