"""Predictions of the step model, at the scale of a run."""

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
    """Predictions by variant, or by algorithm if there are no variants; their calibration and scale."""

    variants: Predictions
    calibration: Calibration
    scale: Scale


def predict(scenario: Scenario, clock: str, packets: int = MAX_PACKETS) -> Predicted:
    """Predict a scenario's step times; nothing is built or sent.

    With the real clock, an auto scale is taken as 1.

    Args:
        scenario: the scenario.
        clock: clock whose calibration is used, "virtual" or "real".
        packets: maximum number of packets to simulate individually.

    Raises:
        ConfigError, ControllerError, Deadlock: the scenario is invalid, or its step does not end.
    """
    calibration = find_calibration(clock)
    if clock == VIRTUAL:
        rank_bytes = 0.0
        # only an auto scale depends on them, and plans are expensive
        if scenario.scale.size_scale == "auto":
            rank_bytes = max(workload.rank_bytes for workload in workloads_of(scenario, Scale()).values())
        scale = choose_virtual_scale(scenario, rank_bytes)
    else:
        size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
        scale = Scale(*(1.0 if isinstance(one, str) else one for one in (size, dilation)))
    return Predicted(predict_variants(scenario, calibration, scale, packets), calibration, scale)
