"""The JSON document for the launcher and its ranks: steps, plan, injected faults, replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.comm.replicas import Policy, RingSettings
from testbed.workload.dispatch import Dispatching
from testbed.workload.job.endpoints import BackgroundHost, JobEndpoints
from testbed.workload.plan import JobPlan


@dataclass(frozen=True)
class Step:
    """One step to run: its algorithm and trial (negative for warm-up, which is not recorded)."""

    variant: str
    algorithm: str
    trial: int


@dataclass(frozen=True)
class JobSpec:
    """A whole job: the ranks, their plan for every step, and the steps in order."""

    wiring: JobEndpoints
    dtype: str
    plan: JobPlan
    steps: tuple[Step, ...]
    output: str
    # number of elements of the collective that is run alone before the steps; 0 for none
    calibration_numel: int = 0
    # number of calibration runs
    calibrations: int = 0
    # whether calibration is repeated after the steps
    calibrate_again: bool = False
    # interval at which a rank's connections are sampled
    telemetry_interval_s: float = 0.1
    # other jobs' hosts, busy from the first step on
    background_traffic: tuple[BackgroundHost, ...] = ()
    # number of ranks per process, each in its own thread
    ranks_per_process: int = 1
    # whether the job continues when a rank's process is killed, and readmits it when it returns
    survives_kills: bool = False
    # replicas that may be lost and restarted; None if all ranks stay
    replication: Replication | None = None
    # inputs of the dispatcher that assigns requests on arrival; `plan` has the operations known before
    dispatching: Dispatching | None = None
    # injected faults
    rank_faults: tuple[RankFault, ...] = ()


def plan_steps(variants: Mapping[str, str], trials: int, warmup: int, in_turns: bool) -> tuple[Step, ...]:
    """Return the steps of all variants, warm-up first; `variants` maps each variant to its algorithm.

    With `in_turns`, variants are interleaved in an order that reverses with each trial, so that slow drifts affect all
    equally. Otherwise variants run one after another.
    """
    if not in_turns:
        return tuple(Step(*one, trial) for one in variants.items() for trial in range(-warmup, trials))
    steps: list[Step] = []
    for trial in range(-warmup, trials):
        order = list(variants.items())
        steps += [Step(*one, trial) for one in (order if trial % 2 == 0 else order[::-1])]
    return tuple(steps)


SLOW, SKIP, MISMATCH, SLOW_IO = "rank_slow", "rank_skip", "rank_mismatch", "io_slow"
SIZE, TYPE, ORDER = "size", "type", "order"


@dataclass(frozen=True)
class RankFault:
    """An injected fault of one rank. Times are emulated seconds after the start of a measured step.

    Attributes:
        rank: The rank.
        action: As in events.
        step: Measured step in which it happens.
        after_s: Start of the fault.
        for_s: Duration; None until the end of the variant.
        factor: Factor of compute time.
        delay_s: Delay of each operation's control part.
        what: As in events.
        place: Index in the rank's plan of the collective that it skips or mismatches.
        other: Index of the collective that it swaps with.
    """

    rank: int
    action: str
    step: int
    after_s: float
    for_s: float | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    what: str = ""
    place: int = 0
    other: int = 0


@dataclass(frozen=True)
class Replication:
    """Replicas that may be lost and restarted.

    Attributes:
        replicas: Ranks of each replica, in the order of their inner coordinates.
        policy: Policy of the coordinator, apart from its steps.
        ring: Settings of the ring between replicas.
        heartbeat_s: Interval of heartbeats.
        state_elements: By inner coordinate, number of 4-byte elements that a restarted rank fetches over the network.
        dscp: DSCP of that traffic.
        silent: Ranks that may be lost with their machines, so that their connections do not close.
        checkpoint_elements: Like `state_elements`, for the data that is sent to the next replica with each checkpoint;
            empty for none.
    """

    replicas: tuple[tuple[int, ...], ...]
    policy: Policy
    ring: RingSettings
    heartbeat_s: float
    state_elements: tuple[int, ...]
    dscp: int
    silent: tuple[int, ...] = ()
    checkpoint_elements: tuple[int, ...] = ()

    @property
    def tolerant(self) -> bool:
        """Whether replicas continue without a lost one."""
        return self.policy.mode == "ftar"
