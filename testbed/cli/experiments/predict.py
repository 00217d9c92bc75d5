"""What the model says of a scenario's steps, at the scale at which a run of it would be."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.measure.execution.network_setup import choose_virtual_scale
from testbed.prediction.calibration import VIRTUAL, Calibration, find_calibration
from testbed.prediction.dry_run import workloads_of
from testbed.prediction.step_prediction import MAX_PACKETS, Predictions, predict_variants
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario


@dataclass(frozen=True)
class Predicted:
    """By name of the variant, or of the algorithm where there are none; by which calibration, at which scale."""

    variants: Predictions
    calibration: Calibration
    scale: Scale


def predict(scenario: Scenario, clock: str, packets: int = MAX_PACKETS) -> Predicted:
    """Nothing is built or sent. clock: "virtual" or "real", whose calibration is taken.

    packets: that are played one by one at the most.

    By the real clock a scale that the scenario leaves to the machine is taken as 1.

    ConfigError, ControllerError, Deadlock.
    """
    calibration = find_calibration(clock)
    if clock == VIRTUAL:
        rank_bytes = 0.0
        # only then the scale goes by them, and plans are made for that
        if scenario.scale.size_scale == "auto":
            rank_bytes = max(workload.rank_bytes for workload in workloads_of(scenario, Scale()).values())
        scale = choose_virtual_scale(scenario, rank_bytes)
    else:
        size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
        scale = Scale(*(1.0 if isinstance(one, str) else one for one in (size, dilation)))
    return Predicted(predict_variants(scenario, calibration, scale, packets), calibration, scale)
