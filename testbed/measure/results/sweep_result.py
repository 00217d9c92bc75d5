"""What `sweep.json` holds, typed. Times are real seconds, sizes real bytes, whatever the scale."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from testbed.measure.fidelity.verdict import Status, worst
from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.committed_work import Work
from testbed.measure.results.notebook_views import frame
from testbed.measure.results.records import read_model
from testbed.measure.results.run_directory import write_json
from testbed.spec.sweep_axes import Axis

if TYPE_CHECKING:
    import pandas

SWEEP = "sweep.json"
Clock = Literal["model", "virtual", "real"]

# What the columns of the table hold, behind one for each axis; times in seconds.
COLUMNS = {
    "variant": "by its name; of a scenario without variants the algorithm",
    "step_time_s": "measured, the median; where nothing was, by the model",
    "low_s": "lower end of the median's interval; empty where nothing was measured",
    "high_s": "its upper end",
    "confidence": "of that interval: that of order statistics, 0.95 or more from six trials on",
    "trials": "that were measured; 0: by the model",
    "clock": "model, virtual, real",
    "verdict": "trusted, caution, untrusted; empty where nothing was measured",
    "predicted_s": "by the model",
    "work_per_s": "work done over the time that it took, stalls included; where nothing was measured, by the model",
    "work_unit": "of what: tokens, where they are counted, else steps",
    "wan_bytes": "payload between buildings in a step, by the plan",
    "limited_by": "what limited the step that was measured",
    "misfit": "why there is no such point: what the scenario would be refused for",
    "run": "the folder of the run, within the sweep's",
}


class SweepAxis(ResultModel):
    """An axis. numbers: where its values are, in `unit`; None where they are words."""

    path: str
    label: str
    texts: tuple[str, ...]
    numbers: tuple[float, ...] | None
    unit: str
    log: bool

    @classmethod
    def of(cls, axis: Axis) -> SweepAxis:
        """As it was asked for."""
        return cls(
            path=axis.path,
            label=axis.label,
            texts=axis.texts,
            numbers=axis.numbers,
            unit=axis.unit,
            log=axis.log,
        )


class Measured(ResultModel):
    """A variant's step as a run measured it: median and its interval, seconds."""

    median_s: float
    low_s: float
    high_s: float
    confidence: float
    trials: int
    status: Status
    limited_by: str
    work: Work | None = Field(default=None, description="What its steps got done, and in what time.")


class SweepFigure(ResultModel):
    """A variant at a point. predicted_s: None where it was not asked."""

    variant: str
    predicted_s: float
    wan_bytes: int
    unmodelled: tuple[str, ...] = Field(default=(), description="What the model leaves out of it.")
    work: Work | None = Field(default=None, description="A whole step, in the time that the model says.")
    measured: Measured | None = None

    @property
    def predicted_work(self) -> Work:
        """A whole step by the model; sweeps of earlier versions do not say what it works on."""
        return self.work or Work(steps=1, elapsed_s=self.predicted_s, workload="")

    @property
    def done(self) -> Work:
        """As measured, else by the model."""
        if self.measured is None:
            return self.predicted_work
        return self.measured.work or Work(steps=1, elapsed_s=self.measured.median_s, workload="")

    @property
    def step_time_s(self) -> float:
        """As measured, else by the model."""
        return self.measured.median_s if self.measured else self.predicted_s

    @property
    def untrusted(self) -> bool:
        """Whether it was measured and is not to be used."""
        return self.measured is not None and self.measured.status == "untrusted"


class SweepPoint(ResultModel):
    """A scenario with one value of each axis."""

    at: tuple[int, ...] = Field(description="Which value of each axis, from 0.")
    figures: tuple[SweepFigure, ...] = ()
    misfit: str | None = Field(default=None, description="Why there is no such point.")
    run: str | None = Field(default=None, description="The folder of the run that measured it.")


class Sweep(ResultModel):
    """A sweep, as its `sweep.json` has it. clock: by which points were measured; model: none was."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    scenario: str
    axes: tuple[SweepAxis, ...]
    points: tuple[SweepPoint, ...]
    clock: Clock
    made: dict[str, str] = Field(description="With which versions, by which calibration, when.")
    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def open(cls, folder: Path | str) -> Sweep:
        """Of a sweep's folder. BadResult."""
        return read_model(Path(folder) / SWEEP, cls).at(Path(folder))

    def at(self, folder: Path) -> Sweep:
        """The same, with the folder where its files are."""
        self._folder = folder.resolve()
        return self

    @property
    def folder(self) -> Path:
        """Where its files are."""
        assert self._folder is not None
        return self._folder

    def write(self) -> None:
        """Into its folder."""
        write_json(self.folder / SWEEP, self.document())

    def document(self) -> dict[str, Any]:
        """As `sweep.json` has it: with what was not set, too."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def variants(self) -> tuple[str, ...]:
        """All names, in the scenario's order."""
        return tuple(dict.fromkeys(figure.variant for point in self.points for figure in point.figures))

    @property
    def status(self) -> Status | None:
        """The worst of what was measured; None where nothing was."""
        found = [one.measured.status for point in self.points for one in point.figures if one.measured]
        return worst(found) if found else None

    def frame(self) -> pandas.DataFrame:
        """A row per point and variant: a column for each axis, by its path, then COLUMNS."""
        columns = {**{axis.path: "its value" for axis in self.axes}, **COLUMNS}
        return frame([row for point in self.points for row in self._rows(point)], columns)

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
