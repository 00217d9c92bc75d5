"""A sweep's figure for a paper, as SVG and PDF, by matplotlib (the extra `figures`): one column wide, readable in grey.

Lines have patterns beside colours, and marks of their own. Text stays text: PDF holds TrueType, SVG names the font.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.measure.results.sweep_result import Sweep
from testbed.show.report.formatting import time_text
from testbed.show.report.sweep_answer import axis_words, caption
from testbed.show.report.sweep_charts import positions
from testbed.show.report.sweep_series import Curves, Maps, Series, laid_out

FORMS = ("svg", "pdf")
COLUMN_IN, PAGE_IN = 3.4, 7.0  # widths of a column and of a page, inches
MISSING = "sweep.svg and sweep.pdf need matplotlib: pip install 'scale-across-testbed[figures]'"
# told apart by people who do not see all colours (Okabe and Ito 2008), as on pages
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
    """`sweep.svg` and `sweep.pdf` in its folder; nothing without matplotlib. The same sweep gives the same files."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (slow, and not always there)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return []
    written = []
    with mpl.rc_context(_STYLE):
        shown = laid_out(sweep)
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
    """A figure environment with the caption, to be pasted."""
    words = caption(sweep)
    for character in "%&_#":
        words = words.replace(character, f"\\{character}")
    wide = isinstance(laid_out(sweep), Maps)
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
    """What was measured, with its interval; hollow where it is untrusted. Without lines the model's as small points."""
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
        # values say their unit themselves
        axes.set_xlabel(axis_words(maps.across))
    drawn[0].set_ylabel(axis_words(maps.upwards))
    if image is not None:
        figure.colorbar(image, ax=list(drawn), label=f"step time ({unit})")


def _few(some: Sequence[Any], most: int = 6) -> list[Any]:
    """The first, and then as many evenly spread as fit."""
    return list(some)[:: -(-len(some) // most)]


def _time_unit(values_s: Sequence[float]) -> tuple[float, str]:
    """Seconds, milliseconds or microseconds, as the largest has it."""
    largest_s = max(values_s)
    return next(((f, u) for f, u in ((1.0, "s"), (1e-3, "ms")) if largest_s >= f), (1e-6, "µs"))
