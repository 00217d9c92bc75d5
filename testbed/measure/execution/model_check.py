"""What the model says of a variant's step, how far off it is known to be, and whether the steps keep to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.clock import clock_here
from testbed.measure.fidelity import Invariant
from testbed.measure.fidelity.step_invariants import StepTime, model_error
from testbed.measure.results.summary import StepResult, undisturbed
from testbed.prediction.calibration import Calibration
from testbed.prediction.stated_errors import stated_error
from testbed.prediction.step_prediction import prepared
from testbed.prediction.timeline import Timeline
from testbed.workload.job.job import Job


@dataclass(frozen=True)
class ModelCheck:
    """The model's timeline of a step, None where it says nothing of such a scenario; emulated.

    stated: the worst error that is stated of it on such scenarios, as a share; None where none is. singly: whether each
    step is to take as long, and not only their median.
    """

    timeline: Timeline | None
    stated: float | None
    singly: bool

    def invariant(self, steps: Sequence[StepResult], dropped: int) -> Invariant:
        """Hold a variant's steps against it. dropped: frames that queues dropped, which makes single steps chaos."""
        predicted_s = self.timeline.step_time_s if self.timeline else None
        times = [StepTime(step.trial, step.step_time_s) for step in undisturbed(steps)]
        return model_error(
            times, predicted_s, self.stated, clock_here() == "free", self.singly and not dropped
        )


def check_model(job: Job, algorithm: str, calibration: Calibration) -> ModelCheck:
    """Play a variant's step on the model. ControllerError, Stuck, BadCalibration."""
    if job.unmodelled:
        return ModelCheck(None, None, singly=False)
    step = prepared(job, algorithm, calibration)
    stated = stated_error(job.scenario, bool(step.network.packets))
    return ModelCheck(step.play(), stated, singly=not job.topology.lossy)
