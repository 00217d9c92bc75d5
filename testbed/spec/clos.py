"""Clos networks inside a building: what a file states of them, and what it resolves to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from testbed.spec.base_model import StrictModel
from testbed.spec.link_direction import Direction
from testbed.spec.links import PauseSpec
from testbed.spec.value_types import DelayOrZero, Queue, Ratio, integer

MAX_SWITCHES = 64  # of one kind in a building
Switching = Literal["store_and_forward", "cut_through"]


@dataclass(frozen=True)
class Clos:
    """Three tiers of switches in a building: leaves with hosts, spines, and one core that leads to the edge.

    Each of `zones` zones has `leaves` leaves and `spines` spines. Every leaf is linked to every spine of its zone, and
    every spine to the core. Links are symmetric.
    """

    zones: int
    leaves: int
    spines: int
    leaf_uplink: Direction
    spine_uplink: Direction


class UplinkSpec(StrictModel):
    """Links from a switch to the tier above."""

    oversubscription: Ratio = 1.0
    """Bandwidth from below over bandwidth upwards, as 1:2.8; 1:1 is non-blocking."""
    delay_s: DelayOrZero = 0.0
    """Propagation delay of each link, one way."""
    queue_bytes: Queue = "auto"
    """Buffer of the port at either end of each link; auto: 1 ms at the link's rate, at least 64 packets."""
    pause: PauseSpec | None = None
    """Ethernet pause between the two switches of each link; none, if left out."""


class ClosSpec(StrictModel):
    """Switch tiers of a building: leaves with hosts, spines, one core; each leaf linked to each spine of its zone.

    The destination alone determines which spine a packet takes (D-mod-k).
    """

    zones: Annotated[int, integer(1, MAX_SWITCHES)] = 1
    """Parts of the building with their own leaves and spines, joined at the core."""
    leaves: Annotated[int, integer(1, MAX_SWITCHES)]
    """Leaf switches in each zone. Hosts are spread over them evenly, consecutive hosts on the same leaf."""
    spines: Annotated[int, integer(1, MAX_SWITCHES)]
    """Spine switches in each zone."""
    leaf: UplinkSpec = UplinkSpec()
    """Links from each leaf up to the spines of its zone."""
    spine: UplinkSpec = UplinkSpec()
    """Link from each spine up to the core."""
    spine_switching: Switching | None = None
    """Like `switching`, for the spines only; default: the building's."""
    core_switching: Switching | None = None
    """Like `switching`, for the core only; default: the building's."""
