"""The model's calibration: probes are run, the model is fitted to them, the result is kept where runs look for it."""

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
    """The probes' run, what fits it, and the file that keeps it."""

    result: Result
    fit: Fit
    kept: Path


def calibrate(
    clock: str, folder: Path, jobs: int | None, keep: Path | None, listener: Listener
) -> Calibrated:
    """Run the probes in `folder`, which is made, fit, and keep. keep: the file; None: where runs look for it.

    RunError where too few figures are to be trusted, and all that a run raises; a folder with a run in it then stays.
    """
    make_folder(folder)
    try:
        scenario = probe_scenario(cards=clock == VIRTUAL and _can_have_cards())
        file = folder / SCENARIO
        file.write_text(scenario.to_yaml())
        result = run(Request(scenario, folder / RUN, str(file), clock=clock, jobs=jobs), listener)
        try:
            found = fit(scenario, measured_probes(result), result.conversion, clock, _made(folder / RUN))
        except ValueError as error:
            raise RunError(str(error)) from None
        kept = write_calibration(clock, found.calibration, keep)
    except BaseException:
        if not (folder / RUN).exists():
            shutil.rmtree(folder)
        raise
    chown_to_sudo_user(folder)
    return Calibrated(result, found, kept)


def _can_have_cards() -> bool:
    """Whether hosts of the virtual clock can have network cards with verbs here."""
    try:
        import_pyverbs("device")
        return "soft-RoCE" in find_image().checked
    except (ImportError, NoKernelError):  # that there is none the run says
        return False


def measured_probes(result: Result) -> list[MeasuredProbe]:
    """What the probes of a run took; its untrusted ones are not to be fitted to."""
    return [
        MeasuredProbe(
            variant.name, variant.step_time_s.median, variant.verdict.status != "untrusted", _mended(variant)
        )
        for variant in result.variants
    ]


def _mended(variant: Variant) -> int:
    """Packets that were sent again, or how often cards went back."""
    return sum(one.retransmits if one.went_back is None else one.went_back for one in variant.connections)


def _made(folder: Path) -> dict[str, str]:
    """With which version, on which kernel and link engine, when."""
    manifest = Manifest.open(folder)
    return {
        "testbed": manifest.testbed_version,
        "kernel": manifest.clock.kernel or manifest.host.kernel,
        LINK_ENGINE: manifest.link_engine,
        "created": manifest.created,
    }
