"""What the launcher and its ranks are told, as one JSON document: steps, plan, injected faults, replicas."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.comm.replicas import Policy, RingSettings
from testbed.workload.dispatch import Dispatching
from testbed.workload.job.endpoints import BackgroundHost, JobEndpoints
from testbed.workload.plan import JobPlan


@dataclass(frozen=True)
class Step:
    """One step to run: which algorithm, and which trial of it (negative: warm-up, not recorded)."""

    variant: str
    algorithm: str
    trial: int


@dataclass(frozen=True)
class JobSpec:
    """A whole job: the ranks, what they do in every step (`plan`), and the steps in their order."""

    wiring: JobEndpoints
    dtype: str
    plan: JobPlan
    steps: tuple[Step, ...]
    output: str
    # elements of the collective that is done alone before the steps; 0 for none
    calibration_numel: int = 0
    # how many times
    calibrations: int = 0
    # whether it is done as often after them
    calibrate_again: bool = False
    # from one reading of a rank's connections to the next
    telemetry_interval_s: float = 0.1
    # other jobs' hosts, busy from the first step on
    background_traffic: tuple[BackgroundHost, ...] = ()
    # how many ranks one process carries, each in a thread of its own
    ranks_per_process: int = 1
    # whether the job goes on when a rank's process is killed, and takes it in again when it returns
    survives_kills: bool = False
    # replicas that come and go; None where all ranks stay
    replication: Replication | None = None
    # what decides who serves requests as they come; `plan` has what is known before
    dispatching: Dispatching | None = None
    # what ranks do wrong on purpose
    rank_faults: tuple[RankFault, ...] = ()

    def to_json(self) -> str:
        """One line of JSON."""
        document = dataclasses.asdict(dataclasses.replace(self, plan=JobPlan(), dispatching=None))
        document["plan"] = self.plan.to_document()
        if self.dispatching is not None:
            document["dispatching"] = self.dispatching.to_document()
        document["task"] = "steps"
        return json.dumps(document)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """The inverse of `to_json`."""
        document: dict[str, Any] = json.loads(text)
        del document["task"]
        document["plan"] = JobPlan.from_document(document["plan"])
        document["wiring"] = JobEndpoints.from_document(document["wiring"])
        document["background_traffic"] = tuple(
            map(BackgroundHost.from_document, document["background_traffic"])
        )
        document["rank_faults"] = tuple(map(RankFault.from_document, document["rank_faults"]))
        if document["replication"] is not None:
            document["replication"] = Replication.from_document(document["replication"])
        if document["dispatching"] is not None:
            document["dispatching"] = Dispatching.from_document(document["dispatching"])
        document["steps"] = tuple(Step(**item) for item in document["steps"])
        return cls(**document)


def plan_steps(variants: Mapping[str, str], trials: int, warmup: int, in_turns: bool) -> tuple[Step, ...]:
    """Steps of all variants, of which each has its algorithm, warm-up first.

    In turns they are interleaved, in an order that turns round each trial, so that slow drifts hit all alike; else one
    variant comes after the other.
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
    """One rank's: `action` and `what` as events have them. Emulated seconds after the start of a measured step.

    for_s: None to the variant's end. factor: of computing. delay_s: of each operation's control part. place: in the
    rank's plan, of the collective that it does not join, or joins otherwise; other: of the one that it changes places
    with.
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

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> RankFault:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(**document)


@dataclass(frozen=True)
class Replication:
    """replicas: ranks of each, in the order of their inner coordinates. policy: of the coordinator, but for its steps.

    state_elements: of 4 bytes, by inner coordinate, what a returned rank has to get over the network; dscp: of that.
    checkpoint_elements: as state_elements, of what goes to the next replica with each checkpoint; empty: nothing.
    silent: ranks that may be lost with their machines, so that no line of theirs is seen to close.
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
        """Whether replicas go on without one that is lost."""
        return self.policy.mode == "ftar"

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Replication:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(
            tuple(map(tuple, document["replicas"])),
            Policy(**document["policy"]),
            RingSettings(**document["ring"]),
            document["heartbeat_s"],
            tuple(document["state_elements"]),
            document["dscp"],
            tuple(document["silent"]),
            tuple(document["checkpoint_elements"]),
        )
