"""What `summary.json` says of replicas that came and went."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


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
