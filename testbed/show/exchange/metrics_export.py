"""Export of a run's metrics to a file for Prometheus, OpenMetrics or OpenTelemetry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from google.protobuf.json_format import MessageToDict

from testbed.errors import BadInput
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.records import LINKS, read_links
from testbed.measure.results.result import Result
from testbed.show.exchange.metrics import Labels, Metric, Point, run_metrics
from testbed.version import VERSION

MetricsForm = Literal["prometheus", "openmetrics", "otlp-json"]


def export_metrics(folder: Path, form: MetricsForm, output: Path) -> Path:
    """Write a run's metrics to `output` and return it. Raises BadInput without the form's package, BadResult.

    Times are shifted so that the last one is when the run's folder was made, since the virtual clock has no date.
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


PREFIX = "testbed"


def exposition(metrics: Sequence[Metric], form: MetricsForm, origin_s: float, ended_s: float) -> str:
    """Return the text of a file. Raises BadInput without the library.

    origin_s, ended_s: start of the run's clock and end of the run, Unix time in seconds.
    """
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415
        from prometheus_client.openmetrics.exposition import generate_latest as generate_open  # noqa: PLC0415
    except ImportError:
        raise missing_package(form, "prometheus-client", "metrics") from None
    moments = (origin_s, ended_s) if form == "openmetrics" else None
    families = [
        _family(metric, moments)
        for metric in metrics
        if moments or any(point.time_s is None for point in metric.points)
    ]

    class Collected:
        """The collector interface of the library."""

        def collect(self) -> Iterator[Any]:
            """Return each metric with its samples."""
            return iter(families)

    text: bytes = (generate_open if moments else generate_latest)(Collected())
    return text.decode()


def _family(metric: Metric, moments: tuple[float, float] | None) -> Any:
    """Convert a metric to the library's type; samples with equal labels are together, in order of time."""
    from prometheus_client.metrics_core import Metric as Family  # noqa: PLC0415

    family = Family(f"{PREFIX}_{metric.name_with_unit}", metric.help, metric.kind, metric.unit)
    rows: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in metric.points:
        if moments or point.time_s is None:
            rows.setdefault(tuple(point.labels.items()), []).append(point)
    for points in rows.values():
        for point in points:
            when_s = _moment(point, moments)
            for suffix, labels, value in _samples(metric, point):
                family.add_sample(family.name + suffix, {**point.labels, **labels}, value, when_s)
    return family


def _moment(point: Point, moments: tuple[float, float] | None) -> float | None:
    if moments is None:
        return None
    origin_s, ended_s = moments
    return round(ended_s if point.time_s is None else origin_s + point.time_s, 3)


def _samples(metric: Metric, point: Point) -> list[tuple[str, dict[str, str], float]]:
    """Return the suffix of the name, additional labels, and value."""
    if metric.kind == "counter":
        return [("_total", {}, point.value)]
    if metric.kind == "gauge":
        return [("", {}, point.value)]
    quantiles = [("", {"quantile": f"{share:g}"}, value) for share, value in point.quantiles]
    return [*quantiles, ("_count", {}, point.count), ("_sum", {}, point.value)]


UNITS = {
    "": "1",
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "bytes_per_second": "By/s",
    "per_second": "1/s",
    "joules": "J",
}
"""Units of the Unified Code for Units of Measure by Prometheus' names."""
CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE


def otlp_json(metrics: Sequence[Metric], origin_s: float, ended_s: float) -> str:
    """Return the text of a file. Raises BadInput without the package.

    origin_s, ended_s: start of the run's clock and end of the run, Unix time in seconds.
    """
    try:
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages  # noqa: PLC0415
    except ImportError:
        raise missing_package("otlp-json", "opentelemetry-proto", "metrics") from None
    data = messages.MetricsData()
    resource = data.resource_metrics.add()
    _add_attributes(resource.resource.attributes, {"service.name": "testbed", "service.version": VERSION})
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "testbed", VERSION
    for metric in metrics:
        _add_metric(scope.metrics.add(), metric, origin_s, ended_s)
    # OTLP/JSON requires 64-bit integers as text and enumerations as numbers
    document = MessageToDict(data, use_integers_for_enums=True)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def _add_metric(message: Any, metric: Metric, origin_s: float, ended_s: float) -> None:
    message.name = f"testbed.{metric.name}"
    message.description, message.unit = metric.help, UNITS[metric.unit]
    if metric.kind == "counter":
        message.sum.aggregation_temporality, message.sum.is_monotonic = CUMULATIVE, True
    points = {"counter": message.sum, "gauge": message.gauge, "summary": message.summary}[
        metric.kind
    ].data_points
    first_s = min((point.time_s or 0.0 for point in metric.points), default=0.0)
    for point in metric.points:
        added = points.add()
        _add_attributes(added.attributes, point.labels)
        added.start_time_unix_nano = _nanoseconds(origin_s + min(first_s, 0.0))
        added.time_unix_nano = _nanoseconds(ended_s if point.time_s is None else origin_s + point.time_s)
        if metric.kind == "summary":
            added.count, added.sum = point.count, point.value
            for share, value in point.quantiles:
                added.quantile_values.add(quantile=share, value=value)
        else:
            added.as_double = point.value


def _add_attributes(attributes: Any, labels: Labels) -> None:
    for key, value in labels.items():
        attributes.add(key=key).value.string_value = value


def _nanoseconds(moment_s: float) -> int:
    return round(moment_s * 1e9)


def missing_package(form: str, package: str, extra: str) -> BadInput:
    """Return the error of `--to FORM` if its package cannot be imported."""
    return BadInput(
        where=f"--to {form}",
        got=f"no {package} installed",
        expected=f"it: pip install 'scale-across-testbed[{extra}]'",
    )
