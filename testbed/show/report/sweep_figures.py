"""Charts of a sweep, for its page and for a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from testbed.measure.results.sweep_result import Sweep, SweepAxis, SweepFigure
from testbed.show.report.charts import series_class
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing, padded_range, shorten
from testbed.show.report.sweep_findings import (
    SAME_WITHIN,
    Curves,
    Maps,
    Panel,
    Series,
    arrange_series,
    axis_text,
    caption,
)
from testbed.spec.units import time_text

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 380.0, 84.0, 24.0, 14.0, 52.0
_SHADES = 6
_CELL, _LABELS = 34.0, 110.0


def curves_chart(curves: Curves) -> Markup:
    """Draw predictions as lines, and measurements as discs with the interval of the median."""
    drawing = Drawing(CHART_WIDTH, _HEIGHT, f"Step time against {curves.axis.label}")
    bottom = _HEIGHT - _BOTTOM
    places = positions(curves.axis)
    across = Axis(*padded_range(places, 0.03), start=_LEFT, end=CHART_WIDTH - _RIGHT)
    every = [value for one in curves.series for figure in one.by_index.values() for value in _values(figure)]
    low, high = padded_range([*every, 0.0] if min(every) < max(every) / 2 else every)
    upwards = Axis(max(low, 0.0), high, start=bottom, end=_TOP)
    for tick in upwards.ticks(5):
        drawing.line((_LEFT, upwards(tick)), (CHART_WIDTH - _RIGHT, upwards(tick)), "grid")
        drawing.text(_LEFT - 8, upwards(tick) + 4, time_text(tick), "tick", anchor="end")
    _draw_values(drawing, curves.axis, [across(place) for place in places], bottom)
    for number, one in enumerate(curves.series):
        css = series_class(number)
        there = sorted(one.by_index)
        ends = [(across(places[index]), upwards(one.by_index[index].predicted_s)) for index in there]
        if curves.axis.numbers is not None:
            for start, end in itertools.pairwise(ends):
                drawing.line(start, end, f"{css} whisker")
        for index in there:
            figure, x = one.by_index[index], across(places[index])
            tooltip = f"{one.name}, {curves.axis.texts[index]}: {figure_text(figure)}"
            measured = figure.measured
            if measured is None:
                drawing.circle(x, upwards(figure.predicted_s), 2.6, f"{css} point", tooltip=tooltip)
                continue
            drawing.line((x, upwards(measured.low_s)), (x, upwards(measured.high_s)), f"{css} median")
            dimmed = " unreliable" if figure.untrusted else ""
            drawing.circle(x, upwards(measured.median_s), 5, f"{css} point{dimmed}", tooltip=tooltip)
    return drawing.markup()


def positions(axis: SweepAxis) -> list[float]:
    """Return the positions of values on a linear scale: numbers, logarithms, or indices."""
    if axis.numbers is None:
        return [float(index) for index in range(len(axis.texts))]
    return [math.log10(number) if axis.log else number for number in axis.numbers]


def figure_text(figure: SweepFigure) -> str:
    """Return the tooltip of a figure."""
    told = f"{time_text(figure.predicted_s)} by the model"
    if figure.measured is None:
        return told
    return f"{time_text(figure.measured.median_s)} measured ({figure.measured.status}), {told}"


def maps_chart(maps: Maps) -> Markup:
    """Draw a panel per variant, one below another, with a common shading; measured cells have a frame."""
    columns, rows = len(maps.across.texts), len(maps.upwards.texts)
    panel_height = 30 + rows * _CELL + _BOTTOM
    drawing = Drawing(CHART_WIDTH, panel_height * len(maps.panels), "Step time over two settings")
    every = [figure.step_time_s for panel in maps.panels for figure in panel.figures.values()]
    bounds = min(every), max(every)
    for number, panel in enumerate(maps.panels):
        top = panel_height * number
        title = f"{panel.name}: {maps.upwards.label} upwards, {maps.across.label} to the right"
        drawing.text(_LABELS, top + 18, title, "row-label")
        for row, text in enumerate(maps.upwards.texts):
            y = _y(row, rows, top)
            drawing.text(_LABELS - 8, y + _CELL / 2 + 4, shorten(text, _LABELS - 12), "tick", anchor="end")
        width = (CHART_WIDTH - _LABELS - _RIGHT) / columns
        bottom = top + 30 + rows * _CELL
        for column, text in enumerate(maps.across.texts):
            middle = _LABELS + width * (column + 0.5)
            drawing.text(middle, bottom + 16, shorten(text, width), "tick", anchor="middle", tooltip=text)
        _draw_cells(drawing, maps, panel, bounds, (top, width))
    return drawing.markup()


def _draw_cells(
    drawing: Drawing, maps: Maps, panel: Panel, bounds: tuple[float, float], where: tuple[float, float]
) -> None:
    top, width = where
    rows = len(maps.upwards.texts)
    for column, across in enumerate(maps.across.texts):
        for row, upwards in enumerate(maps.upwards.texts):
            x, y = _LABELS + width * column, _y(row, rows, top)
            figure = panel.figures.get((column, row))
            place = f"{panel.name}, {across}, {upwards}"
            if figure is None:
                drawing.rect(
                    x + 1, y + 1, width - 2, _CELL - 2, "heat-none", tooltip=f"{place}: does not fit"
                )
                continue
            tooltip = f"{place}: {figure_text(figure)}"
            css = f"heat {'worse' if figure.untrusted else 'better'} heat-{shade(figure.step_time_s, bounds)}"
            drawing.rect(x + 1, y + 1, width - 2, _CELL - 2, css, radius=2, tooltip=tooltip)
            if figure.measured:
                drawing.rect(
                    x + 2.5, y + 2.5, width - 5, _CELL - 5, "heat-measured", radius=2, tooltip=tooltip
                )
            label = shorten(time_text(figure.step_time_s), width)
            drawing.text(x + width / 2, y + _CELL / 2 + 4, label, "value", anchor="middle", tooltip=tooltip)


def shade(step_s: float, bounds: tuple[float, float]) -> int:
    """Return the shade, from 0 (fastest) to 6 (slowest), on a logarithmic scale; 0 if all are about equal."""
    low, high = bounds
    if high <= low * (1 + SAME_WITHIN):
        return 0
    return round(_SHADES * math.log(step_s / low) / math.log(high / low))


def _y(row: int, rows: int, top: float) -> float:
    """Return the upper edge of a row; the first value is at the bottom."""
    return top + 30 + (rows - 1 - row) * _CELL


def _values(figure: SweepFigure) -> Sequence[float]:
    measured = figure.measured
    return (figure.predicted_s, *((measured.low_s, measured.high_s) if measured else ()))


def _draw_values(drawing: Drawing, axis: SweepAxis, xs: Sequence[float], bottom: float) -> None:
    """Draw as many values below the axis as fit, and the axis label."""
    taken = -math.inf
    for x, text in zip(xs, axis.texts, strict=True):
        drawing.line((x, _TOP), (x, bottom), "grid")
        half = len(text) * 3.6
        if x - half > taken:
            drawing.text(x, bottom + 17, text, "tick", anchor="middle")
            taken = x + half + 6
    drawing.text(CHART_WIDTH - _RIGHT, bottom + 40, axis.label, "row-label", anchor="end")


FORMS = ("svg", "pdf")
COLUMN_IN, PAGE_IN = 3.4, 7.0  # widths of a column and of a page, inches
MISSING = "sweep.svg and sweep.pdf need matplotlib: pip install 'scale-across-testbed[figures]'"
# distinguishable with colour blindness (Okabe and Ito 2008), and the same as on pages
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PATTERNS = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P")
_CELL_IN = 0.46
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "testbed",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def write_figures(sweep: Sweep) -> list[Path]:
    """Write `sweep.svg` and `sweep.pdf` if matplotlib is installed; equal sweeps give equal files."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (slow, and optional)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return []
    written = []
    with mpl.rc_context(_STYLE):
        shown = arrange_series(sweep)
        figure = Figure(layout="constrained")
        if isinstance(shown, Curves):
            _draw_curves(figure, shown)
        else:
            _draw_maps(figure, shown)
        for form in FORMS:
            path = sweep.folder / f"sweep.{form}"
            dated = {"Date": None} if form == "svg" else {"CreationDate": None}
            about = {"Title": f"{sweep.scenario}: step time", **dated}
            about["Description" if form == "svg" else "Subject"] = caption(sweep)
            figure.savefig(path, metadata=about)
            written.append(path)
    return written


def latex(sweep: Sweep) -> str:
    """Return a LaTeX figure environment with the caption."""
    words = caption(sweep)
    for character in "%&_#":
        words = words.replace(character, f"\\{character}")
    wide = isinstance(arrange_series(sweep), Maps)
    kind, width = ("figure*", r"\textwidth") if wide else ("figure", r"\columnwidth")
    lines = (
        f"\\begin{{{kind}}}",
        "  \\centering",
        f"  \\includegraphics[width={width}]{{sweep.pdf}}",
        f"  \\caption{{{words}}}",
        f"  \\label{{fig:{sweep.scenario}-sweep}}",
        f"\\end{{{kind}}}",
    )
    return "\n".join(lines) + "\n"


def _draw_curves(figure: Any, curves: Curves) -> None:
    figure.set_size_inches(COLUMN_IN, 2.4)
    axes = figure.add_subplot()
    factor, unit = _time_unit([one.step_time_s for each in curves.series for one in each.by_index.values()])
    words = curves.axis.numbers is None
    places = positions(curves.axis) if words else list(curves.axis.numbers or ())
    for number, one in enumerate(curves.series):
        look = {"color": COLOURS[one.colour % len(COLOURS)]}
        there = sorted(one.by_index)
        if not words:
            predicted = [one.by_index[index].predicted_s / factor for index in there]
            style = PATTERNS[one.pattern % len(PATTERNS)]
            axes.plot([places[index] for index in there], predicted, style, label=one.name, **look)
        _draw_marks(axes, one, places, (number, factor), look, lines=not words)
    if curves.axis.log:
        axes.set_xscale("log")
        axes.set_xticks(
            _few(places), _few([text.removesuffix(f" {curves.axis.unit}") for text in curves.axis.texts])
        )
        axes.minorticks_off()
    elif words:
        axes.set_xticks(places, curves.axis.texts)
        axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xlabel(curves.axis.label)
    axes.set_ylabel(f"step time ({unit})")
    axes.set_ylim(0, 1.06 * max(axes.get_ylim()[1], 1e-12))
    axes.grid(axis="y", linewidth=0.3, color="#c0c0c0")
    if len(curves.series) > 1:
        figure.legend(loc="outside upper center", frameon=False, ncols=2)


def _draw_marks(
    axes: Any,
    one: Series,
    places: Sequence[float],
    place: tuple[int, float],
    look: dict[str, str],
    *,
    lines: bool,
) -> None:
    """Draw measurements with intervals, hollow if untrusted; without lines, also predictions as small points."""
    number, factor = place
    mark = MARKS[number % len(MARKS)]
    label = None if lines else one.name
    for index, entry in one.by_index.items():
        measured = entry.measured
        if measured is None:
            if not lines:
                axes.plot(
                    [places[index]], [entry.predicted_s / factor], mark, markersize=3, label=label, **look
                )
                label = None
            continue
        middle = measured.median_s / factor
        off = [[middle - measured.low_s / factor], [measured.high_s / factor - middle]]
        filled = "none" if entry.untrusted else look["color"]
        options = {
            "markersize": 4,
            "markerfacecolor": filled,
            "capsize": 2,
            "elinewidth": 0.8,
            "label": label,
        }
        axes.errorbar([places[index]], [middle], yerr=off, fmt=mark, **options, **look)
        label = None


def _draw_maps(figure: Any, maps: Maps) -> None:
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415

    columns, rows = len(maps.across.texts), len(maps.upwards.texts)
    width = max(COLUMN_IN, min(PAGE_IN, (0.9 + _CELL_IN * columns) * len(maps.panels) + 0.6))
    figure.set_size_inches(width, 0.9 + 0.3 * rows)
    every = [one.step_time_s for panel in maps.panels for one in panel.figures.values()]
    factor, unit = _time_unit(every)
    low, high = min(every) / factor, max(every) / factor
    norm = LogNorm(low, high) if high > 4 * low else Normalize(low, high)
    drawn = figure.subplots(1, len(maps.panels), squeeze=False)[0]
    image = None
    for axes, panel in zip(drawn, maps.panels, strict=True):
        cells = [[math.nan] * columns for _ in range(rows)]
        for (column, row), one in panel.figures.items():
            cells[row][column] = one.step_time_s / factor
        image = axes.imshow(cells, origin="lower", aspect="auto", norm=norm, cmap="cividis_r")
        for (column, row), one in panel.figures.items():
            share = norm(one.step_time_s / factor)
            text = time_text(one.step_time_s).split()[0] if len(maps.panels) * columns <= 16 else ""
            axes.text(
                column, row, text, ha="center", va="center", fontsize=5, color="w" if share > 0.5 else "k"
            )
            if one.measured:
                axes.plot(
                    [column + 0.36],
                    [row + 0.3],
                    "x" if one.untrusted else "o",
                    color="#d55e00",
                    markersize=2.2,
                )
        axes.set_title(panel.name)
        axes.set_xticks(_few(range(columns)), _few(maps.across.texts))
        axes.set_yticks(_few(range(rows)), _few(maps.upwards.texts))
        # values include their unit
        axes.set_xlabel(axis_text(maps.across))
    drawn[0].set_ylabel(axis_text(maps.upwards))
    if image is not None:
        figure.colorbar(image, ax=list(drawn), label=f"step time ({unit})")


def _few(some: Sequence[Any], most: int = 6) -> list[Any]:
    """Return at most `most` evenly spaced elements, starting with the first."""
    return list(some)[:: -(-len(some) // most)]


def _time_unit(values_s: Sequence[float]) -> tuple[float, str]:
    """Return the unit for the largest value, as factor and name: seconds, milliseconds or microseconds."""
    largest_s = max(values_s)
    return next(((f, u) for f, u in ((1.0, "s"), (1e-3, "ms")) if largest_s >= f), (1e-6, "µs"))
