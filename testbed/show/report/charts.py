"""Time charts of the report: step time distribution, breakdown of a step's time, one step's timeline."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from testbed.measure.results.records import JsonObject, Sample
from testbed.plugins import short_name
from testbed.show.report.run_data import RECEIVE, SEND, WHOLE_STEP, RunData, is_communication
from testbed.show.report.svg import (
    CHART_WIDTH,
    COLUMN_WIDTH,
    Axis,
    Drawing,
    pack_rows,
    padded_range,
    text_width,
)
from testbed.spec.units import percent_text, time_text
from testbed.workload.send_tokens import TOKEN

SERIES_COLOURS = 6
"""Number of variants with distinct colours in the style sheet; after that colours repeat, names do not."""

TIMELINE_RANKS = 16
"""Maximum number of ranks in a timeline; `trace.json` has all of them."""

_LABEL_ROOM = 118
_LABEL_ROOM_ON_PHONES = 84
_TOP = 4
_ROW = 62
_AXIS_ROOM = 26
_COMPUTE_HEIGHT = 10
_COMMUNICATION_HEIGHT = 36
_TRACK_HEIGHT = 7.0
_LEAST_WIDTH, _THIN, _UNSEEN_GAP = 0.6, 1.2, 0.5
_MOST_MARKS = 1500  # limit for coarser merging of thin marks
_COARSENESS = (1.0, 2.0, 3.0, 4.0)

Step = tuple[int, int]
"""Trial and step."""


def series_class(index: int) -> str:
    """Return the style class with a variant's colour, by its position in the scenario."""
    return f"series-{index % SERIES_COLOURS}"


def variant_css(index: int, variant: JsonObject) -> str:
    """Return the style classes of a variant's marks: its colour, dimmed if its figures are untrusted."""
    status = variant["verdict"]["status"]
    return series_class(index) + (" unreliable" if status == "untrusted" else "")


def draw_time_axis(drawing: Drawing, axis: Axis, top: float, bottom: float, about: int = 6) -> None:
    """Draw vertical grid lines from `top` to `bottom`, with the times below them in one suitable unit."""
    ticks = axis.ticks(about)
    largest = max(abs(tick) for tick in ticks)
    factor, unit = next((f, u) for f, u in ((1.0, "s"), (1e-3, "ms"), (0.0, "us")) if largest >= f)
    for tick in ticks:
        x = axis(tick)
        drawing.line((x, top), (x, bottom), "grid")
        drawing.text(x, bottom + 17, f"{tick / (factor or 1e-6):.6g} {unit}", "tick", anchor="middle")


def step_time_chart(variants: Sequence[JsonObject]) -> Markup:
    """Draw one row per variant: quartile box, median and full range, with every step time as a point below."""
    height = _TOP + _ROW * len(variants) + _AXIS_ROOM
    drawing = Drawing(COLUMN_WIDTH, height, "Step times of each variant")
    everything = [value for variant in variants for value in variant["step_time_s"]["samples"]]
    axis = Axis(*padded_range(everything), start=_LABEL_ROOM, end=COLUMN_WIDTH - 16)
    draw_time_axis(drawing, axis, _TOP, height - _AXIS_ROOM, about=4)
    for index, variant in enumerate(variants):
        steps = variant["step_time_s"]
        values, median = sorted(steps["samples"]), steps["median"]
        middle = _TOP + _ROW * index + 29
        css = variant_css(index, variant)
        drawing.text(0, middle + 5, variant["name"], "row-label", room=_LABEL_ROOM - 10)
        group = drawing.group(css, f"{variant['name']}: {len(values)} steps, median {time_text(median)}")
        drawing.line((axis(values[0]), middle), (axis(values[-1]), middle), "whisker", parent=group)
        if len(values) > 1:
            quartiles = statistics.quantiles(values, n=4, method="inclusive")
            left, right = axis(quartiles[0]), axis(quartiles[2])
            drawing.rect(left, middle - 8, right - left, 16, "box", radius=2, parent=group)
        drawing.line((axis(median), middle - 10), (axis(median), middle + 10), "median", parent=group)
        for position, value in enumerate(steps["samples"]):
            # Points are spread over three heights, so that equal ones can be counted.
            y = middle + 16 + position % 3 * 4
            drawing.circle(
                axis(value), y, 2.8, f"{css} point", tooltip=f"step {position}: {time_text(value)}"
            )
        label = time_text(median)
        if values[-1] > values[0]:
            below, above = 1 - values[0] / median, values[-1] / median - 1
            label += f", -{percent_text(below)} to +{percent_text(above)}"
        # Centred over the median, unless it would extend beyond the plot.
        half = text_width(label, 12) / 2
        x = min(max(axis(median), _LABEL_ROOM + half), COLUMN_WIDTH - half - 2)
        drawing.text(x, middle - 14, label, "value", anchor="middle", parent=group)
    return drawing.markup()


def time_split_chart(variants: Sequence[JsonObject]) -> Markup:
    """Draw one bar per variant, from zero: compute, then exposed communication."""
    height = _TOP + _ROW * len(variants) + _AXIS_ROOM
    drawing = Drawing(COLUMN_WIDTH, height, "Compute and exposed communication of each variant")
    longest = max(variant["compute_s"] + variant["exposed_comm_s"] for variant in variants)
    axis = Axis(0.0, longest * 1.02 or 1.0, start=_LABEL_ROOM, end=COLUMN_WIDTH - 16)
    draw_time_axis(drawing, axis, _TOP, height - _AXIS_ROOM, about=4)
    for index, variant in enumerate(variants):
        middle = _TOP + _ROW * index + 34
        drawing.text(0, middle + 4, variant["name"], "row-label", room=_LABEL_ROOM - 10)
        total = variant["compute_s"] + variant["exposed_comm_s"]
        dimmed = " unreliable" if variant["verdict"]["status"] == "untrusted" else ""
        begin = 0.0
        for part, duration in (("compute", variant["compute_s"]), ("exposed", variant["exposed_comm_s"])):
            share = duration / total if total else 0.0
            label = f"{time_text(duration)} · {percent_text(share)}"
            group = drawing.group(f"part-{part}{dimmed}", f"{variant['name']}, {part}: {label}")
            left, right = axis(begin), axis(begin + duration)
            drawing.rect(left, middle - 13, right - left, 26, "bar", parent=group)
            begin += duration
            if right - left > 0.3 * (COLUMN_WIDTH - _LABEL_ROOM):
                drawing.text((left + right) / 2, middle + 4, label, "on-bar", anchor="middle", parent=group)
            else:
                anchor, x = ("start", left) if part == "compute" else ("end", right)
                drawing.text(x, middle - 18, label, "value", anchor=anchor, parent=group)
    return drawing.markup()


# --- one step


def step_spans(samples: Sequence[Sample]) -> dict[Step, tuple[float, float]]:
    """Return the first start and last end over all ranks, per step of one variant's samples, in seconds."""
    spans: dict[Step, tuple[float, float]] = {}
    for sample in samples:
        if sample.operation == WHOLE_STEP:
            start, end = spans.get((sample.trial, sample.step), (sample.start_s, sample.end_s))
            spans[sample.trial, sample.step] = min(start, sample.start_s), max(end, sample.end_s)
    return spans


def median_step(samples: Sequence[Sample]) -> Step | None:
    """Return the step of median duration (the shorter of the two middle ones for an even number)."""
    spans = step_spans(samples)
    by_duration = sorted(spans, key=lambda step: (spans[step][1] - spans[step][0], step))
    return by_duration[(len(by_duration) - 1) // 2] if by_duration else None


def timeline_chart(
    data: RunData, variant: str, span_s: float | None = None, width: float = CHART_WIDTH
) -> Markup | None:
    """Draw the median step of a variant rank by rank; None without samples.

    Each rank has one row of compute. Below it are its sends and reductions, from start to completion, with one row per
    operation in flight. Receives are omitted, since they are posted long before. A narrow chart has half as many ranks
    and no tooltips. `span_s` is the length of the axis in seconds; None for the step's own.
    """
    wide = width >= CHART_WIDTH
    own = [sample for sample in data.samples if sample.variant == variant]
    step = median_step(own)
    if step is None:
        return None
    origin, end_s = step_spans(own)[step]
    per_rank = timeline_operations([sample for sample in own if (sample.trial, sample.step) == step])
    ranks = sorted(per_rank)
    ranks = ranks[:: -(-len(ranks) // (TIMELINE_RANKS if wide else TIMELINE_RANKS // 2)) or 1]

    flying = {rank: [s for s in per_rank[rank] if is_communication(s.operation)] for rank in ranks}
    rows = {rank: pack_rows([(s.start_s, s.end_s) for s in own]) for rank, own in flying.items()}
    most = max((1 + row for own_rows in rows.values() for row in own_rows), default=0)
    row_height = min(_TRACK_HEIGHT, _COMMUNICATION_HEIGHT / max(most, 1))
    band = _COMPUTE_HEIGHT + 2 + row_height * most + 8
    height = band * len(ranks) + _AXIS_ROOM
    drawing = Drawing(width, height, f"Timeline of trial {step[0]}, step {step[1]} of {variant}")
    room = _LABEL_ROOM if wide else _LABEL_ROOM_ON_PHONES
    axis = Axis(0.0, end_s - origin if span_s is None else span_s, start=room, end=width - 16)
    draw_time_axis(drawing, axis, 0, height - _AXIS_ROOM, about=10 if wide else 4)
    hosts = {host.get("rank"): host["name"] for host in data.fabric(variant)["hosts"]}
    # per row: y, height, and samples with their shades
    drawn: list[tuple[float, float, list[tuple[Sample, str]]]] = []
    for index, rank in enumerate(ranks):
        top = index * band + 2
        drawing.text(0, top + 12, f"{rank} · {hosts.get(rank, '')}".rstrip(" ·"), "tick", room=room - 10)
        here = [(sample, "") for sample in per_rank[rank] if not is_communication(sample.operation)]
        drawn.append((top, float(_COMPUTE_HEIGHT), here))
        tracks: dict[int, list[tuple[Sample, str]]] = defaultdict(list)
        for number, (sample, row) in enumerate(zip(flying[rank], rows[rank], strict=True)):
            # neighbours alternate in shade
            tracks[row].append((sample, " odd" if number % 2 else ""))
        drawn += [
            (top + _COMPUTE_HEIGHT + 2 + row * row_height, row_height, there) for row, there in tracks.items()
        ]
    for coarseness in _COARSENESS:
        marks = [_marks(axis, samples, origin, coarseness) for _, _, samples in drawn]
        if sum(map(len, marks)) <= _MOST_MARKS:
            break
    for (y, thickness, _), in_row in zip(drawn, marks, strict=True):
        for mark in in_row:
            tooltip = mark.tooltip if wide else None
            drawing.rect(mark.left, y, mark.right - mark.left, thickness, mark.css, tooltip=tooltip)
    return drawing.markup()


def timeline_operations(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """Return the operations of a step's timeline by rank, in order of start; messages last until received.

    Receives are omitted, since they are posted long before.
    """
    per_rank: dict[int, list[Sample]] = defaultdict(list)
    for sample in _until_received(samples):
        if sample.operation not in (WHOLE_STEP, RECEIVE, TOKEN):
            per_rank[sample.rank].append(sample)
    return per_rank


def _until_received(samples: Sequence[Sample]) -> list[Sample]:
    """Extend each send to the end of its receive, since the sender is done when its kernel has the message."""
    come: dict[str, list[float]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.end_s):
        if sample.operation == RECEIVE:
            come[sample.message].append(sample.end_s)
    found = []
    for sample in sorted(samples, key=lambda sample: sample.start_s):
        ends = come[sample.message] if sample.operation == SEND else []
        found.append(sample._replace(end_s=max(sample.end_s, ends.pop(0))) if ends else sample)
    return found


@dataclass
class _Mark:
    """Operations of a row drawn as one mark, from `left` to `right`."""

    samples: list[Sample]
    left: float
    right: float
    css: str

    @property
    def tooltip(self) -> str:
        """The operation, or the first and the last one, with their time."""
        first, last = self.samples[0], self.samples[-1]
        words = f"rank {first.rank}, {short_name(first.operation)} {first.name}"
        if last is not first:
            operation = short_name(first.operation)
            words = f"rank {first.rank}, {len(self.samples)} of {operation}, {first.name} to {last.name}"
        return f"{words}: {time_text(sum(sample.duration_s for sample in self.samples))}"


def _marks(
    axis: Axis, samples: Sequence[tuple[Sample, str]], origin: float, coarseness: float
) -> list[_Mark]:
    """Merge a row's samples, each with its shade, into marks.

    Thin neighbours that cannot be distinguished become one mark, since a step of requests has tens of thousands of
    samples. `coarseness` is a factor on the thickness and distance up to which they are merged.
    """
    marks: list[_Mark] = []
    for sample, shade in samples:
        left, right = axis(sample.start_s - origin), axis(sample.end_s - origin)
        kind = "communication" if is_communication(sample.operation) else sample.operation
        mark = _Mark([sample], left, max(right, left + _LEAST_WIDTH), f"op-{kind}")
        thin = mark.right - mark.left < coarseness * _THIN
        before = marks[-1] if marks else None
        near = before is not None and left - before.right < coarseness * _UNSEEN_GAP
        if before and thin and near and before.css == mark.css:
            before.samples.append(sample)
            before.right = max(before.right, mark.right)
            continue
        if not thin:
            mark.css += shade
        marks.append(mark)
    return marks
