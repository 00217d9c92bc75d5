"""Simulation of a step: choose one of several simulations of its plan, after warm-up and over draws of losses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random
from statistics import mean

from testbed.comm.transport import Software
from testbed.gc_control import clear_references
from testbed.net.paths.network import LossDelay, Network
from testbed.prediction.channels import NO_WARMUP, Warmup
from testbed.prediction.collective_flow import (
    Isolated,
)
from testbed.prediction.plan_simulation import MAX_WARMUP_STEPS, PlanSimulation
from testbed.prediction.protocols import MEAN
from testbed.prediction.timeline import Timeline
from testbed.workload.dispatch import Dispatching
from testbed.workload.plan import JobPlan, Message


def simulate(
    plan: JobPlan,
    network: Network,
    itemsize: int,
    software: Software | None = None,
    *,
    folded: bool = False,
    draws: Sequence[Random] = (),
    dispatching: Dispatching | None = None,
    before: Warmup = NO_WARMUP,
    isolated: dict[Hashable, Isolated] | None = None,
) -> Timeline:
    """Simulate one step of the plan.

    Args:
        plan: What every rank does.
        network: Paths, capacities and loss behaviour between ranks.
        itemsize: Bytes per element.
        software: The message protocol and its costs; None for no cost.
        folded: Play each collective as one flow over everything its messages cross. With nothing else on the network
            it takes exactly as long as message by message.
        draws: Random sources for losses, one per simulated step. The step closest to their mean is returned. Without
            any, lost messages are late by the mean delay. Folded collectives over TCP windows, or over a transport
            that recovers losses itself, take their mean over as many draws; other folded messages are late by the mean.
        dispatching: How requests that arrive while the plan (its `start`) runs are assigned to servers.
        before: What happened on the same connections before the returned step.
        isolated: Cache of isolated collective times, extended in place. It holds for one combination of network,
            itemsize, software and number of draws.

    Raises:
        Deadlock: The plan never completes.
        NoServerError: No server can take a request.
    """
    simulation = PlanSimulation(
        plan, network, itemsize, software or Software(), folded, dispatching=dispatching
    )
    simulation.isolated_draws = len(draws) if network.recovers_losses or network.simulates_window else 0
    simulation.isolated = {} if isolated is None else isolated
    try:
        return _choose_step(simulation, draws, before)
    finally:
        clear_references(simulation.simulations)


def _choose_step(simulation: PlanSimulation, draws: Sequence[Random], before: Warmup) -> Timeline:
    if simulation.network.packets and not draws:
        return simulation.run_settled(MEAN, before)
    # losses in folded collectives are drawn per collective, not per step
    if not draws or (simulation.folder is not None and not simulation.plan.has(Message)):
        return _settled(simulation, min(before.steps, MAX_WARMUP_STEPS))
    drawn = [simulation.run_settled(LossDelay(draw), before) for draw in draws]
    mean_s = mean(timeline.step_time_s for timeline in drawn)
    return min(drawn, key=lambda timeline: abs(timeline.step_time_s - mean_s))


def _settled(step: PlanSimulation, warmup: int) -> Timeline:
    """Run up to `warmup + 1` steps on the same connections and return the median of the last three."""
    steps = [step.run()]
    while len(steps) <= warmup and step.state.matters:
        step = step.restart(MEAN)
        steps.append(step.run())
    last = sorted(steps[1:][-3:] or steps, key=lambda timeline: timeline.step_time_s)
    return last[(len(last) - 1) // 2]
