"""Typed models of `sweep.json`, in real seconds and bytes at any scale."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from testbed.measure.fidelity.verdict import Status, worst
from testbed.measure.result_model import ResultModel, StoredResult
from testbed.measure.results.committed_work import Work
from testbed.measure.results.notebook_views import make_frame
from testbed.measure.results.records import read_model
from testbed.measure.results.run_directory import write_json
from testbed.spec.sweep_axes import Axis

if TYPE_CHECKING:
    import pandas

SWEEP = "sweep.json"
Clock = Literal["model", "virtual", "real"]

# The columns of the table, after one column for each axis; times in seconds.
COLUMNS = {
    "variant": "name of the variant; of the algorithm if the scenario has no variants",
    "step_time_s": "measured median; the model's prediction if nothing was measured",
    "low_s": "lower end of the median's confidence interval; empty if nothing was measured",
    "high_s": "upper end of the interval",
    "confidence": "confidence of the interval, by order statistics: at least 0.95 from six trials on",
    "trials": "number of measured trials; 0 if only predicted",
    "clock": "model, virtual or real",
    "verdict": "trusted, caution or untrusted; empty if nothing was measured",
    "predicted_s": "the model's prediction",
    "work_per_s": "work per second, stalls included; the model's prediction if nothing was measured",
    "work_unit": "unit of the work: tokens if they are counted, else steps",
    "wan_bytes": "payload between buildings per step, according to the plan",
    "limited_by": "what limited the measured step",
    "misfit": "why there is no such point: the error that the scenario would be refused with",
    "run": "run directory, relative to the sweep's",
}


class SweepAxis(ResultModel):
    """An axis of a sweep: one scenario field and its values."""

    path: str
    label: str
    texts: tuple[str, ...] = Field(description="The values as text.")
    numbers: tuple[float, ...] | None = Field(description="The values in `unit`; null if they are words.")
    unit: str
    log: bool

    @classmethod
    def of(cls, axis: Axis) -> SweepAxis:
        """Return the record of a requested axis."""
        return cls.model_validate(axis, from_attributes=True)


class Measured(ResultModel):
    """A measured step time: the median and its confidence interval, in seconds."""

    median_s: float
    low_s: float
    high_s: float
    confidence: float
    trials: int
    status: Status
    limited_by: str
    work: Work | None = Field(default=None, description="The work done, and the time it took.")


class SweepFigure(ResultModel):
    """The figures of one variant at one point of a sweep."""

    variant: str
    predicted_s: float
    wan_bytes: int
    unmodelled: tuple[str, ...] = Field(default=(), description="What the model leaves out.")
    work: Work | None = Field(default=None, description="A whole step, in the predicted time.")
    measured: Measured | None = None

    @property
    def predicted_work(self) -> Work:
        """The predicted work of a whole step; sweeps of earlier versions do not record the workload."""
        return self.work or Work(steps=1, elapsed_s=self.predicted_s, workload="")

    @property
    def done(self) -> Work:
        """The measured work, or else the predicted work."""
        if self.measured is None:
            return self.predicted_work
        return self.measured.work or Work(steps=1, elapsed_s=self.measured.median_s, workload="")

    @property
    def step_time_s(self) -> float:
        """The measured step time, or else the predicted one."""
        return self.measured.median_s if self.measured else self.predicted_s

    @property
    def untrusted(self) -> bool:
        """Whether the measurement must not be used."""
        return self.measured is not None and self.measured.status == "untrusted"


class SweepPoint(ResultModel):
    """A point of a sweep: the scenario with one value of each axis."""

    at: tuple[int, ...] = Field(description="Index of the value on each axis, from 0.")
    figures: tuple[SweepFigure, ...] = ()
    misfit: str | None = Field(default=None, description="Why there is no such point.")
    run: str | None = Field(default=None, description="Directory of the run that measured it.")


class Sweep(StoredResult):
    """The results of a sweep, as stored in `sweep.json`."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    scenario: str
    axes: tuple[SweepAxis, ...]
    points: tuple[SweepPoint, ...]
    clock: Clock = Field(description="Clock of the measurements; `model` if nothing was measured.")
    made: dict[str, str] = Field(description="Versions, calibration and date.")

    @classmethod
    def open(cls, folder: Path | str) -> Sweep:
        """Read the sweep in a directory, or raise BadResult."""
        return read_model(Path(folder) / SWEEP, cls).at(Path(folder))

    @property
    def folder(self) -> Path:
        """The directory where the sweep's files are."""
        assert self._folder is not None
        return self._folder

    def write(self) -> None:
        """Write `sweep.json` into the sweep's directory."""
        write_json(self.folder / SWEEP, self.document())

    def document(self) -> dict[str, Any]:
        """Return the content of `sweep.json`, including fields that were never set."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of all variants, in scenario order."""
        return tuple(dict.fromkeys(figure.variant for point in self.points for figure in point.figures))

    @property
    def status(self) -> Status | None:
        """The worst verdict of all measurements; None if nothing was measured."""
        found = [one.measured.status for point in self.points for one in point.figures if one.measured]
        return worst(found) if found else None

    def frame(self) -> pandas.DataFrame:
        """Return a row per point and variant, with a column for each axis (by its path), then COLUMNS."""
        columns = {**{axis.path: "its value" for axis in self.axes}, **COLUMNS}
        return make_frame([row for point in self.points for row in self._rows(point)], columns)

    def _rows(self, point: SweepPoint) -> list[tuple[object, ...]]:
        at = tuple(axis.texts[index] for axis, index in zip(self.axes, point.at, strict=True))
        if point.misfit is not None:
            nothing = (None,) * (len(COLUMNS) - 2)
            return [(*at, *nothing, point.misfit, None)]
        return [(*at, *self._row(figure), None, point.run) for figure in point.figures]

    def _row(self, figure: SweepFigure) -> tuple[object, ...]:
        measured = figure.measured
        taken: tuple[object, ...] = (figure.predicted_s, None, None, None, 0, "model", None)
        limited_by = None
        if measured is not None:
            interval = measured.low_s, measured.high_s, measured.confidence
            taken = (measured.median_s, *interval, measured.trials, self.clock, measured.status)
            limited_by = measured.limited_by
        done = figure.done
        work = figure.predicted_s, done.per_second, done.unit
        return (figure.variant, *taken, *work, figure.wan_bytes, limited_by)
