"""Calibration of the step model: run probes, fit the model to them, store the result where runs look for it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.cli.experiments.run import Listener, run
from testbed.comm.transport.rdma.devices import import_pyverbs
from testbed.measure.execution.run import Request
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result, Variant
from testbed.measure.results.run_directory import chown_to_sudo_user, make_folder
from testbed.net.errors import NoKernelError
from testbed.net.virtual.kernel_image import find_image
from testbed.prediction.calibration import LINK_ENGINE, VIRTUAL, write_calibration
from testbed.prediction.calibration_run import Fit, MeasuredProbe, fit, probe_scenario
from testbed.workload.job.errors import RunError

SCENARIO, RUN = "calibration.yaml", "run"


@dataclass(frozen=True)
class Calibrated:
    """A calibration: the run of its probes, the fit, and the file that stores it."""

    result: Result
    fit: Fit
    kept: Path


def calibrate(
    clock: str, folder: Path, jobs: int | None, keep: Path | None, listener: Listener
) -> Calibrated:
    """Run the probes in a new folder, fit the model, and store the result.

    Args:
        clock: clock to calibrate for, "virtual" or "real".
        folder: folder to create.
        jobs: guests to run at once; None: one per core, as memory allows.
        keep: file for the result; None: where runs look for it.
        listener: reports progress.

    Raises:
        RunError: too few results are trusted; and everything that a run raises. A folder with a run in it is kept.
    """
    make_folder(folder)
    try:
        scenario = probe_scenario(cards=clock == VIRTUAL and _has_rdma_cards())
        file = folder / SCENARIO
        file.write_text(scenario.to_yaml())
        result = run(Request(scenario, folder / RUN, str(file), clock=clock, jobs=jobs), listener)
        try:
            found = fit(
                scenario, measured_probes(result), result.conversion, clock, _provenance(folder / RUN)
            )
        except ValueError as error:
            raise RunError(str(error)) from None
        kept = write_calibration(clock, found.calibration, keep)
    except BaseException:
        if not (folder / RUN).exists():
            shutil.rmtree(folder)
        raise
    chown_to_sudo_user(folder)
    return Calibrated(result, found, kept)


def _has_rdma_cards() -> bool:
    """Return whether hosts under the virtual clock can have RDMA cards here."""
    try:
        import_pyverbs("device")
        return "soft-RoCE" in find_image().checked
    except (ImportError, NoKernelError):  # the run reports a missing kernel
        return False


def measured_probes(result: Result) -> list[MeasuredProbe]:
    """Return the measured time of each probe. Untrusted ones are marked, as they must not be fitted to."""
    return [
        MeasuredProbe(
            variant.name,
            variant.step_time_s.median,
            variant.verdict.status != "untrusted",
            _retransmissions(variant),
        )
        for variant in result.variants
    ]


def _retransmissions(variant: Variant) -> int:
    """Return the number of retransmitted packets, or how often RDMA cards went back."""
    return sum(one.retransmits if one.went_back is None else one.went_back for one in variant.connections)


def _provenance(folder: Path) -> dict[str, str]:
    """Return the version, kernel, link engine and date of a run."""
    manifest = Manifest.open(folder)
    return {
        "testbed": manifest.testbed_version,
        "kernel": manifest.clock.kernel or manifest.host.kernel,
        LINK_ENGINE: manifest.link_engine,
        "created": manifest.created,
    }
