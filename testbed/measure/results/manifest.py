"""Typed models of `manifest.json`: a run's machine, software and settings, and its fingerprint."""

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

from testbed.measure.result_model import ResultModel
from testbed.measure.results.records import read_model
from testbed.measure.results.result import ScaleRecord
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.version import VERSION

MANIFEST = "manifest.json"
Entry = dict[str, Any]


class Machine(ResultModel):
    """The machine or guest that a run was measured on."""

    kernel: str
    machine: str = Field(description="The processor's architecture.")
    cores: int | None
    memory_bytes: int


class ShardEntry(ResultModel):
    """A shard of the run, with its guest's times and memory if it ran in one."""

    variant: str
    first_trial: int
    trials: int
    seed: int
    virtual_s: float | None = Field(default=None, description="Uptime of the guest by the virtual clock.")
    wall_s: float | None = Field(default=None, description="Uptime of the guest by the wall clock.")
    memory_bytes: int | None = Field(default=None, description="Memory that the guest used.")


class ClockRecord(ResultModel):
    """The clock of the run. The fields after `cpu_time` are set if the run was split into shards."""

    kind: Literal["real", "virtual"]
    cpu_time: str = Field(
        description="How CPU time is accounted: free or counted (virtual clock), real (real clock)."
    )
    kernel: str | None = Field(default=None, description="Kernel version of the guests.")
    memory_bytes: int | None = Field(default=None, description="Memory limit of each guest.")
    jobs: int | None = Field(default=None, description="Guests run in parallel.")
    wall_s: float | None = None
    expected_wall_s: float | None = Field(default=None, description="Estimate made before the run.")
    expected_memory_bytes: int | None = Field(
        default=None, description="Estimate made before the run, for the largest guest."
    )
    parts: tuple[ShardEntry, ...] | None = Field(default=None, description="The run's shards.")


class RunFingerprint(ResultModel):
    """Hashes of a run's samples and of everything that can change them.

    Under the virtual clock, equal inputs give equal samples.
    """

    samples: str = Field(description="SHA-256 of `samples.jsonl`.")
    inputs_hash: str = Field(description="SHA-256 of `inputs`.")
    inputs: dict[str, str] = Field(
        description="Everything that may change the samples, by name. Versions are given in full. The scenario with "
        "its defaults, the files it names, the testbed's code and the guest's kernel are given as the first digits of "
        "their SHA-256."
    )

    @property
    def label(self) -> str:
        """The beginnings of both hashes, on one line for a terminal."""
        return f"samples {self.samples[:SHORT_DIGITS]}, inputs {self.inputs_hash[:SHORT_DIGITS]}"


class Manifest(ResultModel):
    """A run's machine, software and settings. Figures are emulated values, as configured."""

    schema_version: Literal[1] = Field(alias="schema")
    testbed_version: str
    created: str = Field(description="Date and time in ISO 8601.")
    command: tuple[str, ...] = Field(description="The command line that made the run, by argument.")
    host: Machine
    versions: dict[str, str | None] = Field(
        description="Versions of Python, libraries and programs; null if not installed."
    )
    sysctls: dict[str, str] = Field(description="Kernel settings that may affect a step.")
    seed: int = Field(description="The scenario's seed.")
    clock: ClockRecord
    scale: ScaleRecord
    link_engine: str = Field(description="The engine that emulated the WAN links.")
    datapath: str = Field(description="The datapath of Open vSwitch.")
    ranks_per_process: int = Field(
        default=1, description="Rank threads per process. Under the virtual clock it does not affect results."
    )
    congestion_control: tuple[str, ...] = Field(description="TCP congestion control of the ranks' sockets.")
    sockets: tuple[Entry, ...] = Field(description="Options of the ranks' sockets, as read back.")
    bootstrap: Entry = Field(description="How ranks found each other, and the time and traffic it took.")
    fabric: Entry = Field(
        description="Buildings, hosts with their ranks, and WAN links, as read back. `seeded` says whether losses and "
        "jitter are drawn from the seed (not so with netem before Linux 6.6)."
    )
    fabrics: dict[str, Entry] = Field(
        default={}, description="By variant, for variants on a different fabric."
    )
    calibration: dict[str, str] = Field(description="What the model's calibration was fitted with, and when.")
    policy: Entry = Field(description="The transport policy in force, as reported by the controller.")
    control: dict[str, Entry] = Field(description="Control-plane delays, by variant.")
    captures: tuple[Entry, ...] = Field(description="Packet capture files.")
    background_traffic: tuple[Entry, ...] = Field(description="What each background flow received.")
    tunnels: tuple[Entry, ...] = Field(description="Tunnels between machines.")
    origin_epoch_s: float = Field(description="Time 0 of all records, in seconds since 1970.")
    fingerprint: RunFingerprint | None = Field(
        default=None,
        description="Hashes of the samples and of everything that may change them; null in older runs.",
    )

    @classmethod
    def open(cls, folder: Path) -> Manifest:
        """Read the manifest of a run directory, or raise BadResult."""
        return read_model(folder / MANIFEST, cls)


PACKAGE = Path(__file__).parents[2]
SHORT_DIGITS = 12
CHUNK_BYTES = 1 << 20
_NO_CODE = {"__pycache__", "shipped"}


def compute_fingerprint(
    manifest: Manifest, samples: Path, scenario: Scenario, scale: Scale, kernel_image: str | None = None
) -> RunFingerprint:
    """Return the fingerprint of a run.

    Args:
        manifest: The run's manifest, without a fingerprint.
        samples: The run's `samples.jsonl`, already written.
        scenario: The scenario as requested. Files named in it are hashed by content, not by path.
        scale: The scale in force, which the scenario may leave unset.
        kernel_image: Under the virtual clock, the hash of the guest's image.
    """
    clock, kernel = manifest.clock, manifest.clock.kernel or manifest.host.kernel
    document = yaml.safe_load(scenario.to_yaml())
    document["scale"] = vars(scale)
    files: dict[str, str] = {}
    text = json.dumps(_strip_paths(document, files), sort_keys=True)
    inputs = {
        "scenario": _short(text.encode()),
        **({"files": _short(json.dumps(files, sort_keys=True).encode())} if files else {}),
        "seed": str(scenario.seed),
        "scale": str(scale),
        "clock": f"{clock.kind}, {clock.cpu_time}" if clock.kind == "virtual" else clock.kind,
        "kernel": kernel if kernel_image is None else f"{kernel}, image {kernel_image}",
        "link engine": manifest.link_engine,
        "datapath": manifest.datapath,
        "testbed": f"{VERSION}, code {code_hash()}",
        "C library": " ".join(platform.libc_ver()),
        **{name: version for name, version in manifest.versions.items() if version is not None},
    }
    return RunFingerprint(
        samples=file_hash(samples),
        inputs_hash=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        inputs=inputs,
    )


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def code_hash() -> str:
    """Return the first digits of the SHA-256 of the package's code, the same for a checkout and an installed wheel.

    Topologies and scenarios, which a wheel has inside the package, do not count as code.
    """
    found = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*")):
        place = file.relative_to(PACKAGE)
        if file.is_file() and file.suffix not in (".pyc", ".so") and not _NO_CODE & set(place.parts):
            found.update(f"{place}\0".encode())
            found.update(file.read_bytes() + b"\0")
    return found.hexdigest()[:SHORT_DIGITS]


def _strip_paths(value: Any, files: dict[str, str]) -> Any:
    """Replace absolute paths (also in FILE.py:NAME) by their last component, and add each file's hash to `files`."""
    if isinstance(value, Mapping):
        return {key: _strip_paths(inner, files) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strip_paths(inner, files) for inner in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    text, colon, name = value.partition(":")
    path = Path(text)
    for file in _files_at(path):
        files[str(file.relative_to(path.parent))] = file_hash(file)
    return f"{path.name}{colon}{name}"


def _files_at(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix != ".pyc")


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:SHORT_DIGITS]
