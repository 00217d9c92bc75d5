"""What losses do to connections under the virtual clock, as the model has it; a calibration from start to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cli.experiments.run import measured_probes
from testbed.measure.results.result import Result
from testbed.prediction.calibration_run import fit, probe_scenario
from testbed.spec.scenario import Scenario
from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

NAMES = ("reno-20ms-0-64kb", "reno-20ms-1-64kb", "reno-20ms-0.2-16mb", "bbr-20ms-0.2-16mb", "nack-20ms-1-1mb")
WITHIN = 0.35  # the model says what is so on average, and a probe has some tens of losses
MESSAGES = 150  # of the last one: of fifty by one draw, losses meet a quarter more or less than their share


def some_probes() -> Scenario:
    scenario = probe_scenario()
    assert scenario.variants is not None
    variants = {name: dict(scenario.variants[name]) for name in NAMES}
    variants[NAMES[-1]]["workload.exchange.messages"] = MESSAGES
    return scenario.model_copy(update={"variants": variants})


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(some_probes().to_yaml()) as folder:
        yield folder


@pytest.mark.parametrize("name", NAMES)
def test_the_model_knows_what_losses_do(folder: Path, name: str) -> None:
    variant = variants_of(folder)[name]
    assert variant["verdict"]["status"] != "untrusted"
    assert abs(variant["predicted"]["error"]) < WITHIN


def test_a_fit_to_these_probes_is_no_worse(folder: Path) -> None:
    result = Result.open(folder)
    found = fit(some_probes(), measured_probes(result), result.conversion, "virtual", {})
    assert set(found.errors) == set(NAMES)
    assert set(found.calibration.losses) == {"reno", "bbr"}
    # whose losses are counted: what is left is the form's, and which of a hundred messages they meet
    assert found.calibration.mending["nack"] == pytest.approx(1.0, abs=0.2)
    usual = {name: abs(variant["predicted"]["error"]) for name, variant in variants_of(folder).items()}
    for name in NAMES[1:3]:
        assert abs(found.errors[name]) <= max(usual[name], 0.05)


def test_a_run_says_which_calibration_its_predictions_are_by(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["calibration"]) == {"testbed", "kernel", "link_engine", "created"}
