"""Replicas of a training job's model: what happens when one is lost, and how seldom they synchronize (local SGD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Form, StrictModel
from testbed.spec.units import format_duration
from testbed.spec.value_types import MAX_DSCP, Count, CountOrZero, Duration, Size, choice, whole

FTAR, RESTART = "ftar", "restart"
PEER, STORAGE = "peer", "storage"
MISSED_HEARTBEATS = 3  # so many signs of life may be missing


class FaultsSpec(StrictModel):
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
        least_s = round(MISSED_HEARTBEATS * self.heartbeat_s, 9)
        if self.detect_s < least_s:
            expected = f"at least {format_duration(least_s)}, {MISSED_HEARTBEATS} times `heartbeat`"
            yield Finding(("detect",), format_duration(self.detect_s), expected)
        if self.mode == RESTART and self.checkpoint_from == PEER:
            yield Finding(("checkpoint_from",), PEER, f"{STORAGE}, as all ranks end with mode {RESTART}")

    @property
    def from_peer(self) -> bool:
        """Whether state goes over the network."""
        return (self.checkpoint_from or (PEER if self.mode == FTAR else STORAGE)) == PEER


BITS = (32, 16, 8, 4)
REDUCED_BITS = 16  # and more: of types that can be added up on their way


def _parse_bits(value: object) -> int:
    if type(value) is not int or value not in BITS:
        raise ValueError(f"one of: {', '.join(map(str, BITS))}")
    return value


_BITS = Form(_parse_bits, {"enum": list(BITS)})


class LocalSgdSpec(StrictModel):
    """Local SGD, DiLoCo (arXiv:2311.08105), Streaming DiLoCo (arXiv:2501.18512): bytes and steps, whichever it is.

    Replicas train by themselves, and what their weights have changed is averaged now and then, for an outer optimizer
    on every rank. What that computes takes no time, and is the same on all.
    """

    every: Count = Field(description="Training steps from one exchange of a parameter to its next.")
    parts: Count = Field(
        default=1,
        description="The parameters are cut in so many equal parts, which take turns at even distances: a divisor of "
        "`every`.",
    )
    overlap: CountOrZero = Field(
        default=0,
        description="Training steps that go on while a part is exchanged, at most `every` / `parts`; 0: the next one "
        "waits for it.",
    )
    bits: Annotated[int, _BITS] = Field(
        default=32,
        description="Of a number that is exchanged. 32 and 16 are all-reduced; 8 and 4 cannot be added up on their "
        "way: each replica gathers all others'.",
    )

    def checks(self) -> Iterator[Finding]:
        """Parts come at even distances, each before its next turn."""
        if self.every % self.parts:
            yield Finding(("parts",), str(self.parts), f"a divisor of every ({self.every})")
        elif self.overlap > self.period:
            expected = f"0 to {self.period}: every over parts, from one part to the next"
            yield Finding(("overlap",), str(self.overlap), expected)

    @property
    def period(self) -> int:
        """Training steps from one part's exchange to the next one's."""
        return self.every // self.parts
