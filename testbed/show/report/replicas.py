"""Replicas that came and went, in words and as a drawing: when steps were committed, how many took part in them."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant
from testbed.show.report.charts import draw_time_axis, variant_css
from testbed.show.report.formatting import size_text, time_text
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing

_LABEL_ROOM = 118
_TOP, _ROW, _BAR, _AXIS_ROOM = 6, 46, 32, 26


def replication_words(variant: Variant) -> list[str]:
    """A sentence on each loss, and one on what all of them cost; none where no replicas come and go."""
    found = variant.replication
    if found is None:
        return []
    words = []
    for loss in found.losses:
        parts = [f"replica {loss.replica} lost after {time_text(loss.time_s)}"]
        if loss.detected_s is not None:
            parts.append(f"known {time_text(loss.detected_s)} later")
        parts.append(f"stall {time_text(loss.stall_s)}")
        parts.append(f"{loss.steps_lost} steps lost")
        if loss.catch_up_s is not None and loss.catch_up_bytes:
            parts.append(f"state of {size_text(loss.catch_up_bytes)} in {time_text(loss.catch_up_s)}")
        full = "not all back" if loss.full_s is None else f"all back after {time_text(loss.full_s)}"
        words.append(f"{variant.name}: {', '.join([*parts, full])}.")
    words.append(f"{variant.name}: {found.effective:.1%} of {time_text(found.elapsed_s)} were effective.")
    return words


def replicas_chart(variants: Sequence[JsonObject], width: float = CHART_WIDTH) -> Markup | None:
    """For each variant a bar from commit to commit, as high as the share of replicas that the step had."""
    own = [
        (index, variant, variant["replication"])
        for index, variant in enumerate(variants)
        if variant.get("replication")
    ]
    if not own:
        return None
    height = _TOP + _ROW * len(own) + _AXIS_ROOM
    drawing = Drawing(width, height, "When steps were committed, and how many replicas were in them")
    axis = Axis(0.0, max(found["elapsed_s"] for _, _, found in own), _LABEL_ROOM, width - 24)
    draw_time_axis(drawing, axis, _TOP, height - _AXIS_ROOM, about=6 if width >= CHART_WIDTH else 3)
    for row, (index, variant, found) in enumerate(own):
        bottom = _TOP + row * _ROW + _BAR + 6
        drawing.text(0, bottom - 8, variant["name"], "row-label", room=_LABEL_ROOM - 10)
        group = drawing.group(variant_css(index, variant))
        before_s = 0.0
        for commit in found["commits"]:
            left, right = axis(before_s), axis(commit["time_s"])
            high = _BAR * commit["replicas"] / found["replicas"]
            words = f"trial {commit['trial']}: {commit['replicas']} of {found['replicas']} replicas, "
            words += f"committed after {time_text(commit['time_s'])}"
            own_group = drawing.group("", words, group)
            drawing.rect(left + 0.5, bottom - high, right - left - 1, high, "bar", parent=own_group)
            before_s = commit["time_s"]
        for loss in found["losses"]:
            x = axis(loss["time_s"])
            marked = drawing.group("event", f"replica {loss['replica']} lost: {loss['why']}")
            drawing.line((x, bottom + 4), (x, bottom - _BAR - 4), "event-line", parent=marked)
    return drawing.markup()
