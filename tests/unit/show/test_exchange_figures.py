"""A run's figures in other programs' forms, read back by those programs' own readers."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.errors import BadInput
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.records import LINKS, read_links
from testbed.measure.results.result import Result
from testbed.show.exchange.metrics import run_metrics
from testbed.show.exchange.metrics_export import SERIES, log_to_mlflow, log_to_wandb, tracked_variants
from tests.unit.show.report_run import SyntheticRun

# as the synthetic run's manifest says
MADE = datetime(2026, 1, 15, 10, 20, 30, tzinfo=timezone.utc).timestamp()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SyntheticRun(trials=3).write(tmp_path_factory.mktemp("figures") / "quickstart-1")


@pytest.fixture(scope="module")
def one_variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = SyntheticRun(trials=3, exposed_s={"ring": 0.412})
    return run.write(tmp_path_factory.mktemp("figures") / "quickstart-1")


def exported(run: Path, form: str, output: Path) -> str:
    done = CliRunner().invoke(app, ["export", str(run), "--to", form, "-o", str(output)])
    assert done.exit_code == 0, (done.output, done.exception)
    return output.read_text() if output.is_file() else ""


def test_prometheus_reads_what_the_result_says(run: Path, tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(exported(run, "prometheus", tmp_path / "m.prom"))
    }
    result = Result.open(run)
    for variant in result.variants:
        times = variant.step_time_s
        steps = [
            one
            for one in families["testbed_step_time_seconds"].samples
            if one.labels["variant"] == variant.name
        ]
        found = {(one.name.rpartition("_")[2], one.labels.get("quantile")): one.value for one in steps}
        assert found["seconds", "0.5"] == times.median
        assert found["seconds", "1"] == times.max
        assert (found["count", None], found["sum", None]) == (times.n, pytest.approx(sum(times.samples)))
        trials = families["testbed_trial_step_time_seconds"].samples
        assert tuple(one.value for one in trials if one.labels["variant"] == variant.name) == times.samples
        rates = families["testbed_link_rate_bytes_per_second"].samples
        assert [8 * one.value for one in rates if one.labels["variant"] == variant.name] == [
            link.rate_bps for link in variant.wan_links
        ]
        worked = {
            name: one.value
            for name in ("tokens_per_second", "committed_steps", "elapsed_seconds")
            for one in families[f"testbed_{name}"].samples
            if one.labels["variant"] == variant.name
        }
        assert worked["committed_steps"] == times.n
        assert worked["elapsed_seconds"] == pytest.approx(sum(times.samples))
        assert worked["tokens_per_second"] == pytest.approx(65536 * times.n / sum(times.samples))
        verdicts = families["testbed_verdict"].samples
        (given,) = (one for one in verdicts if one.labels["variant"] == variant.name and one.value == 1)
        assert given.labels["status"] == variant.verdict.status
    assert families["testbed_link_step_drops"].type == "counter"
    # a textfile collector refuses moments, and readings without them would contradict each other
    assert all(one.timestamp is None for family in families.values() for one in family.samples)
    assert "testbed_link_sent_bytes" not in families


def test_openmetrics_has_every_reading_at_its_moment(run: Path, tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = exported(run, "openmetrics", tmp_path / "m.txt")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    result = Result.open(run)
    readings = read_links(run / LINKS, result.conversion)
    sent = families["testbed_link_sent_bytes"].samples
    assert len(sent) == len(readings)
    last = {(one.labels["source"], one.labels["target"], one.labels["plane"]): one for one in sent}
    for reading in readings[-len(last) :]:
        one = last[reading.link.source, reading.link.target, str(reading.link.plane)]
        assert one.value == reading.bytes
        assert float(one.timestamp) == pytest.approx(MADE, abs=0.002)
    first_s = min(float(one.timestamp) for one in sent)
    span_s = max(one.time_s for one in readings) - min(one.time_s for one in readings)
    assert first_s == pytest.approx(MADE - span_s, abs=0.002)


def test_opentelemetry_reads_the_same_points(run: Path, tmp_path: Path) -> None:
    messages = pytest.importorskip("opentelemetry.proto.metrics.v1.metrics_pb2")
    from google.protobuf.json_format import Parse  # noqa: PLC0415

    text = exported(run, "otlp-json", tmp_path / "metrics.jsonl")
    assert text.count("\n") == 1
    data = Parse(text, messages.MetricsData())
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    result = Result.open(run)
    readings = read_links(run / LINKS, result.conversion)
    metrics = run_metrics(result, readings)
    assert list(found) == [f"testbed.{metric.name}" for metric in metrics]
    sent = found["testbed.link_sent"]
    assert (sent.unit, sent.sum.is_monotonic, sent.sum.aggregation_temporality) == ("By", True, 2)
    assert [point.as_double for point in sent.sum.data_points] == [reading.bytes for reading in readings]
    assert max(point.time_unix_nano for point in sent.sum.data_points) == round(MADE * 1e9)
    assert all(point.start_time_unix_nano <= point.time_unix_nano for point in sent.sum.data_points)
    steps = found["testbed.step_time"]
    assert [(point.count, point.sum) for point in steps.summary.data_points] == [
        (variant.step_time_s.n, sum(variant.step_time_s.samples)) for variant in result.variants
    ]
    document = json.loads(text)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    assert isinstance(document[0]["gauge"]["dataPoints"][0]["timeUnixNano"], str)  # as JSON has 64 bits there


def test_mlflow_gives_back_variants_series_and_files(
    one_variant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to be made
    store = (tmp_path / "store").as_uri()
    whole, *variants = log_to_mlflow(one_variant, store)
    client = tracking.MlflowClient(tracking_uri=store)
    assert client.get_run(whole).info.run_name == "quickstart-1"
    assert "summary.json" in {one.path for one in client.list_artifacts(whole)}
    result = Result.open(one_variant)
    assert len(variants) == len(result.variants)
    for run_id, variant in zip(variants, result.variants, strict=True):
        kept = client.get_run(run_id)
        assert (kept.info.run_name, kept.info.status) == (variant.name, "FINISHED")
        assert kept.data.params["algorithm"] == variant.algorithm
        assert kept.data.tags["verdict"] == variant.verdict.status
        assert kept.data.tags["mlflow.parentRunId"] == whole
        series = sorted(client.get_metric_history(run_id, SERIES), key=lambda one: one.step)
        assert tuple(one.value for one in series) == variant.step_time_s.samples
        assert kept.data.metrics["step_time_seconds/p50"] == variant.step_time_s.median
        link = variant.wan_links[0]
        assert kept.data.metrics["link_utilisation_ratio/east/west/0"] == link.utilisation


@pytest.mark.thorough  # makes a database
def test_the_command_makes_a_store_that_mlflow_opens(run: Path, tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    exported(run, "mlflow", tmp_path / "store")
    exported(run, "mlflow", tmp_path / "store")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment.artifact_location == (tmp_path / "store" / "artifacts").as_uri()
    kept = client.search_runs([experiment.experiment_id])
    assert len(kept) == 2 * (1 + len(Result.open(run).variants))


def test_weights_and_biases_reads_its_offline_runs(one_variant: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folders = log_to_wandb(one_variant, tmp_path)
    result = Result.open(one_variant)
    assert len(folders) == len(result.variants)
    for folder, variant in zip(folders, result.variants, strict=True):
        reader = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
        lines = subprocess.run(reader, check=True, capture_output=True, text=True).stdout.splitlines()
        records: dict[str, list[Any]] = {}
        for record in map(json.loads, lines):
            records.setdefault(record["type"], []).append(record.get(record["type"]))
        (began,) = records["run"]
        assert (began["display_name"], began["run_group"]) == (variant.name, "quickstart-1")
        assert began["tags"] == [variant.verdict.status]
        assert began["config"]["update"]["algorithm"] == variant.algorithm
        series = [entry["item"][SERIES] for entry in records["history"]]
        assert tuple(series) == variant.step_time_s.samples
        told: dict[str, Any] = {}
        for entry in records["summary"]:
            told |= entry["update"]
        assert told["step_time_seconds/p50"] == variant.step_time_s.median
        assert (folder / "files" / "summary.json").read_bytes() == (one_variant / "summary.json").read_bytes()


def test_figures_have_names_that_trackers_take(run: Path) -> None:
    (ring, _) = tracked_variants(Result.open(run), Manifest.open(run))
    assert all(
        name.replace("_", "").replace("/", "").replace(".", "").replace(" ", "").replace("-", "").isalnum()
        for name in ring.figures
    )
    assert (
        ring.figures["verdict/trusted"] + ring.figures["verdict/caution"] + ring.figures["verdict/untrusted"]
        == 1
    )
    assert ring.settings["ranks"] == "8"


def test_only_a_whole_run_has_figures(tmp_path: Path, run: Path) -> None:
    runner = CliRunner()
    for wrong in (
        ["export", "quickstart", "--to", "prometheus"],
        ["export", str(run), "--to", "wandb", "--set", "trials=2"],
    ):
        done = runner.invoke(app, [*wrong, "-o", str(tmp_path / "m")])
        assert isinstance(done.exception, BadInput) or "expected a folder" in str(done.exception)
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("form", "package"),
    [
        ("prometheus", "prometheus_client"),
        ("otlp-json", "opentelemetry.proto.metrics.v1"),
        ("mlflow", "mlflow.entities"),
        ("wandb", "wandb"),
    ],
)
def test_what_to_install_is_said(
    run: Path, tmp_path: Path, form: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["export", str(run), "--to", form, "-o", str(tmp_path / "m")])
    assert "pip install 'scale-across-testbed[" in str(done.exception)
