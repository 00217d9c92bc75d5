"""Typed models of `summary.json`, used to write and to read it; `testbed schema result` prints their JSON Schema.

All figures are in real units (seconds, bytes, bits per second), regardless of the scale of the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from testbed.errors import BadInput
from testbed.measure.fidelity.link_invariants import DroppingPort
from testbed.measure.fidelity.similarity import DimensionlessNumber
from testbed.measure.fidelity.verdict import Status, Verdict
from testbed.measure.result_model import ResultModel, StoredResult
from testbed.measure.results.committed_work import Rates, Work
from testbed.measure.results.link_summary import LinkUse, PausedLink, PlaneBalance
from testbed.measure.results.notebook_views import (
    OPERATIONS,
    READINGS,
    STEPS,
    Figure,
    link_rows,
    make_frame,
    result_html,
)
from testbed.measure.results.records import LINKS, SAMPLES, read_links, read_model, read_samples
from testbed.measure.results.replication import Replication
from testbed.measure.results.serving_result import Decoding, Serving
from testbed.plugins import registry
from testbed.spec.scale import Scale

if TYPE_CHECKING:
    import pandas

SUMMARY = "summary.json"


class StepTimes(ResultModel):
    """Measured step times of a variant, in seconds.

    Steps that some replicas missed are included; `work` has their number.
    """

    median: float
    p95: float = Field(description="95th percentile by nearest rank.")
    min: float
    max: float
    n: int = Field(description="Number of measured steps.")
    samples: tuple[float, ...] = Field(description="Every step time, in trial order.")


class Prediction(ResultModel):
    """The model's prediction of the step time."""

    step_time_s: float
    error: float = Field(description="Relative error against the measured median: 0.1 means 10 % too long.")


class Bytes(ResultModel):
    """Payload bytes of a step."""

    expected: int = Field(description="According to the plan.")
    observed: int = Field(
        description="What ranks sent: the median over steps in which all replicas took part."
    )


class RoundTrips(ResultModel):
    """Smoothed round-trip times as reported by TCP, in seconds, over all readings taken during steps."""

    min: float
    median: float
    max: float


class Connections(ResultModel):
    """All connections from one building to another. Counts are totals over all steps."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    connections: int
    rtt_s: RoundTrips | None = Field(default=None, description="null if no reading fell into a step.")
    retransmits: int = Field(description="Retransmitted segments.")
    parity: int | None = Field(default=None, description="Datagrams only: parity packets sent.")
    marked: int | None = Field(
        default=None, description="Datagrams only: packets that links marked with ECN."
    )
    went_back: int | None = Field(
        default=None,
        description="RDMA only: how often NICs in `from` started to resend (go-back-N), to any peer.",
    )
    out_of_sequence: int | None = Field(
        default=None, description="RDMA only: how often NICs in `to` reported a sequence gap."
    )


class Control(ResultModel):
    """Delays of the control plane, in seconds."""

    carrier_down_s: float = Field(description="From a link cut until the switches at both ends notice.")
    carrier_up_s: float = Field(description="From a link repair until the switches at both ends notice.")
    reaction_s: float = Field(description="From a port report until the controller acts on it.")
    rule_s: float = Field(description="Time to install one flow rule.")
    silence_s: float | None = Field(
        default=None,
        description="From a link failure with carrier until missing hellos reveal it; null: never detected.",
    )


class ExposedCommunication(ResultModel):
    """Exposed communication of one kind and tier: the time that ranks waited for it, in mean seconds per rank."""

    kind: str
    tier: Literal["rank", "building", "wan"] = Field(
        description="Within a rank, inside a building, or between buildings."
    )
    seconds: float


class TimeSplit(ResultModel):
    """A step's time, split into computation, exposed communication and idle time: mean over ranks, in seconds."""

    compute_s: float
    bubble_s: float = Field(description="Idle time: the data that the rank needed had not been sent yet.")
    exposed: tuple[ExposedCommunication, ...]


class PredictedTimeSplit(TimeSplit, Prediction):
    """The model's prediction of a step's time split."""


class CriticalPathShare(ResultModel):
    """The share of one kind of operation in the critical path."""

    kind: str
    seconds: float
    links: int = Field(description="How many links of the path are of this kind.")


class Training(ResultModel):
    """A step's time by activity, and the number of bytes sent.

    The fields from `schedule` to `peak_activation_bytes` are set only for steps with `parallelism`.
    """

    schedule: str | None = None
    microbatches: int | None = None
    stages: int | None = None
    training_steps: int = Field(default=1, description="Consecutive training steps in one measured step.")
    mesh: dict[str, int] = Field(default={}, description="Size of each dimension that has several ranks.")
    layers_per_stage: tuple[int, ...] = Field(
        default=(), description="Model blocks of each stage, if the stages differ."
    )
    microbatches_per_replica: tuple[int, ...] = Field(default=(), description="Set if the replicas differ.")
    not_emulated: tuple[str, ...] = Field(
        default=(), description="Dimensions within a rank: their traffic never reaches the network."
    )
    peak_activation_bytes: tuple[int, ...] = Field(default=(), description="By rank.")
    predicted: PredictedTimeSplit | None = Field(
        description="null where the model does not cover the scenario."
    )
    measured: TimeSplit = Field(description="The step of median duration.")
    critical_path: tuple[CriticalPathShare, ...] = Field(description="Largest share first.")
    bytes: dict[str, Bytes] = Field(
        description="Per step, inside buildings (`building`) and between them (`wan`)."
    )
    median_step: int = Field(description="Index of the step of median duration.")


class Events(ResultModel):
    """The scenario's events during a variant."""

    planned: int
    came: int = Field(description="How many took place.")
    late_max_s: float = Field(description="Largest delay of an event behind its planned time.")


class Variant(ResultModel):
    """One of the variants that a run compares, with its figures and verdict."""

    name: str
    algorithm: str
    policy: str
    ranks: int
    step_time_s: StepTimes
    predicted: Prediction | None = Field(description="null where the model does not cover the scenario.")
    compute_s: float = Field(description="Computing time of the busiest rank in a step, median.")
    exposed_comm_s: float = Field(description="Step time minus computing time, median.")
    work: Work | None = Field(default=None, description="null in runs made by earlier versions.")
    rates: Rates | None = Field(default=None, description="Set for steps that train a model.")
    wan_bytes: Bytes
    wan_links: tuple[LinkUse, ...]
    plane_balance: tuple[PlaneBalance, ...]
    connections: tuple[Connections, ...]
    limited_by: str = Field(description="What limited the step time, in one sentence.")
    verdict: Verdict
    control: Control
    training: Training | None = Field(
        default=None, description="null in plain data-parallel runs made by earlier versions."
    )
    events: Events | None = None
    replication: Replication | None = None
    serving: Serving | None = Field(default=None, description="Set if requests were served.")
    decoding: Decoding | None = Field(default=None, description="Set if tokens were decoded.")
    pauses: tuple[PausedLink, ...] = Field(default=(), description="Set if switches send PFC pause frames.")
    port_drops: tuple[DroppingPort, ...] = Field(
        default=(), description="Ports inside buildings that dropped packets, worst first."
    )

    @property
    def done(self) -> Work:
        """The work that was done; for runs of earlier versions, the number of measured steps."""
        if self.work is not None:
            return self.work
        times_s = self.step_time_s.samples
        return Work(steps=len(times_s), elapsed_s=sum(times_s), workload="")

    @property
    def step_shares(self) -> tuple[float, ...]:
        """The share of a whole step's work that each measured step committed, by trial.

        It is 1 in runs without elastic replicas.
        """
        shares = self.replication.committed_shares if self.replication else {}
        return tuple(shares.get(trial, 1.0) for trial in range(self.step_time_s.n))


class ScaleRecord(ResultModel):
    """The factors between the modelled network and the emulated one."""

    size_scale: float = Field(description="Sizes and rates are divided by it.")
    time_dilation: float = Field(description="Times are multiplied by it.")


class Result(StoredResult):
    """A run's figures, from its `summary.json`."""

    schema_version: Literal[1] = Field(alias="schema")
    scenario: str
    run_dir: str
    clock: Literal["real", "virtual"]
    scale: ScaleRecord
    dimensionless: tuple[DimensionlessNumber, ...]
    status: Status = Field(description="The worst verdict of all variants.")
    variants: tuple[Variant, ...]

    @classmethod
    def open(cls, folder: str | Path) -> Result:
        """Read the result of a run directory.

        Raises:
            BadResult: If the directory has no result, or one of an incompatible version.
        """
        found = read_model(Path(folder) / SUMMARY, cls, ", expected a folder that `testbed run` made")
        return found.at(Path(folder))

    def variant(self, name: str) -> Variant:
        """Return the variant of that name, or raise KeyError."""
        return {entry.name: entry for entry in self.variants}[name]

    def steps(self) -> pandas.DataFrame:
        """Return a row per measured step: variant, algorithm, policy, verdict, trial, step_time_s, committed.

        Example:
            >>> result.steps().groupby("variant").step_time_s.describe()
        """
        rows = [
            (one.name, one.algorithm, one.policy, one.verdict.status, trial, step_time_s, share)
            for one in self.variants
            for trial, (step_time_s, share) in enumerate(
                zip(one.step_time_s.samples, one.step_shares, strict=True)
            )
        ]
        return make_frame(rows, STEPS)

    def operations(self) -> pandas.DataFrame:
        """Return a row per operation of a rank, with times in seconds; docs/reference/results.md lists the columns.

        Raises:
            BadResult: If the run directory is incomplete.

        Example:
            >>> result.operations().to_parquet("operations.parquet")
        """
        return make_frame(read_samples(self.folder / SAMPLES, self.conversion), OPERATIONS)

    def links(self) -> pandas.DataFrame:
        """Return a row per reading of one direction of a WAN link; docs/reference/results.md lists the columns.

        Raises:
            BadResult: If the run directory is incomplete.

        Example:
            >>> result.links().pivot_table(index="time_s", columns=["source", "target", "plane"], values="queue_bytes")
        """
        return make_frame(link_rows(read_links(self.folder / LINKS, self.conversion)), READINGS)

    def figure(self, name: str = "step_times", variant: str | None = None) -> Figure:
        """Return one figure of the run's report as SVG, which notebooks display.

        Args:
            name: "step_times", "time_split" or "utilisation" (all variants), "utilisation_over_time" (whole run),
                "network" or "timeline" (one variant), or your own panel, FILE.py:NAME.
            variant: The variant that "network" and "timeline" show; None for the first one.

        Raises:
            BadInput: If there is no such figure, or the run lacks the records for it.
            KeyError: If there is no such variant.
            BadResult: If the run directory is incomplete.

        Example:
            >>> result.figure("network", "ring").save("ring.svg")
        """
        found = registry("panels").find(name)
        if variant is not None and not found.of_variant:
            raise BadInput(where="variant", got=repr(variant), expected=f"none: {name} is of all variants")
        chosen = self.variants[0] if variant is None else self.variant(variant)
        return Figure(name, found.document(name, self.folder, chosen.document()))

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def folder(self) -> Path:
        """The run directory: where it was opened, or else where the run was made."""
        return self._folder or Path(self.run_dir)

    @property
    def conversion(self) -> Scale:
        """The conversion between real and emulated figures."""
        return Scale(**self.scale.model_dump())
