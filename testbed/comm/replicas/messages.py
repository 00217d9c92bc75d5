"""What ranks and the coordinator tell each other: one message is one packet of JSON.

An operation is named by its group (of the rank's own ones, in the order in which they were made) and its number in the
step, from 0: the same on all ranks of one inner coordinate, which is what a rank is within its replica.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from testbed.errors import TestbedError

Operation = tuple[int, int]
Operations = frozenset[Operation]
MOST_BYTES = 60_000  # of a packet


class MessageError(TestbedError):
    """A packet that no rank and no coordinator sends."""


# ---- from a rank


@dataclass(frozen=True)
class Hello:
    """It is there. incarnation: how many times it has returned."""

    incarnation: int


@dataclass(frozen=True)
class Alive:
    """Nothing else to tell."""


@dataclass(frozen=True)
class Ready:
    """It stands at the beginning of this step."""

    step: int


@dataclass(frozen=True)
class Done:
    """All of its operations of the step are over, tentatively, those that are not settled in this epoch."""

    step: int
    epoch: int


@dataclass(frozen=True)
class Report:
    """Answer to Stop: which operations of the step are over here. From now on none is before the next view."""

    step: int
    epoch: int
    operations: Operations


@dataclass(frozen=True)
class CaughtUp:
    """It holds the state that this attempt was to bring."""

    attempt: int


# ---- from the coordinator


@dataclass(frozen=True)
class View:
    """Who the members are, from now on. A later step than before says that all before it is committed.

    settled: operations of this step that keep the sum that they have; all others are done by all members from their
    untouched inputs, in this epoch.
    """

    epoch: int
    members: tuple[int, ...]
    step: int
    settled: Operations = frozenset()


@dataclass(frozen=True)
class Start:
    """All members are ready: the step begins at this moment, CLOCK_MONOTONIC."""

    step: int
    start_s: float


@dataclass(frozen=True)
class Stop:
    """A member of this epoch is lost: end every attempt, and report."""

    epoch: int


@dataclass(frozen=True)
class Part:
    """These incarnations of ranks are lost: nothing more goes to them, and what comes from later ones is welcome."""

    lost: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CatchUp:
    """The state as of this step goes from each rank of one replica to that of another with the same coordinate."""

    attempt: int
    source: int
    target: int
    step: int


@dataclass(frozen=True)
class Leave:
    """This rank is no longer counted on: it ends, and may come back as its next incarnation. over: all steps are."""

    reason: str
    over: bool = False


FromRank = Hello | Alive | Ready | Done | Report | CaughtUp
ToRank = View | Start | Stop | Part | CatchUp | Leave
Message = FromRank | ToRank
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Hello, Alive, Ready, Done, Report, CaughtUp, View, Start, Stop, Part, CatchUp, Leave)
}


@dataclass(frozen=True)
class Order:
    """A message and the rank that it is for."""

    rank: int
    message: ToRank


@dataclass
class Outbox:
    """What is to be sent, in its order, and what is to be written down."""

    orders: list[Order] = field(default_factory=list)
    records: list[dict[str, object]] = field(default_factory=list)


def pack_message(message: Message) -> bytes:
    """As one packet."""
    fields = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in ((item.name, getattr(message, item.name)) for item in dataclasses.fields(message))
    }
    data = json.dumps([type(message).__name__, fields], separators=(",", ":")).encode()
    if len(data) > MOST_BYTES:
        raise MessageError(
            f"{type(message).__name__}: {len(data)} bytes, expected at most {MOST_BYTES}: fewer operations in a step"
        )
    return data


def unpack_message(data: bytes) -> Message:
    """The inverse of `pack_message`. MessageError."""
    try:
        name, fields = json.loads(data)
        for key in ("operations", "settled"):
            if key in fields:
                fields[key] = frozenset((int(group), int(number)) for group, number in fields[key])
        if "members" in fields:
            fields["members"] = tuple(fields["members"])
        if "lost" in fields:
            fields["lost"] = tuple((int(rank), int(incarnation)) for rank, incarnation in fields["lost"])
        return _KINDS[name](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise MessageError(
            f"packet: got {data[:80]!r}, expected one of {', '.join(_KINDS)}: {error}"
        ) from None
