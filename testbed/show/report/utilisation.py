"""WAN charts of the report: utilisation of each direction, per step and over time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from testbed.measure.results.records import JsonObject, LinkKey
from testbed.show.report.charts import draw_time_axis, series_class, step_spans, variant_css
from testbed.show.report.run_data import LinkCounters, RunData
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing
from testbed.spec.units import percent_text, rate_text, size_text

_MOST_POINTS = 600
# Space for a link's name on the left and figures on the right, on wide pages and on phones.
_LABEL_ROOM, _LABEL_ROOM_ON_PHONES = 190, 112
_FIGURE_ROOM, _FIGURE_ROOM_ON_PHONES = 160, 66
_AXIS_ROOM = 26

Interval = tuple[float, float, float]
"""Start and end in seconds, and the share of the link's capacity used in between."""


def utilisation_per_step_chart(variants: Sequence[JsonObject], width: float = CHART_WIDTH) -> Markup:
    """Draw one bar per WAN direction and variant: share of capacity used over a step, 0 to 100 %.

    A narrow chart omits bytes.
    """
    wide = width >= CHART_WIDTH
    room = _LABEL_ROOM if wide else _LABEL_ROOM_ON_PHONES
    keys = list(dict.fromkeys(LinkKey.of(record) for variant in variants for record in variant["wan_links"]))
    bar = 14
    row = bar * len(variants) + 14
    height = row * len(keys) + _AXIS_ROOM
    drawing = Drawing(width, height, "Share of each WAN direction's capacity used per step")
    axis = Axis(0.0, 1.0, start=room, end=width - (_FIGURE_ROOM if wide else _FIGURE_ROOM_ON_PHONES))
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0) if wide else (0.0, 0.5, 1.0):
        drawing.line((axis(tick), 0), (axis(tick), height - _AXIS_ROOM), "grid")
        drawing.text(axis(tick), height - 9, f"{tick:.0%}".replace("%", " %"), "tick", anchor="middle")
    for position, key in enumerate(keys):
        top = position * row + 7
        _draw_link_label(drawing, key, top + row / 2 - 3, len({k.plane for k in keys}) > 1, room=room)
        for index, variant in enumerate(variants):
            use = next((r for r in variant["wan_links"] if LinkKey.of(r) == key), None)
            if use is None:
                continue
            y = top + index * bar
            label = percent_text(use["utilisation"]) + (f" · {size_text(use['bytes'])}" if wide else "")
            group = drawing.group(variant_css(index, variant), f"{variant['name']}: {label} per step")
            drawing.rect(axis.start, y, axis(use["utilisation"]) - axis.start, bar - 2, "bar", parent=group)
            drawing.text(axis(use["utilisation"]) + 6, y + bar - 4, label, "value", parent=group)
    return drawing.markup()


def utilisation_over_time_chart(data: RunData, width: float = CHART_WIDTH) -> Markup | None:
    """Draw, per WAN direction, the share of capacity in use over the run; None without counters.

    A strip on top, and tinted bands below it, show which variant's steps were measured.
    """
    intervals = {
        key: utilisation_between(counters, link_rates(data, key), _MOST_POINTS)
        for key, counters in data.links.items()
    }
    intervals = {key: values for key, values in intervals.items() if values}
    if not intervals:
        return None
    wide = width >= CHART_WIDTH
    room = _LABEL_ROOM if wide else _LABEL_ROOM_ON_PHONES
    strip, row = 22, 52
    height = strip + row * len(intervals) + _AXIS_ROOM
    drawing = Drawing(width, height, "Utilisation of each WAN direction along the run")
    begin = min(values[0][0] for values in intervals.values())
    end = max(values[-1][1] for values in intervals.values())
    axis = Axis(begin, end, start=room, end=width - (92 if wide else 96))
    _draw_measured_steps(drawing, data, axis, strip, height - _AXIS_ROOM)
    _draw_events(drawing, data, axis, strip, height - _AXIS_ROOM)
    draw_time_axis(drawing, axis, strip, height - _AXIS_ROOM, about=9 if wide else 3)
    several_planes = len({key.plane for key in intervals}) > 1
    for position, (key, values) in enumerate(intervals.items()):
        top, bottom = strip + position * row + 8, strip + (position + 1) * row
        share = Axis(0.0, 1.0, start=bottom, end=top)
        rate = link_rates(data, key).text() if wide else None
        _draw_link_label(drawing, key, bottom - 14, several_planes, rate, room=room)
        for level in (0.0, 1.0):
            drawing.line(
                (axis.start, share(level)), (axis.end, share(level)), "base" if not level else "grid"
            )
        outline = [(axis(values[0][0]), float(bottom))]
        for start, stop, used in values:
            outline += [(axis(start), share(used)), (axis(stop), share(used))]
        outline.append((axis(values[-1][1]), float(bottom)))
        drawing.polygon(outline, "area")
        peak = percent_text(max(used for _, _, used in values))
        own = data.links[key]
        words = [f"{own.dropped} drops"] * bool(own.dropped) + [f"{own.lost} lost"] * bool(own.lost)
        drawing.text(axis.end + 8, bottom - (14 if len(words) < 2 else 29), f"peak {peak}", "tick")
        for line, said in enumerate(reversed(words)):
            drawing.text(axis.end + 8, bottom + 1 - 15 * line, said, "tick")
    return drawing.markup()


def _draw_measured_steps(drawing: Drawing, data: RunData, axis: Axis, top: float, bottom: float) -> None:
    drawing.text(0, 14, "measured steps", "tick")
    for index, variant in enumerate(data.variants):
        own = [sample for sample in data.samples if sample.variant == variant["name"]]
        for (trial, step), (start, end) in step_spans(own).items():
            left, width = axis(start), max(axis(end) - axis(start), 1.0)
            group = drawing.group(series_class(index), f"{variant['name']}, trial {trial}, step {step}")
            drawing.rect(left, 4, width, 10, "bar", parent=group)
            drawing.rect(left, top, width, bottom - top, "band", parent=group)


def _draw_events(drawing: Drawing, data: RunData, axis: Axis, top: float, bottom: float) -> None:
    """Draw a line where an event begins, and a dashed line where it ends."""
    for entry in data.events:
        if entry["time_s"] is None or not axis.low <= entry["time_s"] <= axis.high:
            continue
        x = axis(entry["time_s"])
        words = f"{entry['action']} {entry['target']} {'begins' if entry['begins'] else 'ends'}"
        group = drawing.group("event" if entry["begins"] else "event ends", words)
        drawing.line((x, top - 6), (x, bottom), "event-line", parent=group)


def _draw_link_label(
    drawing: Drawing,
    key: LinkKey,
    y: float,
    several_planes: bool,
    more: str | None = None,
    *,
    room: float,
) -> None:
    name = f"{key.source} → {key.target}"
    details = [f"plane {key.plane}"] if several_planes else []
    details += [more] if more else []
    first = y if not details else y - 6
    drawing.text(0, first, name, "row-label", room=room - 10)
    if details:
        drawing.text(0, first + 15, " · ".join(details), "tick")


class LinkRates:
    """The real rate of one WAN direction over a run; between steps, that of the variant whose step is nearest.

    `turns` has (begin, end, rate) of each measured step in time order; the rate is 0 if the variant has no such link.
    """

    def __init__(self, turns: Sequence[tuple[float, float, float]]) -> None:
        self._turns = turns
        self._ends_s = [end_s for _, end_s, _ in turns]

    def at(self, time_s: float) -> float:
        """Return the rate at a time, in bit/s; 0 if unknown."""
        if not self._turns:
            return 0.0
        after = min(bisect_left(self._ends_s, time_s), len(self._turns) - 1)
        before = max(0, after - 1)
        is_nearer = time_s - self._ends_s[before] < self._turns[after][0] - time_s
        return self._turns[before if is_nearer else after][2]

    def text(self) -> str:
        """Return the rate as text; a range if variants differ."""
        rates_bps = [rate_bps for _, _, rate_bps in self._turns if rate_bps]
        known = sorted({rate_text(rate) for rate in rates_bps}, key=len)
        if len(known) <= 1:
            return "".join(known)
        return f"{rate_text(min(rates_bps))} to {rate_text(max(rates_bps))}"


def link_rates(data: RunData, key: LinkKey) -> LinkRates:
    """Return the rates of a WAN direction over a run, from each variant's scenario."""
    rates_bps = {
        variant["name"]: float(record["rate_bps"])
        for variant in data.variants
        for record in variant["wan_links"]
        if LinkKey.of(record) == key
    }
    turns = sorted(
        (*span, rates_bps.get(variant["name"], 0.0))
        for variant in data.variants
        for span in step_spans([one for one in data.samples if one.variant == variant["name"]]).values()
    )
    return LinkRates(turns or [(0.0, 0.0, rate_bps) for rate_bps in list(rates_bps.values())[:1]])


def utilisation_between(counters: LinkCounters, rates: LinkRates, most: int | None = None) -> list[Interval]:
    """Return the utilisation between samples of a cumulative counter, relative to the rate at their midpoint.

    If there are more than `most` readings, they are thinned, which averages over longer intervals and loses no byte.
    """
    every = 1 if most is None else -(-len(counters.times_s) // most) or 1
    points = list(zip(counters.times_s, counters.sent_bytes, strict=True))[::every]
    return [
        (start, end, (after - before) * 8 / (end - start) / rate_bps)
        for (start, before), (end, after) in pairwise(points)
        if end > start and (rate_bps := rates.at((start + end) / 2))
    ]
