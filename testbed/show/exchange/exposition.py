"""A run's metrics in Prometheus' text format and in OpenMetrics, written by Prometheus' own client library.

The text format (0.0.4) has the run's figures alone, without moments, as the node exporter's textfile collector takes
them. OpenMetrics has links' readings along the run as well, each with its moment, as
`promtool tsdb create-blocks-from openmetrics` takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from testbed.show.exchange.metrics import Metric, Point
from testbed.show.exchange.optional_packages import lacking

Form = Literal["prometheus", "openmetrics"]
PREFIX = "testbed"


def exposition(metrics: Sequence[Metric], form: Form, origin_s: float, ended_s: float) -> str:
    """The text of a file. BadInput without the library.

    origin_s, ended_s: when the run's clock was at 0, and when the run was over, Unix time in seconds.
    """
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415
        from prometheus_client.openmetrics.exposition import generate_latest as generate_open  # noqa: PLC0415
    except ImportError:
        raise lacking(form, "prometheus-client", "metrics") from None
    moments = (origin_s, ended_s) if form == "openmetrics" else None
    families = [_family(metric, moments) for metric in metrics if moments or _of_the_whole(metric)]

    class Collected:
        """As the library asks for them."""

        def collect(self) -> Iterator[Any]:
            """Each metric with its samples."""
            return iter(families)

    text: bytes = (generate_open if moments else generate_latest)(Collected())
    return text.decode()


def _of_the_whole(metric: Metric) -> bool:
    return any(point.time_s is None for point in metric.points)


def _family(metric: Metric, moments: tuple[float, float] | None) -> Any:
    """A metric as the library has it: the samples of one set of labels together, in the order of their times."""
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
    """Suffix of the name, further labels, value."""
    if metric.kind == "counter":
        return [("_total", {}, point.value)]
    if metric.kind == "gauge":
        return [("", {}, point.value)]
    quantiles = [("", {"quantile": f"{share:g}"}, value) for share, value in point.quantiles]
    return [*quantiles, ("_count", {}, point.count), ("_sum", {}, point.value)]
