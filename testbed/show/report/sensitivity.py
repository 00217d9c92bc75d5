"""The map of what each choice is worth, alone and in pairs, between a baseline and the best."""

from __future__ import annotations

from markupsafe import Markup

from testbed.measure.results.records import JsonObject
from testbed.show.report.formatting import time_text
from testbed.show.report.svg import CHART_WIDTH, Drawing, shorten

_LABELS, _LABELS_ON_PHONES, _TOP, _ROW, _GAP = 150.0, 96.0, 54.0, 34.0, 40.0
_SHADES, _FULL = 6, 0.5  # shades, and the share of time from which on it is the darkest


def sensitivity_chart(found: JsonObject, baseline: str, width: float = CHART_WIDTH) -> Markup:
    """Two triangles: the baseline takes over from the best, the best gives back; on the diagonals one choice alone.

    Narrow, they are one above the other.
    """
    choices = list(found["choices"])
    narrow = width < CHART_WIDTH
    panel = width if narrow else (width - _GAP) / 2
    labels = _LABELS_ON_PHONES if narrow else _LABELS
    high = _TOP + _ROW * len(choices) + 8
    drawing = Drawing(width, high * (2 if narrow else 1), "What each choice is worth, alone and in pairs")
    sides = (
        ("taken", f"{baseline} takes over from the best: time saved", found["first_s"], 1.0),
        ("given_back", f"the best gives back to {baseline}: time lost", found["best_s"], -1.0),
    )
    for number, (name, title, base_s, sign) in enumerate(sides):
        left, top = (0.0, number * high) if narrow else (number * (panel + _GAP), 0.0)
        each = (panel - labels) / len(choices)
        drawing.text(left, top + 16, title, "row-label", room=panel)
        for column, choice in enumerate(choices):
            middle = left + labels + each * (column + 0.5)
            heading = shorten(choice, each - 4)
            drawing.text(middle, top + _TOP - 10, heading, "tick", anchor="middle", tooltip=choice)
            y = top + _TOP + _ROW * column + _ROW / 2 + 4
            drawing.text(left + labels - 8, y, shorten(choice, labels - 12), "tick", anchor="end")
        for entry in found[name]:
            places = [choices.index(choice) for choice in entry["choices"]]
            x, y = left + labels + each * places[-1], top + _TOP + _ROW * places[0]
            _cell(drawing, (x, y), each, entry, (base_s, sign))
    return drawing.markup()


def _cell(
    drawing: Drawing, corner: tuple[float, float], width: float, entry: JsonObject, base: tuple[float, float]
) -> None:
    x, y = corner
    base_s, sign = base
    together, step_s = " and ".join(entry["choices"]), entry["step_time_s"]
    if step_s is None:
        tooltip, text, css = f"{together}: does not fit", "", "heat-none"
    else:
        won = sign * (1 - step_s / base_s)
        tooltip, text = (
            f"{together}: {time_text(step_s)} in place of {time_text(base_s)}",
            f"{100 * won:+.0f} %",
        )
        shade = min(_SHADES, round(abs(won) / _FULL * _SHADES))
        css = f"heat {'better' if won >= 0 else 'worse'} heat-{shade}"
        text = "0 %" if text in ("+0 %", "-0 %") else text
    drawing.rect(x + 1, y + 1, width - 2, _ROW - 2, css, radius=2, tooltip=tooltip)
    drawing.text(x + width / 2, y + _ROW / 2 + 4, text, "value", anchor="middle", tooltip=tooltip)
