"""All that the model of a step goes by, put together; and what steps came to that had the same of it.

Much of what a search varies makes no difference to a step: of 629 configurations of `dense-70b-region` that a search
tried, some 140 were different to the model. What was played once is not played again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from testbed.comm.transport import Software
from testbed.gc_control import gc_disabled
from testbed.net.paths.network import Network
from testbed.prediction.channels import NO_WARMUP, Warmup
from testbed.prediction.collective_flow import Isolated
from testbed.prediction.compiled import NetworkSimulator
from testbed.prediction.simulation import simulate, simulate_steps
from testbed.prediction.timeline import Timeline, peak_activation_bytes
from testbed.workload.dispatch import Dispatching
from testbed.workload.plan import GroupCollective, JobPlan
from testbed.workload.plan_columns import plan_key

REMEMBERED = 20_000  # steps, of each a few figures
NETWORKS = 16  # for which it is remembered what collectives take alone


@dataclass(frozen=True)
class PreparedStep:
    """A step on a network, ready to be carried out. draws: seeds of those of `simulate`."""

    plan: JobPlan
    network: Network
    itemsize: int
    software: Software
    folded: bool
    draws: tuple[str, ...] = ()
    dispatching: Dispatching | None = None
    before: Warmup = NO_WARMUP

    def play(self, alone: dict[Hashable, Isolated] | None = None) -> Timeline:
        """Carry it out. alone: as `simulate` has it. Deadlock, NoServerError."""
        with gc_disabled():
            return self._play(alone)

    def _play(self, alone: dict[Hashable, Isolated] | None) -> Timeline:
        return simulate(
            self.plan,
            self.network,
            self.itemsize,
            self.software,
            folded=self.folded,
            draws=[Random(seed) for seed in self.draws],
            dispatching=self.dispatching,
            before=self.before,
            alone=alone,
        )

    @property
    def draws_all(self) -> bool:
        """Whether all that losses do to a step is drawn, none of it taken by its mean."""
        return bool(self.draws) and not (self.folded and self.plan.has(GroupCollective))

    def in_a_row(self, networks: int, steps: int) -> list[float]:
        """What so many steps take one after the other, on each of so many networks, a draw each, at the most; seconds.

        Deadlock.
        """
        with gc_disabled():
            return [
                took_s
                for seed in self.draws[:networks]
                for took_s in simulate_steps(
                    self.plan,
                    self.network,
                    self.itemsize,
                    self.software,
                    Random(seed),
                    self.before,
                    steps,
                )
            ]

    @property
    def likeness(self) -> Hashable | None:
        """Equal for steps that are the same; None of one that is not known beforehand.

        Operations are in it by hashes, one for each rank's: they would take a thousand times the room.
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
    """alive: the most bytes of activations that each rank kept at once."""

    step_time_s: float
    alive: tuple[float, ...]


_known: dict[Hashable, StepOutcome] = {}
_networks: OrderedDict[Hashable, NetworkSimulator] = OrderedDict()


def play_cached(prepared: PreparedStep) -> StepOutcome:
    """What a step comes to, played if none like it was. Deadlock, NoServerError."""
    like = prepared.likeness
    if (known := _known.get(like)) is not None:  # looked up once: it takes a while to hash
        return known
    found = _played(prepared)
    if like is not None:
        _known[like] = found
        while len(_known) > REMEMBERED:
            del _known[next(iter(_known))]
    return found


def _played(prepared: PreparedStep) -> StepOutcome:
    plan, network, software = prepared.plan, prepared.network, prepared.software
    on_network = network.likeness, prepared.itemsize, software, len(prepared.draws), len(plan.ranks)
    if (on := _networks.get(on_network)) is None:
        on = _networks[on_network] = NetworkSimulator(network, len(plan.ranks), prepared.itemsize, software)
        while len(_networks) > NETWORKS:
            _networks.popitem(last=False)
    outcome = None if prepared.dispatching else on.play(plan, folded=prepared.folded)
    if outcome is not None:
        return StepOutcome(outcome.step_time_s, outcome.alive)
    timeline = prepared.play(on.alone)
    return StepOutcome(
        timeline.step_time_s, tuple(peak_activation_bytes(timeline.plan or plan, timeline.spans))
    )
