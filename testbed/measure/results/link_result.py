"""What `summary.json` says of links between buildings, and of ports inside them that dropped packets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


class LinkStep(ResultModel):
    """What one direction of a WAN link carried in one step, and what became of its packets on the way."""

    bytes: int = Field(description="On the wire, headers included.")
    utilisation: float = Field(description="Of the rate, over the whole step.")
    packets: int = Field(description="That were put on the wire.")
    drops: int = Field(description="Packets for which its queue had no room.")
    losses: int = Field(description="Packets that its fibre lost at random.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked by ECN.")


class LinkUse(ResultModel):
    """One direction of a WAN link: what of it the steps used (medians), its longest queue, packets over all steps.

    Steps that lacked replicas, or in which one caught up, are left out of the medians; `steps` has all.

    Counters are read as each step begins and as it ends. By the real clock a reading is a few milliseconds off: what
    crosses in `beyond_s` is counted, too, so bytes are at most rate x beyond_s too many. Under the virtual clock they
    are exact.
    """

    a: str
    b: str
    plane: int
    direction: Literal["a_to_b", "b_to_a"]
    rate_bps: float
    bytes: int = Field(description="On the wire, headers included, per step.")
    utilisation: float = Field(description="Of the rate, over the whole step.")
    queue_peak_bytes: int = Field(description="The longest that a reading found.")
    drops: int = Field(description="Packets for which its queue had no room.")
    losses: int = Field(description="Packets that its fibre lost at random.")
    cut_losses: int = Field(description="Packets lost because the link was cut.")
    marks: int = Field(description="Packets marked by ECN.")
    beyond_s: float = Field(
        description="How long before a step's start and after its end the readings were, both together, at most."
    )
    steps: tuple[LinkStep, ...] = Field(description="Each step, in the order of the trials.")


class PlaneBalance(ResultModel):
    """How evenly the planes between two buildings were used: Jain's index, 1 if all alike, 1/n if one alone."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    planes: int
    jain_index: float


class DroppingPort(ResultModel):
    """A port inside a building, or a host's card, whose queue dropped packets while steps were measured."""

    place: str
    queue_bytes: int
    given: bool = Field(description="Whether the topology gives the queue's size; else it is the default.")
    drops: int = Field(description="Packets, over all steps; of a card over the whole run.")


def merged_ports(shards: Sequence[Iterable[DroppingPort]]) -> tuple[DroppingPort, ...]:
    """Of several shards: counts together, the worst first."""
    found: dict[str, DroppingPort] = {}
    for port in (port for ports in shards for port in ports):
        before = found.get(port.place)
        drops = port.drops + (before.drops if before else 0)
        found[port.place] = port.model_copy(update={"drops": drops})
    return tuple(sorted(found.values(), key=lambda port: -port.drops))
