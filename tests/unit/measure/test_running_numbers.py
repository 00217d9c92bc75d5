"""The dimensionless numbers of a run: software's cost counts alike in both networks."""

from __future__ import annotations

import pytest

from testbed.measure.fidelity.similarity import run_numbers
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of


def test_a_scale_that_keeps_softwares_share_says_so() -> None:
    """Handing over counts in the modelled network as it does in the emulated one."""
    scale = Scale(size_scale=4)
    scenario = load_scenario("scenarios/decode.yaml").variant("baseline")
    job, cost = job_of(scenario, scale), scenario.transport.software_cost
    assert cost.handover_s > 0
    overhead_s = scale.emulated_s(cost.per_message_s + cost.handover_s)
    numbers = run_numbers(scenario, job.topology, job.workload, scale, overhead_s)
    (share,) = (number for number in numbers if number.name == "software share of a message")
    assert share.preserved
    assert share.emulated == pytest.approx(share.real)
    assert share.harm is None
