"""What `summary.json` says of links whose far ends pause the sender."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


class PausedLink(ResultModel):
    """One direction of a link of a network that pauses, over a whole run, probes before it left out; sizes in bytes."""

    link: str
    direction: Literal["a_to_b", "b_to_a"]
    pauses: int = Field(description="That the switch at its far end sent.")
    paused_share: float = Field(description="Of the time, for which its sender had to stand.")
    buffer_bytes: int = Field(description="What that switch may hold of what comes; 0 where it never pauses.")
    buffer_peak_bytes: int = Field(description="What it held at most, since the network was built.")
    dropped: int = Field(description="Frames for which that was not enough.")


def merged(shards: Sequence[Iterable[PausedLink]]) -> tuple[PausedLink, ...]:
    """Of several shards: counts together, the mean of shares, the fullest buffer."""
    found = []
    for rows in zip(*shards, strict=True):
        together = {
            "pauses": sum(row.pauses for row in rows),
            "paused_share": sum(row.paused_share for row in rows) / len(rows),
            "buffer_peak_bytes": max(row.buffer_peak_bytes for row in rows),
            "dropped": sum(row.dropped for row in rows),
        }
        found.append(rows[0].model_copy(update=together))
    return tuple(found)
