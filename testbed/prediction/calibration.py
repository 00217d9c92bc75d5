"""What the model of a step takes from the emulator, as `testbed calibrate` measured it: an entry per clock, in a file.

Looked for in `$TESTBED_CALIBRATION`, then where kernels of the virtual clock are kept, per user and per machine; of a
clock that nobody has calibrated here the package's own is taken.
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
    """A file that is none; the message says which and why."""


@dataclass(frozen=True)
class Calibration:
    """Of one clock. losses: by congestion control. made: with what, when.

    message_s, byte_s: what software takes at each end of a message, emulated seconds; None: as the scenario has it.
    mending: of transports that mend losses themselves, by how they do, a factor to what the closed form says of it.
    """

    losses: Mapping[str, LossResponse]
    message_s: float | None = None
    byte_s: float | None = None
    made: Mapping[str, str] = field(default_factory=dict)
    mending: Mapping[str, float] = field(default_factory=dict)

    def mending_factor(self, probed_as: str) -> float:
        """Of one way to mend losses; 1.0 where it was not probed."""
        return self.mending.get(probed_as, 1.0)

    def response(self, congestion_control: str, model: str | None = None) -> LossResponse:
        """To losses, of one that was calibrated, else as its model says, or the usual one's.

        congestion_control: by the kernel's name. model: what the model knows it by, if by another.
        """
        if (measured := self.losses.get(congestion_control)) is not None:
            return measured
        own = find_control(model or congestion_control).response
        return own or self.losses.get(FALLBACK_CONTROL) or LossResponse()

    def software(self, transport: TransportSpec, scale: Scale) -> Software:
        """What messages take at each end, and operations beside them; emulated."""
        found = modelled_software(transport, scale)
        if self.message_s is None or self.byte_s is None:
            return found
        share = found.computing_share
        return Software(found.protocol, found.slots, self.message_s, self.byte_s, computing_share=share)

    @property
    def link_engine(self) -> str:
        """Of the emulator that was calibrated."""
        return self.made.get(LINK_ENGINE, NETEM)

    @property
    def words(self) -> str:
        """Which it is, for people."""
        return calibration_words(self.made)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Calibration:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        losses = {name: LossResponse(**entry) for name, entry in document["losses"].items()}
        # files that were made before there were probes of datagrams have none of those
        mending = document.get("mending", {})
        return cls(losses, document["message_s"], document["byte_s"], document["made"], mending=dict(mending))


def calibration_words(made: Mapping[str, str]) -> str:
    """By when and with what it was made."""
    if "created" not in made:
        return "no calibration"
    return f"the calibration of {made['created'][:10]} (Linux {made.get('kernel', 'unknown')})"


def find_calibration(clock: str) -> Calibration:
    """The one in use for a clock, `virtual` or `real`. BadCalibration."""
    for file in _files():
        if _is_there(file) and clock in (entries := _read(file)):
            return entries[clock]
    return _shipped()[clock]


@lru_cache(1)
def _shipped() -> dict[str, Calibration]:
    return _parse(files("testbed").joinpath(f"data/{FILE}").read_text())


def file_in_use() -> Path | None:
    """The file of this machine's own calibrations; None where there is none."""
    return next((file for file in _files() if _is_there(file)), None)


def environment() -> dict[str, str]:
    """With which a process elsewhere on this machine, or in a guest, finds the same."""
    return {VARIABLE: str(file_in_use() or _files()[0])}


def write_calibration(clock: str, calibration: Calibration, file: Path | None = None) -> Path:
    """Write it, beside that of the other clock; returns the file. BadCalibration, OSError."""
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
    """Whether whoever asks can see it: in a guest the home is root's, and who started the guest need not be root."""
    try:
        return file.exists()
    except PermissionError:
        return False


def _to_write() -> Path:
    """As with kernels: root's serves all users of the machine."""
    return _files()[-1] if os.geteuid() == 0 else _files()[0]


def _read(file: Path) -> dict[str, Calibration]:
    try:
        status = file.stat()
        return _parsed(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCalibration(
            f"{file} is no calibration of this version ({error}); remove it or calibrate"
        ) from None


@lru_cache(4)  # it is read time and again
def _parsed(file: Path, changed_ns: int, size_bytes: int) -> dict[str, Calibration]:
    return _parse(file.read_text())


def _parse(text: str) -> dict[str, Calibration]:
    document = json.loads(text)
    schema = document.pop("schema")
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, expected {SCHEMA}")
    return {clock: Calibration.from_document(entry) for clock, entry in document.items()}
