"""How much of a long training run is effective, by what a failure costs and how often one comes. Pure; real seconds.

Effective is the share of time that steps would have taken had nobody been lost, each by the share of replicas in it.
One failure comes every MTBF of the whole job, by the wall clock, as FT-HSDP (arXiv:2602.00277) counts: 600 s of restart
at one failure in 18 minutes leave 1 - 600 / 1080, about 44 %.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER_MTBF_S, PAPER_RESTART_S = 18 * 60.0, 600.0
"""At 100,000 accelerators; arXiv:2602.00277."""
PAPER_RESTART_EFFECTIVE, PAPER_TOLERANT_EFFECTIVE = 0.44, 0.80
PAPER_TOLERANT_STALL_S = 180.0


@dataclass(frozen=True)
class FailureCost:
    """Of one failure. stall_s: time in which nobody does steps; redone_s: of steps that are done once more.

    absent_s: how long one of `replicas` is away, while all others go on. slowed_s: by how much their steps are longer
    meanwhile, all together.
    """

    stall_s: float
    redone_s: float = 0.0
    absent_s: float = 0.0
    replicas: int = 1
    slowed_s: float = 0.0

    @property
    def lost_s(self) -> float:
        """Of the whole job's time."""
        return self.stall_s + self.redone_s + self.slowed_s + self.absent_s / self.replicas

    def effective(self, mtbf_s: float) -> float:
        """Share of time, 0 to 1; failures that come quicker than they cost leave nothing."""
        return max(0.0, 1.0 - self.lost_s / mtbf_s)

    def budget_s(self, mtbf_s: float, effective: float) -> float:
        """What is left of a failure's time if so much is to be effective, less what it takes; below 0: too much."""
        return mtbf_s * (1.0 - effective) - self.lost_s


def restart_cost(restart_s: float, step_s: float, checkpoint_every: int) -> FailureCost:
    """All begin again: a failure comes anywhere in a step, and anywhere between two checkpoints."""
    return FailureCost(restart_s, step_s * checkpoint_every / 2)


def tolerant_cost(
    stall_s: float, absent_s: float, replicas: int, catch_up_s: float = 0.0, blocking: bool = False
) -> FailureCost:
    """Those that live go on: they stall once and, where they block, while the returned replica catches up."""
    return FailureCost(
        stall_s + (catch_up_s if blocking else 0.0),
        absent_s=max(0.0, absent_s - (catch_up_s if blocking else 0.0)),
        replicas=replicas,
    )
