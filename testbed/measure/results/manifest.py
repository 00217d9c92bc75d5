"""What `manifest.json` holds, typed: where and with what a run was made; figures are emulated, as they were set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.records import read_model
from testbed.measure.results.result import ScaleRecord
from testbed.measure.results.run_fingerprint import RunFingerprint

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
