"""The report's drawings one by one, as documents that stand alone: `Result.figure`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from testbed.errors import BadInput
from testbed.report.charts import step_time_chart, time_split_chart, timeline_chart
from testbed.report.data import RunData, load_run
from testbed.report.svg import standalone
from testbed.report.topology import topology_drawing
from testbed.report.utilisation import utilisation_over_time_chart, utilisation_per_step_chart
from testbed.results.figure import FIGURES, Drawn
from testbed.results.records import JsonObject

OF_ALL: dict[str, Callable[[RunData], Markup | None]] = {
    "step_times": lambda data: step_time_chart(data.variants),
    "time_split": lambda data: time_split_chart(data.variants),
    "utilisation": lambda data: utilisation_per_step_chart(data.variants),
    "utilisation_over_time": utilisation_over_time_chart,
}
OF_ONE: dict[str, Callable[[RunData, JsonObject], Markup | None]] = {
    "network": topology_drawing,
    "timeline": lambda data, variant: timeline_chart(data, variant["name"]),
}


def _document(name: str, folder: Path, variant: JsonObject) -> str:
    data = load_run(folder)
    markup = OF_ALL[name](data) if name in OF_ALL else OF_ONE[name](data, variant)
    if not markup:
        raise BadInput(where="figure", got=repr(name), expected="one that the run has records for")
    style = files("testbed.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
    return standalone(ET.fromstring(markup), style)


FIGURES.update({name: Drawn(partial(_document, name), name in OF_ONE) for name in (*OF_ALL, *OF_ONE)})
