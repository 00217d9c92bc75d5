"""What every link engine offers.

A WAN link is four interfaces in a row. At each end the edge switch's port, shaped (rate, queue); between them two
interfaces in the WAN namespace, where a link engine carries frames from one to the other, late and lossy as asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Impairment:
    """What an engine does to one direction: one-way delay and jitter in seconds, loss as a fraction."""

    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class LinkWire:
    """One WAN link as an engine sees it: its name, its two interfaces in the WAN namespace, both directions."""

    name: str
    interface_a: str
    interface_b: str
    a_to_b: Impairment
    b_to_a: Impairment


@dataclass(frozen=True)
class DirectionAccount:
    """One direction's books since the engine started.

    Packets and bytes in and out, packets lost on purpose (`lost`), lost for want of room (`overrun`), still under way
    (`held`). `lateness_counts[i]` counts packets released less than `lateness_bounds_s[i]` late, the last entry the
    rest; both empty where the engine cannot tell.
    """

    in_packets: int
    in_bytes: int
    out_packets: int
    out_bytes: int
    lost: int
    overrun: int
    held: int
    lateness_bounds_s: tuple[float, ...] = ()
    lateness_counts: tuple[int, ...] = ()
    lateness_max_s: float | None = None


@dataclass(frozen=True)
class EngineAccount:
    """The books of all links at one moment (CLOCK_MONOTONIC); keys are (link name, "a_to_b" or "b_to_a")."""

    time_s: float
    directions: dict[tuple[str, str], DirectionAccount] = field(default_factory=dict)


class LinkEngine(Protocol):
    """Carries frames across the WAN links of one fabric."""

    name: str
    # Where a direction's rate and queue belong: after the engine, on the interface out of which it sends, or before
    # it, on the edge's port.
    shaped_after: bool

    def start(self) -> None:
        """Begin to carry frames; every setting has been read back when this returns. Raises LinkError."""

    def settings(self) -> dict[tuple[str, str], Impairment]:
        """What each direction is set to, read back from the engine itself."""

    def compensate(self, excess_s: Mapping[tuple[str, str], float]) -> None:
        """Take off each direction's delay what the rest of the path was measured to add; no delay falls below zero."""

    def account(self) -> EngineAccount:
        """The books now."""

    def failure(self) -> str | None:
        """None while it works; else one sentence on how it ended."""

    def stop(self) -> None:
        """End; harmless when it has ended already."""
