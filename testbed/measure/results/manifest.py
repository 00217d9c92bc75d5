"""What `manifest.json` holds: where and with what a run was made, and its fingerprint."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.records import read_model
from testbed.measure.results.result import ScaleRecord
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.version import VERSION

MANIFEST = "manifest.json"
Entry = dict[str, Any]


class Machine(ResultModel):
    """The machine, or the guest, that a run was measured on."""

    kernel: str
    machine: str = Field(description="The processor's architecture.")
    cores: int | None
    memory_bytes: int


class ShardEntry(ResultModel):
    """A shard as it was carried out; of its guest: how long it was up by both clocks, and the memory that it used."""

    variant: str
    first_trial: int
    trials: int
    seed: int
    virtual_s: float | None = None
    wall_s: float | None = None
    memory_bytes: int | None = None


class ClockRecord(ResultModel):
    """By which clock, and what carried it; what follows cpu_time is there where a run had several networks."""

    kind: Literal["real", "virtual"]
    cpu_time: str = Field(description="free or counted under the virtual clock; real.")
    kernel: str | None = Field(default=None, description="The guests'.")
    memory_bytes: int | None = Field(default=None, description="That each guest might use.")
    jobs: int | None = Field(default=None, description="Guests at once.")
    wall_s: float | None = None
    expected_wall_s: float | None = Field(default=None, description="Said before the run began.")
    expected_memory_bytes: int | None = Field(
        default=None, description="Said likewise, of the largest guest."
    )
    parts: tuple[ShardEntry, ...] | None = Field(default=None, description="The run's shards.")


class Manifest(ResultModel):
    """Where and with what a run was made, as its `manifest.json` has it; figures are emulated, as they were set up."""

    schema_version: Literal[1] = Field(alias="schema")
    testbed_version: str
    created: str = Field(description="When, as ISO 8601 has it.")
    command: tuple[str, ...] = Field(description="Which made the run, word by word.")
    host: Machine
    versions: dict[str, str | None] = Field(
        description="Of Python, libraries and programs; null where there is none."
    )
    sysctls: dict[str, str] = Field(description="The kernel's settings that a step may depend on.")
    seed: int = Field(description="The scenario's.")
    clock: ClockRecord
    scale: ScaleRecord
    link_engine: str = Field(description="What carried the WAN links.")
    datapath: str = Field(description="Open vSwitch's.")
    ranks_per_process: int = Field(
        default=1, description="That one process carried, each in a thread: by the virtual clock no matter."
    )
    congestion_control: tuple[str, ...] = Field(description="That sockets had.")
    sockets: tuple[Entry, ...] = Field(description="Options of ranks' sockets, as read back.")
    bootstrap: Entry = Field(description="How ranks found each other, and what it took.")
    fabric: Entry = Field(
        description="Buildings, hosts with their ranks, and WAN links, as read back; whether losses and jitter come "
        "from the seed (`seeded`: not so with netem before Linux 6.6)."
    )
    fabrics: dict[str, Entry] = Field(default={}, description="By variant, where a variant has another one.")
    calibration: dict[str, str] = Field(description="Of the model: with what it was fitted, and when.")
    policy: Entry = Field(description="The transport policy in force, as the controller had it.")
    control: dict[str, Entry] = Field(description="By variant, how long switches and controller take.")
    captures: tuple[Entry, ...] = Field(description="Files of frames that were captured.")
    background_traffic: tuple[Entry, ...] = Field(description="What each of its flows has received.")
    tunnels: tuple[Entry, ...] = Field(description="Between machines.")
    origin_epoch_s: float = Field(description="The records' time 0, in seconds since 1970.")
    fingerprint: RunFingerprint | None = Field(
        default=None, description="Hashes of the samples and of all that may change them; null in older runs."
    )

    @classmethod
    def open(cls, folder: Path) -> Manifest:
        """Of a run's folder. BadResult."""
        return read_model(folder / MANIFEST, cls)


PACKAGE = Path(__file__).parents[2]
SHORT_DIGITS = 12
PIECE_BYTES = 1 << 20
_NO_CODE = {"__pycache__", "shipped"}


class RunFingerprint(ResultModel):
    """Hashes of a run's samples and of all that may change them.

    By the virtual clock equal inputs give equal samples.
    """

    samples: str = Field(description="SHA-256 of `samples.jsonl`.")
    inputs_hash: str = Field(description="SHA-256 of `inputs`.")
    inputs: dict[str, str] = Field(
        description="All that may change the samples, by name: versions, or the beginnings of SHA-256 sums of what is "
        "long, such as the scenario with every default, files named in it, the testbed's code and the guest's kernel."
    )

    @property
    def words(self) -> str:
        """Return what identifies the samples and the inputs on one line of a terminal."""
        return f"samples {self.samples[:SHORT_DIGITS]}, inputs {self.inputs_hash[:SHORT_DIGITS]}"


def fingerprint_of(
    samples: Path,
    scenario: Scenario,
    scale: Scale,
    clock: str,
    kernel: str,
    link_engine: str,
    datapath: str,
    versions: Mapping[str, str | None],
) -> RunFingerprint:
    """Return the fingerprint of a run whose samples are written.

    Args:
        samples: Its `samples.jsonl`.
        scenario: As it was asked for; paths in it count by what the files hold, not by where they are.
        scale: In force, whatever the scenario leaves open.
        clock: Kind and accounting of computing, such as "virtual, free".
        kernel: Version and, under the virtual clock, hash of the guest's.
        link_engine: What carried the WAN links.
        datapath: Open vSwitch's.
        versions: Of Python, libraries and programs, None for those that are not there.
    """
    document = yaml.safe_load(scenario.to_yaml())
    document["scale"] = vars(scale)
    files: dict[str, str] = {}
    text = json.dumps(_without_places(document, files), sort_keys=True)
    inputs = {
        "scenario": _short(text.encode()),
        **({"files": _short(json.dumps(files, sort_keys=True).encode())} if files else {}),
        "seed": str(scenario.seed),
        "scale": str(scale),
        "clock": clock,
        "kernel": kernel,
        "link engine": link_engine,
        "datapath": datapath,
        "testbed": f"{VERSION}, code {code_hash()}",
        "C library": " ".join(platform.libc_ver()),
        **{name: version for name, version in versions.items() if version is not None},
    }
    return RunFingerprint(
        samples=file_hash(samples),
        inputs_hash=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        inputs=inputs,
    )


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file. OSError."""
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


@functools.cache
def code_hash() -> str:
    """Return the beginning of the SHA-256 of the package's files, the same for a checkout and an installed wheel.

    Topologies and scenarios, which a wheel has in the package, are no code.
    """
    found = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*")):
        place = file.relative_to(PACKAGE)
        if file.is_file() and file.suffix not in (".pyc", ".so") and not _NO_CODE & set(place.parts):
            found.update(f"{place}\0".encode())
            found.update(file.read_bytes() + b"\0")
    return found.hexdigest()[:SHORT_DIGITS]


def _without_places(value: Any, files: dict[str, str]) -> Any:
    """Replace whole paths by their last parts, and note the hash of each file, also of FILE.py:NAME."""
    if isinstance(value, Mapping):
        return {key: _without_places(inner, files) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_places(inner, files) for inner in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    place, colon, name = value.partition(":")
    for file in _files_at(Path(place)):
        files[str(file.relative_to(Path(place).parent))] = file_hash(file)
    return f"{Path(place).name}{colon}{name}"


def _files_at(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    elif place.is_dir():
        yield from (file for file in sorted(place.rglob("*")) if file.is_file() and file.suffix != ".pyc")


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:SHORT_DIGITS]
