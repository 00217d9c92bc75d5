"""A sweep's output files: page, table as CSV and Parquet, and a figure for a paper with its caption."""

from __future__ import annotations

import importlib.util

from testbed.measure.results.sweep_result import Sweep, SweepFigure
from testbed.show.report.pages import render_page
from testbed.show.report.sweep_figures import MISSING, curves_chart, latex, maps_chart, write_figures
from testbed.show.report.sweep_findings import Curves, arrange_series, caption, describe_sweep

PAGE, TABLE, PARQUET, CAPTION = "sweep.html", "points.csv", "points.parquet", "sweep.tex"
NO_PARQUET = "points.parquet needs pyarrow: pip install 'scale-across-testbed[parquet]'"


def write_sweep(sweep: Sweep) -> None:
    """Write all files, except those whose library is missing: see `missing_libraries`."""
    folder = sweep.folder
    table = sweep.frame()
    table.to_csv(folder / TABLE, index=False)
    if importlib.util.find_spec("pyarrow"):
        table.to_parquet(folder / PARQUET, index=False)
    if any(point.figures for point in sweep.points):
        write_figures(sweep)
        (folder / CAPTION).write_text(latex(sweep), encoding="utf-8")
    (folder / PAGE).write_text(render_sweep(sweep), encoding="utf-8")


def missing_libraries() -> list[str]:
    """Return the files that this machine cannot write into a sweep's folder, and what to install for them."""
    wanted = {"matplotlib": MISSING, "pyarrow": NO_PARQUET}
    return [words for module, words in wanted.items() if importlib.util.find_spec(module) is None]


def render_sweep(sweep: Sweep) -> str:
    """Render the page's HTML."""
    shown = arrange_series(sweep)
    there = any(point.figures for point in sweep.points)
    # infeasible points and untrusted figures come first
    pairs = [(point, figure) for point in sweep.points for figure in (point.figures or (None,))]
    content = {
        "sweep": sweep,
        "sentences": describe_sweep(sweep),
        "caption": caption(sweep) if there else "",
        "chart": (curves_chart(shown) if isinstance(shown, Curves) else maps_chart(shown)) if there else None,
        "legend": [one.name for one in shown.series] if isinstance(shown, Curves) else [],
        "lines": isinstance(shown, Curves) and shown.axis.numbers is not None,
        "measured": any(point.run for point in sweep.points),
        "ordered": sorted(pairs, key=lambda pair: _holds(pair[1])),
        "lacking": missing_libraries(),
    }
    return render_page("sweep.html.j2", content)


def _holds(figure: SweepFigure | None) -> bool:
    return figure is not None and (figure.measured is None or figure.measured.status == "trusted")
