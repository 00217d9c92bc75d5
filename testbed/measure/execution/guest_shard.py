"""One shard in a guest: its task in a folder, the guest, how it ended; on this machine or on an engine's worker."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.measure.results.parts import FINISHED
from testbed.measure.results.shards import Shard
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest import Guest, GuestExit, GuestSettings
from testbed.net.virtual.kernel_image import KernelImage, find_image
from testbed.prediction import calibration
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.errors import RunError
from testbed.workload.job.job import workload_of
from testbed.workload.schedules import find_schedule, write_csv

LINK_ENGINE, DATAPATH = "netem", "system"
CHECKOUT = Path(__file__).parents[3]
Told = Callable[[Mapping[str, Any]], None]
"""Hears what the guest says of itself: `phase`, or `step` of `of`."""


@dataclass(frozen=True)
class GuestWork:
    """What shards of a run have in common. settings: of each guest, but for core, seed and folders."""

    settings: GuestSettings
    scale: Scale
    ranks_per_process: int | None
    link_engine: str = LINK_ENGINE


def measure(
    work: GuestWork,
    image: KernelImage,
    shard: Shard,
    scenario: Scenario,
    folder: Path,
    *,
    core: int | None = None,
    told: Told = lambda event: None,
    meanwhile: Callable[[Guest], None] = lambda guest: None,
) -> GuestExit:
    """Measure a shard in a guest, into its folder, which is made; scenario: its own. RunError, VirtualClockError."""
    folder.mkdir(parents=True)
    own = folder / "scenario.yaml"
    own.write_text(_with_schedule(scenario, work.scale, folder).to_yaml())
    task = {
        "shard": asdict(shard),
        "scenario": str(own.resolve()),
        "link_engine": work.link_engine,
        "datapath": DATAPATH,
        "scale": asdict(work.scale),
        "ranks_per_process": work.ranks_per_process,
        "folder": str(folder.resolve()),
    }
    (folder / "task.json").write_text(json.dumps(task))
    settings = replace(work.settings, core=core, seed=shard.seed, writable=(folder,))
    ended = _booted(Guest(image, settings), shard, folder, told, meanwhile)
    finish(folder, ended)
    return ended


def finish(folder: Path, ended: GuestExit) -> None:
    """Mark a shard's record as whole: last of all."""
    written = folder / f".{FINISHED}"
    written.write_text(json.dumps(asdict(ended)))
    written.rename(folder / FINISHED)


def measure_elsewhere(work: GuestWork, item: tuple[Shard, Scenario]) -> bytes:
    """The same on a worker of an engine: its folder as an archive; nothing of it stays on the worker."""
    shard, scenario = item
    with tempfile.TemporaryDirectory(prefix="testbed-shard-") as above:
        folder = Path(above, str(shard.number))
        measure(work, find_image(), shard, scenario, folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in folder.rglob("*"):
                archive.write(file, file.relative_to(folder))
        return packed.getvalue()


def unpack(packed: bytes, folder: Path) -> GuestExit:
    """A shard's folder from its archive; what marks it as whole comes last."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        folder.mkdir(parents=True)
        archive.extractall(folder, [name for name in archive.namelist() if name != FINISHED])
        ended = GuestExit(**json.loads(archive.read(FINISHED)))
    finish(folder, ended)
    return ended


def read_ended(file: Path) -> GuestExit:
    """How a finished shard's guest ended."""
    return GuestExit(**json.loads(file.read_text()))


def _booted(
    guest: Guest, shard: Shard, folder: Path, told: Told, meanwhile: Callable[[Guest], None]
) -> GuestExit:
    complaints: list[str] = []
    pending = ""

    def said(text: str) -> None:
        nonlocal pending
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            told(json.loads(line))

    command = [
        sys.executable,
        "-m",
        "testbed.measure.execution.guest_entry",
        str((folder / "task.json").resolve()),
    ]
    environment = {"PYTHONPATH": str(CHECKOUT), **calibration.environment()}
    try:
        ended = guest.run(command, CHECKOUT, environment, said, complaints.append, lambda: meanwhile(guest))
    except VirtualClockError as error:
        raise VirtualClockError(f"{shard.name}: {error}") from error
    if ended.status != 0:
        why = "".join(complaints).strip().removeprefix("error: ")
        raise RunError(f"{shard.name}: {why or f'ended with status {ended.status}'}")
    return ended


def _with_schedule(scenario: Scenario, scale: Scale, folder: Path) -> Scenario:
    """The same with a schedule that is searched for as a file: a guest has other things to do."""
    asked = scenario.workload.schedule
    if asked is None or asked.file is not None or not find_schedule(asked.name).searched:
        return scenario
    training = workload_of(scenario, scenario.topology.resolve(scale), scale).training
    assert training is not None
    file = folder / f"{asked.name}.csv"
    file.write_text(write_csv(training.schedule.orders))
    return scenario.changed({"workload.schedule.file": str(file.resolve())}, scenario.name)
