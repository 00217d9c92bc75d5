"""How a job's messages are handed over and what that costs their hosts, in plain figures: for ranks and for the model.

Seconds and bytes are emulated ones. What belongs to a message is spent by `CostedTransport`, what belongs to an
operation (a collective, one end of a message between two ranks) by whoever begins it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

PAGE_BYTES = 4096  # smaller arrays go by way of memory that is registered anyway


@dataclass(frozen=True)
class Registration:
    """What it takes to register an array with a network card: evenly drawn, and now and then much more.

    least_s, most_s: of most; rare_s: of a share `rare` of them.
    """

    least_s: float
    most_s: float
    rare_s: float
    rare: float

    def drawn_s(self, draw: random.Random) -> float:
        """Of one array."""
        return self.rare_s if draw.random() < self.rare else draw.uniform(self.least_s, self.most_s)


@dataclass(frozen=True)
class Slots:
    """Of a protocol that copies: through so many slots of so many bytes between two ranks.

    announced: none of a message's is free before its receiver waits for it, and has said so.
    """

    chunk_bytes: int = 256 * 1024
    count: int = 8
    announced: bool = False


@dataclass(frozen=True)
class Software:
    """Of one job. protocol: by name. slots: of one that copies through some.

    message_s, byte_s: of each message (of one that is cut, of each chunk) at each end, one after another. note_s: of a
    protocol's note; None: as a message. handover_s: more until it is handed over between device and host, while others
    go on. launch_s: before an operation begins; completion_s: after its last message. synchronisation_s: before one
    whose host must first read the device's counts. registration: of each array when first used; None: all are.
    computing_share: of a rank's speed of computing that an operation under way takes away.
    """

    protocol: str = "eager"
    slots: Slots = Slots()
    message_s: float = 0.0
    byte_s: float = 0.0
    note_s: float | None = None
    handover_s: float = 0.0
    launch_s: float = 0.0
    completion_s: float = 0.0
    synchronisation_s: float = 0.0
    registration: Registration | None = None
    computing_share: float = 0.0

    @property
    def of_note_s(self) -> float:
        """What a note costs each of its ends."""
        return self.message_s if self.note_s is None else self.note_s

    @property
    def of_messages(self) -> bool:
        """Whether messages cost anything."""
        return any((self.message_s, self.byte_s, self.of_note_s, self.handover_s))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Software:
        """The inverse of dataclasses.asdict, after a round trip through JSON."""
        found = dict(document, slots=Slots(**document["slots"]))
        if found["registration"] is not None:
            found["registration"] = Registration(**found["registration"])
        return cls(**found)


class OperationCosts:
    """What one rank's operations take beside their messages. seed: of what is drawn, another for each rank."""

    def __init__(self, software: Software, seed: str) -> None:
        self._software = software
        self._draw = random.Random(seed)
        self._registered: set[tuple[int, int]] = set()

    def before_s(self, address: int, size_bytes: int) -> float:
        """Until an operation on the array at this address begins; 0 bytes for none."""
        took_s, registration = self._software.launch_s, self._software.registration
        array = address, size_bytes
        if registration is not None and size_bytes >= PAGE_BYTES and array not in self._registered:
            self._registered.add(array)
            took_s += registration.drawn_s(self._draw)
        return took_s

    @property
    def after_s(self) -> float:
        """From an operation's last message until who waits for it is told."""
        return self._software.completion_s


def operation_costs(software: Software, seed: int, rank: int) -> OperationCosts | None:
    """Of one rank; None where operations cost nothing by themselves."""
    if not (software.launch_s or software.completion_s or software.registration):
        return None
    return OperationCosts(software, f"{seed}/registration/{rank}")
