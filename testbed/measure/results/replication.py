"""Replicas that came and went: what `summary.json` says of them, and how it is computed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel
from testbed.spec.scale import Scale


class ReplicaLoss(ResultModel):
    """A replica that was lost. Seconds; time_s from the first measured step's start, all others from the loss on."""

    time_s: float
    replica: int
    rank: int = Field(description="Of whose loss it was.")
    why: str
    detected_s: float | None = Field(
        description="From the event until the coordinator knew; None without one."
    )
    stall_s: float = Field(
        description="The longest time without a commit until all were back, beyond a period."
    )
    steps_lost: int = Field(description="Committed ones, since the checkpoint that all went back to.")
    returned_s: float | None
    catch_up_s: float | None = Field(description="How long the state was on its way.")
    catch_up_bytes: int
    full_s: float | None = Field(description="Until all replicas were members again.")


class Commit(ResultModel):
    """A step that all members had: when, from the first measured step's start, and how many replicas they were."""

    time_s: float
    trial: int
    replicas: int
    share: float | None = Field(
        default=None,
        description="Of a whole step's sequences, those of these replicas; None in runs of earlier versions: alike.",
    )


class Replication(ResultModel):
    """Replicas that came and went in a variant, seconds.

    effective: of the time from the first measured step's start to the last commit, the share that steps would have
    taken with nobody lost, each by the share of its sequences that the replicas in it had.
    """

    replicas: int
    mode: Literal["ftar", "restart"]
    catch_up: Literal["blocking", "non_blocking"] | None
    period_s: float = Field(description="From commit to commit with nobody lost, median.")
    elapsed_s: float
    effective: float
    steps_lost: int
    catch_up_bytes: int
    losses: tuple[ReplicaLoss, ...]
    commits: tuple[Commit, ...]

    @property
    def standing_shares(self) -> dict[int, float]:
        """The share of a whole step that each trial's last commit has, by trial.

        Earlier commits of a trial were lost with a checkpoint; warm-up steps are left out.
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
    """Of one variant. records: the coordinator's; steps: ranks' records of whole steps; events: as they came.

    microbatches: of each replica in a step, where they are not alike.
    All times are emulated ones of one clock. A period is from one commit to the next, with nobody lost and nobody
    returning: what a step takes, and its beginning.
    """
    commits = [record for record in records if record["event"] == "committed"]
    period_s = _period_s(commits, replicas)
    begin_s = begun_s(records, warmup)
    end_s = commits[-1]["time_s"]
    standing = {record["step"]: record for record in commits}
    measured = [record for number, record in sorted(standing.items()) if number >= warmup]
    each = microbatches or (1,) * replicas

    def share(record: Record) -> float:
        return float(sum(each[member] for member in record["members"]) / sum(each))

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


def begun_s(records: Sequence[Record], warmup: int) -> float:
    """When the first measured step began, for the first time."""
    return float(
        next(
            record["start_s"] for record in records if record["event"] == "start" and record["step"] == warmup
        )
    )


def _period_s(commits: Sequence[Record], replicas: int) -> float:
    """Of steps in a row that all took part in, in one epoch; of all, where there is nothing of that kind."""
    pairs = [(one, other) for one, other in pairwise(commits) if other["step"] == one["step"] + 1]
    calm = [
        other["time_s"] - one["time_s"]
        for one, other in pairs
        if one["epoch"] == other["epoch"] and len(other["members"]) == replicas
    ]
    every = [other["time_s"] - one["time_s"] for one, other in pairs]
    return float(statistics.median(calm or every or [0.0]))


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
    """One replica that was lost, until all are members again, or the end."""
    lost_s, number = lost["time_s"], lost["replica"]

    def first(event: str, **what: object) -> Record | None:
        return next(
            (
                record
                for record in records
                if record["event"] == event
                and record["time_s"] >= lost_s
                and all(record[key] == value for key, value in what.items())
            ),
            None,
        )

    def after_s(record: Record | None) -> float | None:
        return None if record is None else scale.real_s(record["time_s"] - lost_s)

    full = next(
        (
            record
            for record in records
            if record["event"] == "view" and record["time_s"] > lost_s and len(record["members"]) == replicas
        ),
        None,
    )
    until_s = full["time_s"] if full is not None else commits[-1]["time_s"]
    restart = next(
        (record for record in records if record["event"] == "restart" and record["time_s"] == lost_s), None
    )
    began, ended = first("catch up", replica=number), first("caught up", replica=number)
    catch_up_s = None
    if began is not None and ended is not None:
        catch_up_s = scale.real_s(ended["time_s"] - began["time_s"])
    killed = [
        event["time_s"]
        for event in events
        if event["begins"] and event["time_s"] is not None and event["time_s"] <= lost_s
    ]
    given = sum(step["given_bytes"] for step in steps if lost_s <= step["end_s"] <= until_s + period_s)
    return {
        "time_s": scale.real_s(lost_s - begin_s),
        "replica": number,
        "rank": lost["rank"],
        "why": lost["why"],
        "detected_s": scale.real_s(lost_s - max(killed)) if killed else None,
        "stall_s": scale.real_s(_stall_s(commits, lost_s, until_s, period_s)),
        "steps_lost": 0 if restart is None else restart["step"] - restart["checkpoint"],
        "returned_s": after_s(first("returned", replica=number)),
        "catch_up_s": catch_up_s,
        "catch_up_bytes": round(scale.real_bytes(given)),
        "full_s": after_s(full),
    }


def _stall_s(commits: Sequence[Record], lost_s: float, until_s: float, period_s: float) -> float:
    """By how much the longest time between two commits, from a loss until all were back, is more than a period."""
    longest_s = max(
        (
            other["time_s"] - one["time_s"]
            for one, other in pairwise(commits)
            if other["time_s"] >= lost_s and one["time_s"] <= until_s
        ),
        default=period_s,
    )
    return max(0.0, longest_s - period_s)
