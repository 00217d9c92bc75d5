"""A run's metrics as OpenTelemetry has them, in a file of OTLP's JSON form: one line, one `MetricsData`.

The form: "OpenTelemetry Protocol File Exporter" and "JSON Protobuf Encoding" of opentelemetry.io; a Collector's
`otlpjsonfile` receiver reads it. Messages are OpenTelemetry's own, from the package opentelemetry-proto.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from testbed.show.exchange.metrics import Labels, Metric, Point
from testbed.show.exchange.optional_packages import lacking
from testbed.version import VERSION

UNITS = {
    "": "1",
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "bytes_per_second": "By/s",
    "per_second": "1/s",
    "joules": "J",
}
"""By Prometheus' words, in the Unified Code for Units of Measure."""
CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE


def otlp_json(metrics: Sequence[Metric], origin_s: float, ended_s: float) -> str:
    """The text of a file. BadInput without the package.

    origin_s, ended_s: when the run's clock was at 0, and when the run was over, Unix time in seconds.
    """
    try:
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages  # noqa: PLC0415
    except ImportError:
        raise lacking("otlp-json", "opentelemetry-proto", "metrics") from None
    data = messages.MetricsData()
    resource = data.resource_metrics.add()
    _add_attributes(resource.resource.attributes, {"service.name": "testbed", "service.version": VERSION})
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "testbed", VERSION
    for metric in metrics:
        _add_metric(scope.metrics.add(), metric, origin_s, ended_s)
    # integers of 64 bits become text, enumerations numbers, as the form has them
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
        _set_value(added, metric, point)


def _set_value(added: Any, metric: Metric, point: Point) -> None:
    if metric.kind != "summary":
        added.as_double = point.value
        return
    added.count, added.sum = point.count, point.value
    for share, value in point.quantiles:
        added.quantile_values.add(quantile=share, value=value)


def _add_attributes(attributes: Any, labels: Labels) -> None:
    for key, value in labels.items():
        attributes.add(key=key).value.string_value = value


def _nanoseconds(moment_s: float) -> int:
    return round(moment_s * 1e9)
