"""The dimensionless numbers of a run: what its scale keeps, and what it changes."""

from __future__ import annotations

from testbed.measure.fidelity.similarity import Number, Traffic, dimensionless
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.workload.job.job import Workload


def numbers_of(
    scenario: Scenario, topology: Topology, workload: Workload, scale: Scale, overhead_s: float
) -> list[Number]:
    """topology, workload: emulated ones. overhead_s: of software, emulated, for a message."""
    cost = scenario.transport.software_cost
    traffic = Traffic(
        message_bytes=scale.real_bytes(workload.message_bytes),
        gradient_bytes=scale.real_bytes(workload.rank_bytes),
        compute_s=scale.real_s(workload.compute_s),
        overhead_s=cost.per_message_s + cost.handover_s,
        emulated_overhead_s=overhead_s,
    )
    return dimensionless(scenario.topology.resolve(), topology, scale, traffic)
