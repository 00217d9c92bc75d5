"""The data that a NIC reports through verbs: completed work requests, addresses of queue pairs, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RECEIVED, WRITTEN, SENT = "received", "written", "sent"


class Completion(NamedTuple):
    """A completed work request.

    Attributes:
        kind: RECEIVED: a message arrived in slot `number`. WRITTEN: a peer's write arrived. SENT: this rank's write
            `number` is complete, or a small message if `number` is 0.
        queue_pair: The queue pair's number.
        number: See `kind`.
        immediate: The peer's immediate.
        size_bytes: Bytes received.
        failed: The reason for a failure, as text; "" otherwise.
    """

    kind: str
    queue_pair: int
    number: int
    immediate: int = 0
    size_bytes: int = 0
    failed: str = ""


@dataclass(frozen=True)
class Address:
    """The address of a queue pair. `gid` is the GID of the NIC's port, as text."""

    gid: str
    number: int


class CardCounts(NamedTuple):
    """Counts of all queue pairs since the NIC was created.

    Attributes:
        received: Packets received.
        went_back: Go-backs, after a NAK or a timeout.
        out_of_sequence: NAKs sent.
        duplicates: Duplicate packets received.
    """

    received: int
    went_back: int
    out_of_sequence: int
    duplicates: int
