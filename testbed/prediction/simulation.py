"""The simulation of a step: choice of the simulator, warm-up, random losses, and a cache of outcomes.

Many values that a search varies do not change a step: of 629 configurations of `dense-70b-region` that a search tried,
about 140 differed in the model. Equal steps are simulated only once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import NamedTuple

from testbed.caches import IdentityCache
from testbed.comm.transport import Software
from testbed.gc_control import clear_references, gc_disabled
from testbed.net.paths.network import LossDelay, Network
from testbed.prediction.channels import NO_WARMUP, Warmup
from testbed.prediction.collective_flow import Isolated
from testbed.prediction.network_simulator import NetworkSimulator
from testbed.prediction.plan_simulation import MAX_WARMUP_STEPS, PlanSimulation
from testbed.prediction.protocols import MEAN
from testbed.prediction.timeline import Timeline, peak_activation_bytes
from testbed.workload.dispatch import Dispatching
from testbed.workload.plan import GroupCollective, JobPlan, Message, Pattern, send_key
from testbed.workload.plan_columns import pattern_columns


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
        plan: Operations of every rank.
        network: Paths, capacities and loss behaviour between ranks.
        itemsize: Bytes per element.
        software: The message protocol and its costs; None for no cost.
        folded: Whether to simulate each collective as one flow over all parts that its messages cross. With nothing
            else on the network, the flow takes exactly as long as its messages.
        draws: Random sources for losses, one per simulated step. The step closest to their mean is returned. Without a
            source, lost messages are late by the mean delay. Folded collectives over TCP windows, or over a transport
            that recovers losses itself, take their mean over the same number of draws; other folded messages are late
            by the mean delay.
        dispatching: Rules that assign requests to servers as they arrive, while the plan (its `start`) runs.
        before: The warm-up on the same connections before the returned step.
        isolated: Cache of isolated collective times, extended in place. It is valid for one combination of network,
            itemsize, software and number of draws.

    Raises:
        Deadlock: If the plan never completes.
        NoServerError: If no server can take a request.
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


REMEMBERED = 20_000  # number of cached steps, with a few numbers each
NETWORKS = 16  # number of networks with cached isolated collective times


@dataclass(frozen=True)
class PreparedStep:
    """All inputs of one simulated step; `draws` has the seeds for the `draws` of `simulate`."""

    plan: JobPlan
    network: Network
    itemsize: int
    software: Software
    folded: bool
    draws: tuple[str, ...] = ()
    dispatching: Dispatching | None = None
    before: Warmup = NO_WARMUP

    def play(self, isolated: dict[Hashable, Isolated] | None = None) -> Timeline:
        """Simulate the step; `isolated` is the cache of `simulate`; raise Deadlock or NoServerError on failure."""
        with gc_disabled():
            return simulate(
                self.plan,
                self.network,
                self.itemsize,
                self.software,
                folded=self.folded,
                draws=[Random(seed) for seed in self.draws],
                dispatching=self.dispatching,
                before=self.before,
                isolated=isolated,
            )

    @property
    def draws_all(self) -> bool:
        """Whether all losses are drawn randomly, so that none enters only as a mean."""
        return bool(self.draws) and not (self.folded and self.plan.has(GroupCollective))

    def step_times(self, networks: int, steps: int) -> list[float]:
        """Return the durations in seconds of consecutive steps: `steps` on each of up to `networks` networks.

        Steps are simulated message by message. Each network has its own random draw. Deadlock is raised if a plan never
        completes.
        """
        found: list[float] = []
        with gc_disabled():
            for seed in self.draws[:networks]:
                simulation = PlanSimulation(
                    self.plan, self.network, self.itemsize, self.software, folded=False
                )
                try:
                    found += simulation.consecutive_times(LossDelay(Random(seed)), self.before, steps)
                finally:
                    clear_references(simulation.simulations)
        return found

    @property
    def likeness(self) -> Hashable | None:
        """A key that is equal for equal steps; None for a step that depends on dispatch decisions.

        Operations enter as one hash per rank, since in full they would take a thousand times the memory.
        """
        if self.dispatching is not None:
            return None
        plan = plan_key(self.plan), self.plan.groups, tuple(self.plan.dscps.items())
        rest = self.plan.holds_receivers, self.plan.buildings, self.plan.near, self.plan.tuning
        return (
            plan,
            rest,
            self.network.likeness,
            self.itemsize,
            self.software,
            self.folded,
            self.draws,
            self.before,
        )


class StepOutcome(NamedTuple):
    """The cached part of a step's result; `alive` has each rank's peak activation bytes."""

    step_time_s: float
    alive: tuple[float, ...]


_known: dict[Hashable, StepOutcome] = {}
_networks: IdentityCache[NetworkSimulator] = IdentityCache(NETWORKS)


def play_cached(prepared: PreparedStep) -> StepOutcome:
    """Return a step's outcome; simulate it unless an equal step is cached; raise Deadlock or NoServerError."""
    likeness_key = prepared.likeness
    if (known := _known.get(likeness_key)) is not None:  # a single look-up, since hashing is slow
        return known
    found = _play_uncached(prepared)
    if likeness_key is not None:
        _known[likeness_key] = found
        while len(_known) > REMEMBERED:
            del _known[next(iter(_known))]
    return found


def _play_uncached(prepared: PreparedStep) -> StepOutcome:
    plan, network, software = prepared.plan, prepared.network, prepared.software
    itemsize, ranks = prepared.itemsize, len(plan.ranks)
    simulator = _networks.of(
        (),
        lambda: NetworkSimulator(network, ranks, itemsize, software),
        (network.likeness, itemsize, software, len(prepared.draws), ranks),
    )
    outcome = None if prepared.dispatching else simulator.play(plan, folded=prepared.folded)
    if outcome is not None:
        return StepOutcome(outcome.step_time_s, outcome.alive)
    timeline = prepared.play(simulator.isolated)
    return StepOutcome(
        timeline.step_time_s, tuple(peak_activation_bytes(timeline.plan or plan, timeline.spans))
    )


def plan_key(plan: JobPlan) -> Hashable:
    """Return a key that is equal for plans with the same outcome, regardless of the names of operations."""
    return tuple(map(_pattern_key, plan.symmetric.patterns)), plan.symmetric.relocations


def _pattern_key(pattern: Pattern) -> int:
    return pattern.cached("key", lambda: _make_pattern_key(pattern))


def _make_pattern_key(pattern: Pattern) -> int:
    columns, own = pattern_columns(pattern), pattern.column_source
    if columns is None:
        return hash(pattern.operations)
    done = own.cached("done", lambda: hash(tuple(column.tobytes() for column in columns)))
    return hash((done, *(send_key(one) for one, _ in pattern.exchanges)))
