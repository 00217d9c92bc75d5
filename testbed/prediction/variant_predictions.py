"""What the model says of all that a scenario compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.net.paths.buffer_checks import ShortQueue, short_queues
from testbed.notebooks import html_table
from testbed.prediction.calibration import Calibration
from testbed.prediction.dry_run import check_plan_ends
from testbed.prediction.request_metrics import served_step, serving_figures
from testbed.prediction.step_prediction import MOST_PACKETS, prepared
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.workload.job.job import job_of


@dataclass(frozen=True)
class Prediction:
    """What the model says of one variant. step_time_s: seconds; wan_bytes: payload between buildings in a step; real.

    unmodelled: what the scenario asks for and the model leaves out, by name. short_queues: that may overflow, of which
    the model knows nothing. serving: of requests, as results' `Serving` has it. by_packets: whether it went packet by
    packet.
    """

    step_time_s: float
    wan_bytes: int
    unmodelled: tuple[str, ...] = ()
    short_queues: tuple[ShortQueue, ...] = ()
    serving: Mapping[str, Any] | None = None
    by_packets: bool = False

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return Predictions({"": self})._repr_html_()


class Predictions(dict[str, Prediction]):
    """By name of the variant, or of the algorithm where there are none."""

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        first_s = next((one.step_time_s for one in self.values()), 0.0)
        rows = [
            [name, time_text(one.step_time_s), f"{first_s / one.step_time_s:.2f}x", size_text(one.wan_bytes)]
            for name, one in self.items()
        ]
        left_out = dict.fromkeys(what for one in self.values() for what in one.unmodelled)
        after = [f"Not in these figures, as the model does not know it: {what}." for what in left_out]
        return html_table(
            ("variant", "predicted step time", "against the first", "between buildings"), rows, (), after
        )


def predict_all(
    scenario: Scenario, calibration: Calibration, scale: Scale, packets: int = MOST_PACKETS
) -> Predictions:
    """By name of the variant, or of the algorithm where there are none. scale: of the network that it is about.

    packets: that are played one by one at the most.
    ConfigError for a scenario that does not fit; ControllerError, Stuck.
    """
    engine = calibration.link_engine
    common = None if scenario.variants is not None else job_of(scenario, scale, engine)
    found = Predictions()
    in_a_row = {"trials": scenario.steps_in_a_network}
    for name in scenario.variant_names:
        job = common or job_of(scenario.variant(name).model_copy(update=in_a_row), scale, engine)
        check_plan_ends(job.scenario, job.workload, job.scale)
        algorithm = scenario.named_algorithms[name] if common else job.scenario.algorithms[0]
        step = prepared(job, algorithm, calibration, packets=packets)
        timeline, by_packets = step.play(), bool(step.network.packets)
        step_s = scale.real_s(timeline.step_time_s)
        served = None
        if job.workload.serving:
            own = served_step(job.as_carried(timeline.carried), algorithm, timeline.spans)
            served = serving_figures(job.workload.serving.spec, [own])
        wan_bytes = round(scale.real_bytes(job.wan_bytes(algorithm)))
        short = () if by_packets else tuple(short_queues(job.scenario.topology.resolve()))
        found[name] = Prediction(step_s, wan_bytes, job.unmodelled, short, served, by_packets)
    return found
