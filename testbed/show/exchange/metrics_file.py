"""A run's folder as a file of metrics."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

from testbed.measure.results.manifest import Manifest
from testbed.measure.results.records import LINKS, read_links
from testbed.measure.results.result import Result
from testbed.show.exchange.exposition import exposition
from testbed.show.exchange.metrics import run_metrics
from testbed.show.exchange.otlp import otlp_json

MetricsForm = Literal["prometheus", "openmetrics", "otlp-json"]


def export_metrics(folder: Path, form: MetricsForm, output: Path) -> Path:
    """Writes them to `output`, and returns it. BadInput without the form's package, BadResult.

    Moments are placed so that the last one is when the run's folder was made: the virtual clock's own are of no day.
    """
    result, manifest = Result.open(folder), Manifest.open(folder)
    readings = [] if form == "prometheus" else read_links(folder / LINKS, result.conversion)
    ended_s = datetime.strptime(manifest.created, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    origin_s = ended_s - max((reading.time_s for reading in readings), default=0.0)
    metrics = run_metrics(result, readings)
    if form == "otlp-json":
        text = otlp_json(metrics, origin_s, ended_s)
    else:
        text = exposition(metrics, form, origin_s, ended_s)
    output.write_text(text, encoding="utf-8")
    return output
