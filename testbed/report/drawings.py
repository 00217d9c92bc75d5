"""The report's drawings one by one, as documents that stand alone: `Result.figure`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from testbed.errors import BadInput
from testbed.report.charts import (
    median_step,
    step_time_chart,
    steps_of,
    time_split_chart,
    timeline_chart,
)
from testbed.report.data import load_run
from testbed.report.svg import standalone
from testbed.report.topology import topology_drawing
from testbed.report.utilisation import utilisation_over_time_chart, utilisation_per_step_chart
from testbed.results.figure import figure
from testbed.results.records import JsonObject


def _document(markup: Markup | None, name: str) -> str:
    if not markup:
        raise BadInput(where="figure", got=repr(name), expected="one that the run has records for")
    style = files("testbed.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
    return standalone(ET.fromstring(markup), style)


@figure("step_times")
def _step_times(folder: Path, variant: JsonObject) -> str:
    return _document(step_time_chart(load_run(folder).variants), "step_times")


@figure("time_split")
def _time_split(folder: Path, variant: JsonObject) -> str:
    return _document(time_split_chart(load_run(folder).variants), "time_split")


@figure("utilisation")
def _utilisation(folder: Path, variant: JsonObject) -> str:
    return _document(utilisation_per_step_chart(load_run(folder).variants), "utilisation")


@figure("utilisation_over_time")
def _utilisation_over_time(folder: Path, variant: JsonObject) -> str:
    return _document(utilisation_over_time_chart(load_run(folder)), "utilisation_over_time")


@figure("network", of_variant=True)
def _network(folder: Path, variant: JsonObject) -> str:
    return _document(topology_drawing(load_run(folder), variant), "network")


@figure("timeline", of_variant=True)
def _timeline(folder: Path, variant: JsonObject) -> str:
    data = load_run(folder)
    own = [sample for sample in data.samples if sample.variant == variant["name"]]
    step = median_step(own)
    if step is None:
        return _document(None, "timeline")
    start_s, end_s = steps_of(own)[step]
    return _document(timeline_chart(data, variant["name"], end_s - start_s), "timeline")
