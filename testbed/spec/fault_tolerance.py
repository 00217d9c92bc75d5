"""What a training job does when a replica of its model is lost, as a scenario says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Strict
from testbed.spec.units import format_duration
from testbed.spec.value_types import MAX_DSCP, Count, Duration, Size, choice, whole

FTAR, RESTART = "ftar", "restart"
PEER, STORAGE = "peer", "storage"
SILENCES = 3  # so many signs of life may be missing


class FaultsSpec(Strict):
    """Replicas that come and go. A replica is all ranks of one data_parallel_replicate coordinate."""

    mode: Annotated[str, choice("a mode", (FTAR, RESTART))] = Field(
        default=FTAR,
        description="ftar: the other replicas go on, with fault-tolerant all-reduces over those that live. restart: "
        "everybody ends, and all begin again from the last checkpoint.",
    )
    catch_up: Annotated[str, choice("a way", ("blocking", "non_blocking"))] = Field(
        default="non_blocking",
        description="Of ftar, whether members wait at a step's boundary until a returned replica has the state, or do "
        "steps meanwhile.",
    )
    checkpoint_from: Annotated[str | None, choice("a place", (PEER, STORAGE))] = Field(
        default=None,
        description="Where a returned replica has its state from: peer: 16 bytes per parameter over the network, from "
        "a replica that lives; storage: beside this network, in no time of its own. By default peer with ftar; "
        "storage with restart, where `restart` has the time for it.",
    )
    detect_s: Duration = Field(
        default=1.0, alias="detect", description="Silence after which a rank counts as lost."
    )
    heartbeat_s: Duration = Field(
        default=0.1, alias="heartbeat", description="From one of a rank's signs of life to the next."
    )
    restart_s: Duration = Field(
        default=600.0,
        alias="restart",
        description="From a failure until all begin again; with ftar where no replica is left.",
    )
    checkpoint_every: Count = Field(
        default=100,
        description="Steps from one checkpoint to the next, of which the first is before the first step.",
    )
    checkpoint_to: Annotated[str, choice("a place", (PEER, STORAGE))] = Field(
        default=STORAGE,
        description="Where each checkpoint is written: storage: beside this network, in no time of its own; peer: 16 "
        "bytes per parameter of each rank to the rank at the same place in the next replica, as in another building, "
        "in the background while steps go on.",
    )
    chunk_bytes: Size = Field(
        default=8_000_000, alias="chunk", description="Of what one message of ftar carries, at most."
    )
    in_flight: Count = Field(
        default=4, description="Messages of ftar to a neighbour that are not acknowledged, at most."
    )
    catch_up_dscp: Annotated[int, whole(0, MAX_DSCP)] = Field(
        default=8, description="DSCP of the state on its way to a returned replica, and of checkpoints."
    )

    def checks(self) -> Iterator[Finding]:
        """Signs of life come often enough; what all processes have lost, no peer has."""
        least_s = round(SILENCES * self.heartbeat_s, 9)
        if self.detect_s < least_s:
            expected = f"at least {format_duration(least_s)}, {SILENCES} times `heartbeat`"
            yield Finding(("detect",), format_duration(self.detect_s), expected)
        if self.mode == RESTART and self.checkpoint_from == PEER:
            yield Finding(("checkpoint_from",), PEER, f"{STORAGE}, as all ranks end with mode {RESTART}")

    @property
    def from_peer(self) -> bool:
        """Whether state goes over the network."""
        return (self.checkpoint_from or (PEER if self.mode == FTAR else STORAGE)) == PEER
