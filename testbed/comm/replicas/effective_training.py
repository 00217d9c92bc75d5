"""Effective training time (ETT): the productive share of a long run, from the cost and frequency of failures.

Effective time is the time that the completed steps would have taken without failures, each weighted by the share of
replicas in it. One failure occurs per MTBF of the whole job in wall-clock time, as FT-HSDP (arXiv:2602.00277) counts.
For example, a restart of 600 s at one failure in 18 minutes leaves 1 - 600 / 1080, about 44 %. Pure functions in real
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER_MTBF_S, PAPER_RESTART_S = 18 * 60.0, 600.0
"""Figures for 100,000 accelerators; arXiv:2602.00277."""
PAPER_RESTART_EFFECTIVE, PAPER_TOLERANT_EFFECTIVE = 0.44, 0.80
PAPER_TOLERANT_STALL_S = 180.0


@dataclass(frozen=True)
class FailureCost:
    """The cost of one failure.

    stall_s: time in which no replica executes steps.
    redone_s: time of steps that are repeated.
    absent_s: how long one of `replicas` is absent while all others continue.
    slowed_s: total slowdown of the others' steps meanwhile.
    """

    stall_s: float
    redone_s: float = 0.0
    absent_s: float = 0.0
    replicas: int = 1
    slowed_s: float = 0.0

    @property
    def lost_s(self) -> float:
        """Lost time of the whole job, in seconds."""
        return self.stall_s + self.redone_s + self.slowed_s + self.absent_s / self.replicas

    def effective(self, mtbf_s: float) -> float:
        """Return the effective share of time, 0 to 1; it is 0 if failures come faster than the job recovers."""
        return max(0.0, 1.0 - self.lost_s / mtbf_s)

    def budget_s(self, mtbf_s: float, effective: float) -> float:
        """Return the lost time per failure that a target share allows, minus the cost; negative if it is missed."""
        return mtbf_s * (1.0 - effective) - self.lost_s


def restart_cost(restart_s: float, step_s: float, checkpoint_every: int) -> FailureCost:
    """Return the cost of a full restart, which on average repeats half of the steps between two checkpoints."""
    return FailureCost(restart_s, step_s * checkpoint_every / 2)


def tolerant_cost(
    stall_s: float, absent_s: float, replicas: int, catch_up_s: float = 0.0, blocking: bool = False
) -> FailureCost:
    """Return the cost if surviving replicas continue.

    They stall once and, with blocking catch-up, while the returned replica receives the state.
    """
    return FailureCost(
        stall_s + (catch_up_s if blocking else 0.0),
        absent_s=max(0.0, absent_s - (catch_up_s if blocking else 0.0)),
        replicas=replicas,
    )
