"""Export of a run's figures: files for Prometheus, OpenMetrics and OpenTelemetry, runs for MLflow and Weights & Biases.

In both trackers a variant is a run. Settings become parameters, and step times of trials become a series. All figures
of `metrics` become last values, the verdict a tag, and files of the run's folder artifacts. Each tracker's own package
writes the data, locally.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from google.protobuf.json_format import MessageToDict

from testbed.errors import BadInput
from testbed.measure.results.manifest import MANIFEST, Manifest
from testbed.measure.results.records import LINKS, read_links
from testbed.measure.results.result import SUMMARY, Result, Variant
from testbed.show.exchange.metrics import Labels, Metric, Point, run_metrics
from testbed.version import VERSION

MetricsForm = Literal["prometheus", "openmetrics", "otlp-json"]


def export_metrics(folder: Path, form: MetricsForm, output: Path) -> Path:
    """Write a run's metrics to `output` and return it; raise BadInput without the format's package, or BadResult.

    Times are shifted so that the last one is the time when the run's folder was created, since the virtual clock has no
    date.
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
    """Return the text of a file; raise BadInput without the library.

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
    """Yield the name suffix, additional labels and value of each sample."""
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
    """Return the text of a file; raise BadInput without the package.

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


FILES = (SUMMARY, MANIFEST, "scenario.yaml", "report.html")
SERIES = "trial_step_time_seconds"
_OWN_LABELS = ("run", "scenario", "variant")
# characters that MLflow rejects in metric names; also the colon, which Windows rejects
_REFUSED = re.compile(r"[^\w./ -]")


@dataclass(frozen=True)
class Tracked:
    """A variant for a tracker; `series` has step times in seconds by trial, `limited_by` is a sentence."""

    name: str
    settings: dict[str, str]
    figures: dict[str, float]
    series: tuple[float, ...]
    verdict: str
    limited_by: str


def tracked_variants(result: Result, manifest: Manifest) -> list[Tracked]:
    """Convert each variant of a run."""
    metrics = run_metrics(result)
    return [
        Tracked(
            variant.name,
            _settings(result, manifest, variant),
            dict(_figures(metrics, variant.name)),
            variant.step_time_s.samples,
            variant.verdict.status,
            variant.limited_by,
        )
        for variant in result.variants
    ]


def _settings(result: Result, manifest: Manifest, variant: Variant) -> dict[str, str]:
    found: dict[str, Any] = {
        "scenario": result.scenario,
        "variant": variant.name,
        "algorithm": variant.algorithm,
        "policy": variant.policy,
        "ranks": variant.ranks,
        "clock": result.clock,
        "size_scale": result.scale.size_scale,
        "time_dilation": result.scale.time_dilation,
        "seed": manifest.seed,
        "link_engine": manifest.link_engine,
        "datapath": manifest.datapath,
        "congestion_control": ", ".join(manifest.congestion_control),
        "testbed_version": manifest.testbed_version,
        "kernel": manifest.host.kernel,
    }
    return {key: str(value) for key, value in found.items()}


def _figures(metrics: Sequence[Metric], variant: str) -> Iterator[tuple[str, float]]:
    """Yield names, such as `link_utilisation_ratio/east/west/0`, and values; for a summary, its quantiles."""
    for metric in metrics:
        for point in metric.points:
            if point.labels.get("variant") != variant or metric.name in ("variant_info", "trial_step_time"):
                continue
            others = [value for key, value in point.labels.items() if key not in _OWN_LABELS]
            key = _REFUSED.sub("_", "/".join([metric.name_with_unit, *others]))
            if metric.kind != "summary":
                yield key, point.value
            for share, value in point.quantiles:
                yield f"{key}/p{100 * share:g}", value


def log_to_mlflow(folder: Path, uri: str, artifacts: Path | None = None) -> list[str]:
    """Log a run's folder to MLflow as a run with a nested run per variant; return their ids, the outer one first.

    `uri` is that of the tracking store, such as `sqlite:///mlflow.db` or a server's. `artifacts` is where a new
    experiment stores files; None for the store's default. BadInput is raised without MLflow, BadResult for an invalid
    run.
    """
    result, manifest = Result.open(folder), Manifest.open(folder)
    try:
        from mlflow.entities import Metric as Value  # noqa: PLC0415
        from mlflow.entities import Param, RunTag  # noqa: PLC0415
        from mlflow.tracking import MlflowClient  # noqa: PLC0415
    except ImportError:
        raise missing_package("mlflow", "mlflow", "mlflow") from None
    client = MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(result.scenario)
    place = None if artifacts is None else artifacts.resolve().as_uri()
    experiment = known.experiment_id if known else client.create_experiment(result.scenario, place)
    whole = client.create_run(experiment, run_name=folder.resolve().name, tags={"verdict": result.status})
    for name in FILES:
        if (folder / name).is_file():
            client.log_artifact(whole.info.run_id, str(folder / name))
    runs = [whole.info.run_id]
    for own in tracked_variants(result, manifest):
        run = client.create_run(experiment, run_name=own.name, tags={"mlflow.parentRunId": whole.info.run_id})
        began_ms = run.info.start_time
        values = [Value(SERIES, value, began_ms, trial) for trial, value in enumerate(own.series)]
        values += [Value(key, value, began_ms, 0) for key, value in own.figures.items()]
        tags = [RunTag("verdict", own.verdict), RunTag("limited_by", own.limited_by)]
        client.log_batch(run.info.run_id, params=[Param(*pair) for pair in own.settings.items()], tags=tags)
        for first in range(0, len(values), 1000):  # the limit of a call
            client.log_batch(run.info.run_id, metrics=values[first : first + 1000])
        runs.append(run.info.run_id)
    for run_id in runs:
        client.set_terminated(run_id)
    return runs


def log_to_wandb(folder: Path, output: Path) -> list[Path]:
    """Log a run's folder to Weights & Biases as offline runs, one per variant, and return their folders.

    The folders are in `output`/wandb. Nothing is uploaded; use `wandb sync FOLDER` for that. BadInput is raised without
    the package, BadResult for an invalid run.
    """
    result, manifest = Result.open(folder), Manifest.open(folder)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it uses the network even for offline runs
    try:
        import wandb  # noqa: PLC0415
    except ImportError:
        raise missing_package("wandb", "wandb", "wandb") from None
    output.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
    )
    folders = []
    for own in tracked_variants(result, manifest):
        run = wandb.init(
            project=re.sub(r"[/\\#?%:]", "-", result.scenario),
            group=folder.resolve().name,
            name=own.name,
            notes=own.limited_by,
            config=own.settings,
            tags=[own.verdict],
            dir=str(output),
            mode="offline",
            reinit="finish_previous",
            settings=settings,
        )
        for trial, value in enumerate(own.series):
            run.log({SERIES: value}, step=trial)
        run.summary.update(own.figures)
        for name in FILES:
            if (folder / name).is_file():
                copied = shutil.copy2(folder / name, run.dir)  # the package would only create a link
                run.save(copied, base_path=run.dir, policy="now")
        folders.append(Path(run.dir).parent)
        run.finish()
    return folders
