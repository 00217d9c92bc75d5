"""Calibration of the step model against the emulator, from `testbed calibrate`: a file with one entry per clock.

The file is looked up in `$TESTBED_CALIBRATION`, then in the directories of virtual-clock kernels, per user and per
machine. A clock that has not been calibrated here uses the values that are shipped with the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from testbed.comm.transport import Software
from testbed.net.paths.congestion import LossResponse
from testbed.net.paths.hops import NETEM
from testbed.net.paths.losses import FALLBACK_CONTROL, find_control
from testbed.net.virtual.kernel_image import kernel_folders
from testbed.spec.scale import Scale
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import modelled_software
from testbed.workload.job.errors import RunError

SCHEMA = 1
VARIABLE = "TESTBED_CALIBRATION"
FILE = "calibration.json"
VIRTUAL, REAL = "virtual", "real"
LINK_ENGINE = "link_engine"


class BadCalibration(RunError):
    """The error for an unusable calibration file; it names the file and the reason."""


@dataclass(frozen=True)
class Calibration:
    """The model's parameters for one clock.

    Attributes:
        losses: Response to losses, by congestion control.
        message_s: Software cost at each end of a message, in emulated seconds; None to use the scenario's value.
        byte_s: Software cost per byte at each end, in emulated seconds; None to use the scenario's value.
        made: Date, kernel and link engine of the calibration.
        mending: Correction factor of the closed form for transports that recover losses themselves, by recovery method.
    """

    losses: Mapping[str, LossResponse]
    message_s: float | None = None
    byte_s: float | None = None
    made: Mapping[str, str] = field(default_factory=dict)
    mending: Mapping[str, float] = field(default_factory=dict)

    def mending_factor(self, probed_as: str) -> float:
        """Return the factor of a loss recovery method; 1.0 if it was not probed."""
        return self.mending.get(probed_as, 1.0)

    def response(self, congestion_control: str, model: str | None = None) -> LossResponse:
        """Return an algorithm's response to losses, else that of its model, else that of the default control.

        `congestion_control` is the kernel's name, and `model` the model's name for it if that differs.
        """
        if (measured := self.losses.get(congestion_control)) is not None:
            return measured
        own = find_control(model or congestion_control).response
        return own or self.losses.get(FALLBACK_CONTROL) or LossResponse()

    def software(self, transport: TransportSpec, scale: Scale) -> Software:
        """Return the software costs per message and per operation, in emulated seconds."""
        found = modelled_software(transport, scale)
        if self.message_s is None or self.byte_s is None:
            return found
        share = found.computing_share
        return Software(found.protocol, found.slots, self.message_s, self.byte_s, computing_share=share)

    @property
    def link_engine(self) -> str:
        """The calibrated link engine."""
        return self.made.get(LINK_ENGINE, NETEM)

    @property
    def words(self) -> str:
        """A short description for messages."""
        return calibration_words(self.made)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Calibration:
        """Parse the JSON form of `dataclasses.asdict`."""
        losses = {name: LossResponse(**entry) for name, entry in document["losses"].items()}
        # older files have no probes of datagrams
        mending = document.get("mending", {})
        return cls(losses, document["message_s"], document["byte_s"], document["made"], mending=dict(mending))


def calibration_words(made: Mapping[str, str]) -> str:
    """Describe a calibration by its date and kernel."""
    if "created" not in made:
        return "no calibration"
    return f"the calibration of {made['created'][:10]} (Linux {made.get('kernel', 'unknown')})"


def find_calibration(clock: str) -> Calibration:
    """Return the calibration in use for a clock, `virtual` or `real`; raise BadCalibration if it is unusable."""
    for file in _files():
        if _is_there(file) and clock in (entries := _read(file)):
            return entries[clock]
    return _shipped()[clock]


@lru_cache(1)
def _shipped() -> dict[str, Calibration]:
    return _parse(files("testbed").joinpath(f"data/{FILE}").read_text())


def file_in_use() -> Path | None:
    """Return the file with this machine's own calibrations; None if there is none."""
    return next((file for file in _files() if _is_there(file)), None)


def environment() -> dict[str, str]:
    """Return the environment variables that let another process, here or in a guest, find the same file."""
    return {VARIABLE: str(file_in_use() or _files()[0])}


def write_calibration(clock: str, calibration: Calibration, file: Path | None = None) -> Path:
    """Store a clock's calibration, keep the other clock's, and return the file; raise BadCalibration or OSError."""
    target = file or _to_write()
    entries = _read(target) if target.exists() else {}
    document = {name: asdict(entry) for name, entry in {**entries, clock: calibration}.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".partial")
    part.write_text(json.dumps({"schema": SCHEMA, **document}, indent=1) + "\n")
    part.replace(target)
    return target


def _files() -> list[Path]:
    if chosen := os.environ.get(VARIABLE):
        return [Path(chosen)]
    return [folder.parent / FILE for folder in kernel_folders()]


def _is_there(file: Path) -> bool:
    """Return whether the file exists and is readable; in a guest, the home is root's and the user may not be root."""
    try:
        return file.exists()
    except PermissionError:
        return False


def _to_write() -> Path:
    """Return the file to write; as for kernels, the file that root writes serves all users."""
    return _files()[-1] if os.geteuid() == 0 else _files()[0]


def _read(file: Path) -> dict[str, Calibration]:
    try:
        status = file.stat()
        return _parsed(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCalibration(
            f"{file} is no calibration of this version ({error}); remove it or calibrate"
        ) from None


@lru_cache(4)  # read repeatedly
def _parsed(file: Path, changed_ns: int, size_bytes: int) -> dict[str, Calibration]:
    return _parse(file.read_text())


def _parse(text: str) -> dict[str, Calibration]:
    document = json.loads(text)
    schema = document.pop("schema")
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, expected {SCHEMA}")
    return {clock: Calibration.from_document(entry) for clock, entry in document.items()}
