"""What `summary.json` holds, typed: written through these models, read back by them; `testbed schema result` is theirs.

Times are real seconds, sizes real bytes, rates real bits per second: what was scaled down is scaled up again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError

from testbed.errors import BadInput
from testbed.measure.fidelity.verdict import Status
from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.committed_work import Rates, Work
from testbed.measure.results.link_summary import DroppingPort, LinkUse, PausedLink, PlaneBalance
from testbed.measure.results.notebook_views import Figure
from testbed.measure.results.replication import Replication
from testbed.measure.results.run_directory import BadResult
from testbed.measure.results.serving_result import Decoding, Serving
from testbed.plugins import registry
from testbed.spec.scale import Scale

if TYPE_CHECKING:
    import pandas

SUMMARY = "summary.json"


class StepTimes(ResultModel):
    """Measured step times of a variant, seconds, in the order of its trials; p95 by nearest rank.

    Steps that some replicas missed are among them; `work` says how many.
    """

    median: float
    p95: float
    min: float
    max: float
    n: int
    samples: tuple[float, ...]


class Predicted(ResultModel):
    """What the model says of a step, seconds; error: by which part of the measured median it is off."""

    step_time_s: float
    error: float


class Bytes(ResultModel):
    """Payload of a step, bytes: by the plan, and as ranks sent it (median, of steps that all replicas took part in)."""

    expected: int
    observed: int


class RoundTrips(ResultModel):
    """Smoothed round trips as TCP has them, seconds, of all readings during steps."""

    min: float
    median: float
    max: float


class Connections(ResultModel):
    """Those from one building to another. rtt_s: None where none was read; retransmits: segments, over all steps.

    parity, marked: of datagrams, packets of parity, and packets that links have marked; None of TCP. went_back: of
    RDMA, how often cards of `from` began to send again, to whomever; out_of_sequence: how often cards of `to` told of
    a hole.
    """

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    connections: int
    rtt_s: RoundTrips | None = None
    retransmits: int
    parity: int | None = None
    marked: int | None = None
    went_back: int | None = None
    out_of_sequence: int | None = None


class InvariantRecord(ResultModel):
    """One thing that must hold for the figures to mean something. ok: None where it does not apply."""

    name: str
    bound: str
    measured: str
    ok: bool | None
    sentence: str


class VerdictRecord(ResultModel):
    """Whether to believe a variant's figures, and why."""

    status: Status
    invariants: tuple[InvariantRecord, ...]

    @property
    def failed(self) -> tuple[InvariantRecord, ...]:
        """Those that did not hold."""
        return tuple(entry for entry in self.invariants if entry.ok is False)


class Control(ResultModel):
    """How long switches and controller took to see and to act, seconds."""

    carrier_down_s: float
    carrier_up_s: float
    reaction_s: float
    rule_s: float
    silence_s: float | None = None


class Exposed(ResultModel):
    """Communication that ranks waited for, mean seconds: by kind, and within ranks, inside or between buildings."""

    kind: str
    tier: Literal["rank", "building", "wan"]
    seconds: float


class Split(ResultModel):
    """Where a step's time went, mean over ranks, seconds; bubble: waiting for what nobody had sent yet."""

    compute_s: float
    bubble_s: float
    exposed: tuple[Exposed, ...]


class PredictedSplit(Split, Predicted):
    """The same by the model."""


class CriticalKind(ResultModel):
    """Of the critical path: seconds of one kind, in so many links of it."""

    kind: str
    seconds: float
    links: int


class Training(ResultModel):
    """What a step's time went to, and who sent what. `measured` is the step of median duration.

    From `schedule` to `peak_activation_bytes` it is of steps with `parallelism` alone.
    """

    schedule: str | None = None
    microbatches: int | None = None
    stages: int | None = None
    training_steps: int = Field(default=1, description="In a row, that a step is.")
    mesh: dict[str, int] = Field(default={}, description="Ranks of each dimension that has several.")
    layers_per_stage: tuple[int, ...] = Field(
        default=(), description="Blocks of the model by stage, where stages have unlike ones."
    )
    microbatches_per_replica: tuple[int, ...] = Field(default=(), description="By replica, where unlike.")
    not_emulated: tuple[str, ...] = Field(
        default=(), description="Dimensions within a rank, whose traffic no network carries."
    )
    peak_activation_bytes: tuple[int, ...] = Field(default=(), description="By rank.")
    predicted: PredictedSplit | None = Field(
        description="None where the model says nothing of such a scenario."
    )
    measured: Split
    critical_path: tuple[CriticalKind, ...]
    bytes: dict[str, Bytes] = Field(description="Inside buildings and between them (wan), per step.")
    median_step: int


class Events(ResultModel):
    """Of a scenario's events in a variant: how many were planned and came, the latest by how many seconds."""

    planned: int
    came: int
    late_max_s: float


class Variant(ResultModel):
    """One of the things that a run compares."""

    name: str
    algorithm: str
    policy: str
    ranks: int
    step_time_s: StepTimes
    predicted: Predicted | None = Field(description="None where the model says nothing of such a scenario.")
    compute_s: float = Field(description="Computing of the busiest rank in a step, median.")
    exposed_comm_s: float = Field(description="The step's time less computing, median.")
    work: Work | None = Field(default=None, description="Not in runs that earlier versions made.")
    rates: Rates | None = Field(default=None, description="Of steps that train a model.")
    wan_bytes: Bytes
    wan_links: tuple[LinkUse, ...]
    plane_balance: tuple[PlaneBalance, ...]
    connections: tuple[Connections, ...]
    limited_by: str = Field(description="One sentence.")
    verdict: VerdictRecord
    control: Control
    training: Training | None = Field(
        default=None, description="Not in plain data-parallel runs that earlier versions made."
    )
    events: Events | None = None
    replication: Replication | None = None
    serving: Serving | None = Field(default=None, description="Where requests were served.")
    decoding: Decoding | None = Field(default=None, description="Where tokens were decoded.")
    pauses: tuple[PausedLink, ...] = Field(default=(), description="Of a network whose switches pause.")
    port_drops: tuple[DroppingPort, ...] = Field(
        default=(), description="Inside buildings, the worst first; of ports that dropped none nothing."
    )

    @property
    def done(self) -> Work:
        """What it got done; of earlier versions' runs as many whole steps as were measured."""
        if self.work is not None:
            return self.work
        times_s = self.step_time_s.samples
        return Work(steps=len(times_s), elapsed_s=sum(times_s), workload="")

    @property
    def step_shares(self) -> tuple[float, ...]:
        """What of a whole step's work each measured step committed, by trial; 1 where no replicas come and go."""
        standing = self.replication.standing_shares if self.replication else {}
        return tuple(standing.get(trial, 1.0) for trial in range(self.step_time_s.n))


class ScaleRecord(ResultModel):
    """By what rates and sizes were divided, and times multiplied."""

    size_scale: float
    time_dilation: float


class Number(ResultModel):
    """A dimensionless number of the modelled network and of the emulated one."""

    name: str
    real: float
    emulated: float
    preserved: bool
    meaning: str


class Result(ResultModel):
    """A run's figures, from its `summary.json`."""

    schema_version: Literal[1] = Field(alias="schema")
    scenario: str
    run_dir: str
    clock: Literal["real", "virtual"]
    scale: ScaleRecord
    dimensionless: tuple[Number, ...]
    status: Status = Field(description="The worst of the variants'.")
    variants: tuple[Variant, ...]
    _folder: Path | None = PrivateAttr(None)

    @classmethod
    def open(cls, folder: str | Path) -> Result:
        """Of a run's folder. BadResult."""
        file = Path(folder) / SUMMARY
        try:
            result = cls.of(json.loads(file.read_text()))
        except OSError as error:
            raise BadResult(f"{file}: {error.strerror}, expected a folder that `testbed run` made") from None
        except ValidationError as error:
            found = error.errors()[0]
            field = ".".join(map(str, found["loc"]))
            got = "nothing" if found["type"] == "missing" else repr(found["input"])
            expected = f"what this version of testbed writes ({found['msg']})"
            raise BadResult(f"{file}: {field}: got {got}, expected {expected}") from None
        except ValueError as error:
            raise BadResult(f"{file}: expected JSON ({error})") from None
        return result.at(Path(folder))

    @classmethod
    def of(cls, document: dict[str, Any]) -> Result:
        """From what `document` gives. pydantic's ValidationError."""
        return cls.model_validate(document)

    def variant(self, name: str) -> Variant:
        """By name. KeyError."""
        return {entry.name: entry for entry in self.variants}[name]

    def steps(self) -> pandas.DataFrame:
        """A row per measured step: variant, algorithm, policy, verdict, trial, step_time_s (seconds), committed.

        Example:
            >>> result.steps().groupby("variant").step_time_s.describe()
        """
        from testbed.measure.results.notebook_views import STEPS, frame  # noqa: PLC0415

        rows = [
            (one.name, one.algorithm, one.policy, one.verdict.status, trial, step_time_s, share)
            for one in self.variants
            for trial, (step_time_s, share) in enumerate(
                zip(one.step_time_s.samples, one.step_shares, strict=True)
            )
        ]
        return frame(rows, STEPS)

    def operations(self) -> pandas.DataFrame:
        """Return a row per operation of a rank, times in seconds; docs/reference/results.md has the columns. BadResult.

        Example:
            >>> result.operations().to_parquet("operations.parquet")
        """
        from testbed.measure.results.notebook_views import operations_frame  # noqa: PLC0415

        return operations_frame(self.folder, self.conversion)

    def links(self) -> pandas.DataFrame:
        """A row per reading of one direction of a WAN link; docs/reference/results.md has the columns. BadResult.

        Example:
            >>> result.links().pivot_table(index="time_s", columns=["source", "target", "plane"], values="queue_bytes")
        """
        from testbed.measure.results.notebook_views import links_frame  # noqa: PLC0415

        return links_frame(self.folder, self.conversion)

    def figure(self, name: str = "step_times", variant: str | None = None) -> Figure:
        """A drawing of the run's report, by itself; a notebook shows it.

        Args:
            name: "step_times", "time_split" or "utilisation", each of all variants; "utilisation_over_time", of the
                whole run; "network" or "timeline", of one variant. Or a panel of your own, FILE.py:NAME.
            variant: Of which, for "network" and "timeline"; None: of the first.

        Raises:
            BadInput: For a name that is none, or where the run has no such records.
            KeyError: For a variant that there is not.
            BadResult: Where the run's folder is not whole.

        Example:
            >>> result.figure("network", "ring").save("ring.svg")
        """
        found = registry("panels").find(name)
        if variant is not None and not found.of_variant:
            raise BadInput(where="variant", got=repr(variant), expected=f"none: {name} is of all variants")
        chosen = self.variants[0] if variant is None else self.variant(variant)
        return Figure(name, found.document(name, self.folder, chosen.document()))

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from testbed.measure.results.notebook_views import result_html  # noqa: PLC0415

        return result_html(self)

    def at(self, folder: Path) -> Result:
        """The same, with the folder where its files are now."""
        self._folder = folder.resolve()
        return self

    @property
    def folder(self) -> Path:
        """Where it was opened; else where the run was made."""
        return self._folder or Path(self.run_dir)

    @property
    def conversion(self) -> Scale:
        """From real figures to emulated ones and back."""
        return Scale(**self.scale.model_dump())
