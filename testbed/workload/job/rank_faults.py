"""What ranks do wrong, or slowly, on purpose: known to each beforehand, since all ranks share one clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SLOW, SKIP, MISMATCH, SLOW_IO = "rank_slow", "rank_skip", "rank_mismatch", "io_slow"
SIZE, TYPE, ORDER = "size", "type", "order"


@dataclass(frozen=True)
class RankFault:
    """One rank's: `action` and `what` as events have them. Emulated seconds after the start of a measured step.

    for_s: None to the variant's end. factor: of computing. delay_s: of each operation's control part. place: in the
    rank's plan, of the collective that it does not join, or joins otherwise; other: of the one that it changes places
    with.
    """

    rank: int
    action: str
    step: int
    after_s: float
    for_s: float | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    what: str = ""
    place: int = 0
    other: int = 0

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> RankFault:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(**document)
