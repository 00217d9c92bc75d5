"""Replicas of a training job's model: fault tolerance, and infrequent synchronization (local SGD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from testbed.spec.base_model import Finding, StrictModel, ValueFormat
from testbed.spec.units import format_duration
from testbed.spec.value_types import MAX_DSCP, Count, CountOrZero, Duration, Size, choice, integer

FTAR, RESTART = "ftar", "restart"
PEER, STORAGE = "peer", "storage"
MISSED_HEARTBEATS = 3


class FaultsSpec(StrictModel):
    """Replicas that fail and rejoin. A replica is all ranks of one data_parallel_replicate coordinate."""

    mode: Annotated[str, choice("a mode", (FTAR, RESTART))] = FTAR
    """ftar: the other replicas continue, with fault-tolerant all-reduces over the live ones. restart: all ranks stop
    and restart from the last checkpoint.
    """
    catch_up: Annotated[str, choice("a mode", ("blocking", "non_blocking"))] = "non_blocking"
    """ftar: whether members wait at a step boundary until a rejoining replica has the state (blocking), or continue
    meanwhile.
    """
    checkpoint_from: Annotated[str | None, choice("a location", (PEER, STORAGE))] = None
    """Where a rejoining replica gets its state. peer: from a live replica, with 16 bytes per parameter over the
    network. storage: from outside this network, in no time. Default: peer with ftar; storage with restart, where
    `restart` includes the time.
    """
    detect_s: Duration = 1.0
    """Silence after which a rank is considered lost."""
    heartbeat_s: Duration = 0.1
    """Interval of a rank's heartbeats."""
    restart_s: Duration = 600.0
    """Time from a failure until all ranks restart; with ftar it applies if no replica is left."""
    checkpoint_every: Count = 100
    """Steps between checkpoints; the first is taken before the first step."""
    checkpoint_to: Annotated[str, choice("a location", (PEER, STORAGE))] = STORAGE
    """Where checkpoints are written. storage: outside this network, in no time. peer: each rank sends 16 bytes per
    parameter to its counterpart in the next replica, for example in another building, in the background while steps
    continue.
    """
    chunk_bytes: Size = 8_000_000
    """Maximum size of an ftar message."""
    in_flight: Count = 4
    """Maximum number of unacknowledged ftar messages to a neighbour."""
    catch_up_dscp: Annotated[int, integer(0, MAX_DSCP)] = 8
    """DSCP of the state sent to a rejoining replica, and of checkpoints."""

    def checks(self) -> Iterator[Finding]:
        """Check that heartbeats are frequent enough, and that a live peer can provide the state."""
        least_s = round(MISSED_HEARTBEATS * self.heartbeat_s, 9)
        if self.detect_s < least_s:
            expected = f"at least {format_duration(least_s)}, {MISSED_HEARTBEATS} times `heartbeat`"
            yield Finding(("detect",), format_duration(self.detect_s), expected)
        if self.mode == RESTART and self.checkpoint_from == PEER:
            yield Finding(("checkpoint_from",), PEER, f"{STORAGE}, as all ranks stop with mode {RESTART}")

    @property
    def from_peer(self) -> bool:
        """Whether a rejoining replica gets its state over the network."""
        return (self.checkpoint_from or (PEER if self.mode == FTAR else STORAGE)) == PEER


BITS = (32, 16, 8, 4)
REDUCED_BITS = 16  # smallest type that can be summed within an all-reduce


def _parse_bits(value: object) -> int:
    if type(value) is not int or value not in BITS:
        raise ValueError(f"one of: {', '.join(map(str, BITS))}")
    return value


_BITS = ValueFormat(_parse_bits, {"enum": list(BITS)})


class LocalSgdSpec(StrictModel):
    """Bytes and steps of local SGD, DiLoCo (arXiv:2311.08105) and Streaming DiLoCo (arXiv:2501.18512).

    Replicas train independently. Their weight changes are averaged from time to time, for an outer optimizer on every
    rank. The outer optimizer takes no time, and is the same on all ranks.
    """

    every: Count
    """Training steps between two exchanges of the same parameter."""
    parts: Count = 1
    """Number of equal parts of the parameters, exchanged in turn at even intervals: a divisor of `every`."""
    overlap: CountOrZero = 0
    """Training steps that overlap with the exchange of a part, at most `every` / `parts`; 0: the next step waits for
    it.
    """
    bits: Annotated[int, _BITS] = 32
    """Bits per exchanged number. Numbers of 32 and 16 bits are all-reduced. Those of 8 and 4 bits cannot be summed in
    transit: each replica gathers those of all others.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that parts are exchanged at even intervals, each before its next turn."""
        if self.every % self.parts:
            yield Finding(("parts",), str(self.parts), f"a divisor of every ({self.every})")
        elif self.overlap > self.period:
            expected = f"0 to {self.period}: every over parts, from one part to the next"
            yield Finding(("overlap",), str(self.overlap), expected)

    @property
    def period(self) -> int:
        """Training steps between the exchanges of two successive parts."""
        return self.every // self.parts
