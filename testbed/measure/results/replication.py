"""Elastic replicas in `summary.json`: losses, commits and recovery times, and their computation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from testbed.measure.result_model import ResultModel
from testbed.spec.scale import Scale


class ReplicaLoss(ResultModel):
    """A lost replica. Times are in seconds since the loss unless stated otherwise."""

    time_s: float = Field(description="Time of the loss, from the start of the first measured step.")
    replica: int
    rank: int = Field(description="The rank that caused the loss.")
    why: str
    detected_s: float | None = Field(
        description="From the event until the coordinator detected the loss; null if no event caused it."
    )
    stall_s: float = Field(
        description="Longest time between commits until all replicas were back, minus one period."
    )
    steps_lost: int = Field(
        description="Committed steps since the checkpoint that all replicas restarted from."
    )
    returned_s: float | None = Field(description="Until the replica returned.")
    catch_up_s: float | None = Field(description="Duration of the state transfer.")
    catch_up_bytes: int = Field(description="Bytes of the state transfer.")
    full_s: float | None = Field(description="Until all replicas were members again.")


class Commit(ResultModel):
    """A step that all members committed."""

    time_s: float = Field(description="From the start of the first measured step.")
    trial: int
    replicas: int = Field(description="Number of member replicas.")
    share: float | None = Field(
        default=None,
        description="The members' share of a whole step's sequences; null in runs of earlier versions, where all "
        "replicas have the same share.",
    )


class Replication(ResultModel):
    """Elastic replicas of a variant. Times are in seconds."""

    replicas: int
    mode: Literal["ftar", "restart"]
    catch_up: Literal["blocking", "non_blocking"] | None
    period_s: float = Field(description="Median time between commits while no replica was missing.")
    elapsed_s: float = Field(description="From the start of the first measured step to the last commit.")
    effective: float = Field(
        description="Share of `elapsed_s` that the committed work would have taken without losses; each step counts "
        "by the share of its sequences that was trained."
    )
    steps_lost: int
    catch_up_bytes: int
    losses: tuple[ReplicaLoss, ...]
    commits: tuple[Commit, ...]

    @property
    def committed_shares(self) -> dict[int, float]:
        """The share of a whole step's work in each trial's last commit, by trial without warm-ups.

        Earlier commits of the same trial were undone by a restart from a checkpoint.
        """
        return {
            commit.trial: commit.replicas / self.replicas if commit.share is None else commit.share
            for commit in self.commits
            if commit.trial >= 0
        }


Record = Mapping[str, Any]


def replication_summary(
    records: Sequence[Record],
    steps: Sequence[Record],
    events: Sequence[Record],
    scale: Scale,
    *,
    replicas: int,
    mode: str,
    catch_up: str,
    warmup: int,
    microbatches: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the fields of `Replication` for one variant.

    All times in the arguments are emulated and on one clock. A period is the time from one commit to the next while no
    replica is lost or returns: a step plus its preparation.

    Args:
        records: The coordinator's records.
        steps: The ranks' records of whole steps.
        events: The scenario's events, as they took place.
        microbatches: Microbatches of each replica in a step; empty if all have the same number.
    """
    commits = [record for record in records if record["event"] == "committed"]
    period_s = _period_s(commits, replicas)
    begin_s = first_step_start_s(records, warmup)
    end_s = commits[-1]["time_s"]
    last_commits = {record["step"]: record for record in commits}
    measured = [record for number, record in sorted(last_commits.items()) if number >= warmup]
    weights = microbatches or (1,) * replicas

    def share(record: Record) -> float:
        return float(sum(weights[member] for member in record["members"]) / sum(weights))

    useful_s = sum(share(record) * period_s for record in measured)
    losses = [
        _loss(record, records, commits, steps, events, scale, period_s, replicas, begin_s)
        for record in records
        if record["event"] == "lost" and record["member"]
    ]
    return {
        "replicas": replicas,
        "mode": mode,
        "catch_up": catch_up if mode == "ftar" else None,
        "period_s": scale.real_s(period_s),
        "elapsed_s": scale.real_s(end_s - begin_s),
        "effective": useful_s / (end_s - begin_s),
        "steps_lost": sum(loss["steps_lost"] for loss in losses),
        "catch_up_bytes": sum(loss["catch_up_bytes"] for loss in losses),
        "losses": losses,
        "commits": [
            {
                "time_s": scale.real_s(record["time_s"] - begin_s),
                "trial": record["step"] - warmup,
                "replicas": len(record["members"]),
                "share": share(record),
            }
            for record in commits
            if record["time_s"] >= begin_s
        ],
    }


def first_step_start_s(records: Sequence[Record], warmup: int) -> float:
    """Return when the first measured step started for the first time."""
    return float(
        next(
            record["start_s"] for record in records if record["event"] == "start" and record["step"] == warmup
        )
    )


def _period_s(commits: Sequence[Record], replicas: int) -> float:
    """Return the median time between consecutive commits of all replicas in one epoch, or else between any two."""
    pairs = [(one, other) for one, other in pairwise(commits) if other["step"] == one["step"] + 1]
    undisturbed = [
        other["time_s"] - one["time_s"]
        for one, other in pairs
        if one["epoch"] == other["epoch"] and len(other["members"]) == replicas
    ]
    every = [other["time_s"] - one["time_s"] for one, other in pairs]
    return float(statistics.median(undisturbed or every or [0.0]))


def _loss(
    lost: Record,
    records: Sequence[Record],
    commits: Sequence[Record],
    steps: Sequence[Record],
    events: Sequence[Record],
    scale: Scale,
    period_s: float,
    replicas: int,
    begin_s: float,
) -> dict[str, Any]:
    """Return the fields of `ReplicaLoss` for one loss, until all replicas are members again or the run ends."""
    lost_s, number = lost["time_s"], lost["replica"]
    later = [record for record in records if record["time_s"] >= lost_s]

    def first(event: str) -> Record | None:
        own = (one for one in later if one["event"] == event and one["replica"] == number)
        return next(own, None)

    def after_s(record: Record | None, since_s: float = lost_s) -> float | None:
        return None if record is None else scale.real_s(record["time_s"] - since_s)

    views = [one for one in later if one["event"] == "view" and one["time_s"] > lost_s]
    full = next((view for view in views if len(view["members"]) == replicas), None)
    until_s = full["time_s"] if full is not None else commits[-1]["time_s"]
    restarts = (one for one in later if one["event"] == "restart" and one["time_s"] == lost_s)
    restart = next(restarts, None)
    began, ended = first("catch up"), first("caught up")
    killed = [
        event["time_s"]
        for event in events
        if event["begins"] and event["time_s"] is not None and event["time_s"] <= lost_s
    ]
    transferred = sum(step["given_bytes"] for step in steps if lost_s <= step["end_s"] <= until_s + period_s)
    return {
        "time_s": scale.real_s(lost_s - begin_s),
        "replica": number,
        "rank": lost["rank"],
        "why": lost["why"],
        "detected_s": scale.real_s(lost_s - max(killed)) if killed else None,
        "stall_s": scale.real_s(_stall_s(commits, lost_s, until_s, period_s)),
        "steps_lost": 0 if restart is None else restart["step"] - restart["checkpoint"],
        "returned_s": after_s(first("returned")),
        "catch_up_s": None if began is None else after_s(ended, began["time_s"]),
        "catch_up_bytes": round(scale.real_bytes(transferred)),
        "full_s": after_s(full),
    }


def _stall_s(commits: Sequence[Record], lost_s: float, until_s: float, period_s: float) -> float:
    """Return how much longer than a period the longest gap between commits is, from a loss until all are back."""
    longest_s = max(
        (
            other["time_s"] - one["time_s"]
            for one, other in pairwise(commits)
            if other["time_s"] >= lost_s and one["time_s"] <= until_s
        ),
        default=period_s,
    )
    return max(0.0, longest_s - period_s)
