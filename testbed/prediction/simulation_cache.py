"""Prepared steps, and a cache of their outcomes.

Much of what a search varies does not change a step: of 629 configurations of `dense-70b-region` that a search tried,
some 140 differed for the model. Equal steps are simulated once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from testbed.caches import IdentityCache
from testbed.comm.transport import Software
from testbed.gc_control import clear_references, gc_disabled
from testbed.net.paths.network import LossDelay, Network
from testbed.prediction.channels import NO_WARMUP, Warmup
from testbed.prediction.collective_flow import Isolated
from testbed.prediction.network_simulator import NetworkSimulator
from testbed.prediction.plan_simulation import PlanSimulation
from testbed.prediction.simulation import simulate
from testbed.prediction.timeline import Timeline, peak_activation_bytes
from testbed.workload.dispatch import Dispatching
from testbed.workload.plan import GroupCollective, JobPlan, Pattern, send_key
from testbed.workload.plan_columns import pattern_columns

REMEMBERED = 20_000  # cached steps, a few numbers each
NETWORKS = 16  # networks with cached isolated collective times


@dataclass(frozen=True)
class PreparedStep:
    """Everything that one simulated step depends on. draws: seeds for the `draws` of `simulate`."""

    plan: JobPlan
    network: Network
    itemsize: int
    software: Software
    folded: bool
    draws: tuple[str, ...] = ()
    dispatching: Dispatching | None = None
    before: Warmup = NO_WARMUP

    def play(self, isolated: dict[Hashable, Isolated] | None = None) -> Timeline:
        """Simulate the step. isolated: the cache of `simulate`. Raises Deadlock, NoServerError."""
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
        """Whether all losses are drawn, so that none enter by their mean only."""
        return bool(self.draws) and not (self.folded and self.plan.has(GroupCollective))

    def step_times(self, networks: int, steps: int) -> list[float]:
        """Return the durations of consecutive steps in seconds: `steps` on each of up to `networks` networks.

        Steps are simulated message by message. Each network has its own draw. Raises Deadlock.
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
        """A key that is equal for equal steps; None for a step that depends on dispatching.

        Operations enter as one hash per rank: in full they would take a thousand times the memory.
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
    """The cached part of a step's result. alive: peak bytes of activations of each rank."""

    step_time_s: float
    alive: tuple[float, ...]


_known: dict[Hashable, StepOutcome] = {}
_networks: IdentityCache[NetworkSimulator] = IdentityCache(NETWORKS)


def play_cached(prepared: PreparedStep) -> StepOutcome:
    """Return a step's outcome, simulated unless an equal step was. Raises Deadlock, NoServerError."""
    likeness_key = prepared.likeness
    if (known := _known.get(likeness_key)) is not None:  # one look-up only: hashing is slow
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
    """Return a key that is equal for plans with the same outcome, whatever their operations are called."""
    return tuple(map(_pattern_key, plan.symmetric.patterns)), plan.symmetric.relocations


def _pattern_key(pattern: Pattern) -> int:
    return pattern.cached("key", lambda: _make_pattern_key(pattern))


def _make_pattern_key(pattern: Pattern) -> int:
    columns, own = pattern_columns(pattern), pattern.column_source
    if columns is None:
        return hash(pattern.operations)
    done = own.cached("done", lambda: hash(tuple(column.tobytes() for column in columns)))
    return hash((done, *(send_key(one) for one, _ in pattern.exchanges)))
