"""Messages between ranks and the coordinator; each is one packet of JSON.

An operation is identified by its group (numbered per rank in order of creation) and its number in the step, from 0.
It is the same on all ranks with one inner coordinate, which is a rank's position within its replica.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from testbed.errors import TestbedError

Operation = tuple[int, int]
Operations = frozenset[Operation]
MOST_BYTES = 60_000  # limit of a packet


class MessageError(TestbedError):
    """A malformed packet, or one from the wrong side."""


# ---- from a rank


@dataclass(frozen=True)
class Hello:
    """A rank has started. incarnation: how often the rank has returned."""

    incarnation: int


@dataclass(frozen=True)
class Alive:
    """A heartbeat."""


@dataclass(frozen=True)
class Ready:
    """The rank is ready to start this step."""

    step: int


@dataclass(frozen=True)
class Done:
    """All operations of the step that are not settled have finished, tentatively, in this epoch."""

    step: int
    epoch: int


@dataclass(frozen=True)
class Report:
    """Answer to Stop: the operations of the step that have finished here. None will finish before the next view."""

    step: int
    epoch: int
    operations: Operations


@dataclass(frozen=True)
class CaughtUp:
    """The rank has received the state of this catch-up attempt."""

    attempt: int


# ---- from the coordinator


@dataclass(frozen=True)
class View:
    """The members from now on. If the step is later than before, all earlier steps are committed.

    settled: operations of this step that keep their sum; all others are repeated by all members from their saved
    inputs, in this epoch.
    """

    epoch: int
    members: tuple[int, ...]
    step: int
    settled: Operations = frozenset()


@dataclass(frozen=True)
class Start:
    """All members are ready: the step starts at this time of CLOCK_MONOTONIC."""

    step: int
    start_s: float


@dataclass(frozen=True)
class Stop:
    """A member of this epoch is lost: end every attempt, and report."""

    epoch: int


@dataclass(frozen=True)
class RanksLost:
    """These incarnations of ranks are lost: send nothing to them, but accept connections from later incarnations."""

    lost: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CatchUp:
    """Each rank of the source replica sends its state as of this step to the target's rank with the same coordinate."""

    attempt: int
    source: int
    target: int
    step: int


@dataclass(frozen=True)
class Leave:
    """This rank is dismissed: it exits and may return as its next incarnation. over: all steps are done."""

    reason: str
    over: bool = False


FromRank = Hello | Alive | Ready | Done | Report | CaughtUp
ToRank = View | Start | Stop | RanksLost | CatchUp | Leave
Message = FromRank | ToRank
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Hello, Alive, Ready, Done, Report, CaughtUp, View, Start, Stop, RanksLost, CatchUp, Leave)
}


@dataclass(frozen=True)
class OutgoingMessage:
    """A message and its destination rank."""

    rank: int
    message: ToRank


@dataclass
class Outbox:
    """Messages to send, in order, and records to write."""

    messages: list[OutgoingMessage] = field(default_factory=list)
    records: list[dict[str, object]] = field(default_factory=list)


def pack_message(message: Message) -> bytes:
    """Return the message as one packet. Raises MessageError if it is too large."""
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
    """Return the message in a packet from `pack_message`. Raises MessageError."""
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
