"""What a network card with verbs says: completed work requests, addresses of queue pairs, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RECEIVED, WRITTEN, SENT = "received", "written", "sent"


class Completion(NamedTuple):
    """A completed work request.

    Attributes:
        kind: RECEIVED: a message into slot `number`. WRITTEN: a peer's write. SENT: this rank's write `number`, or a
            small message if that is 0.
        queue_pair: The queue pair's number.
        number: See `kind`.
        immediate: The peer's immediate.
        size_bytes: Bytes received.
        failed: The reason of a failure, as text; "" otherwise.
    """

    kind: str
    queue_pair: int
    number: int
    immediate: int = 0
    size_bytes: int = 0
    failed: str = ""


@dataclass(frozen=True)
class Address:
    """The address of a queue pair. `gid` is its card's port's, as text."""

    gid: str
    number: int


class CardCounts(NamedTuple):
    """Counts of all queue pairs since the card was made.

    Attributes:
        received: Packets received.
        went_back: Times that it started to resend, after a NAK or a timeout.
        out_of_sequence: NAKs that it sent.
        duplicates: Packets that it had already.
    """

    received: int
    went_back: int
    out_of_sequence: int
    duplicates: int
