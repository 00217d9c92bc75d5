"""Export of a run to experiment trackers, MLflow and Weights & Biases, with their own packages, to local files.

In both, a variant is a run. Settings are parameters, step times of trials a series, all figures of `metrics` last
values, the verdict a tag, and files of the run's folder artifacts.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.measure.results.manifest import MANIFEST, Manifest
from testbed.measure.results.result import SUMMARY, Result, Variant
from testbed.show.exchange.metrics import Metric, run_metrics
from testbed.show.exchange.metrics_export import missing_package

FILES = (SUMMARY, MANIFEST, "scenario.yaml", "report.html")
SERIES = "trial_step_time_seconds"
_OWN_LABELS = ("run", "scenario", "variant")
# characters that MLflow rejects in metric names; also the colon, which Windows rejects
_REFUSED = re.compile(r"[^\w./ -]")


@dataclass(frozen=True)
class Tracked:
    """A variant for a tracker. series: step times in seconds by trial. limited_by: a sentence."""

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
    """Yield names and values, such as `link_utilisation_ratio/east/west/0`; quantiles for a summary."""
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
    """Log a run's folder to MLflow as one run with a nested run per variant; return their ids, the outer one first.

    uri: of the tracking store, such as `sqlite:///mlflow.db` or a server's. artifacts: where a new experiment stores
    files; None for the store's default. Raises BadInput without MLflow, BadResult.
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

    They are under `output`/wandb. Nothing is sent; `wandb sync FOLDER` does that. Raises BadInput without the package,
    BadResult.
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
