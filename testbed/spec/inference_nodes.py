"""Inference nodes in a building: a host, a PCIe switch, and accelerator cards behind it, as a file says them.

That a node has a single-socket host and six low-power cards is in the abstract of arXiv:2107.04140; lanes, rates and
delays are not, and are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.spec.base_model import Finding, Strict, look
from testbed.spec.units import format_duration
from testbed.spec.value_types import DelayOrZero, Rate, whole

CARDS = 6
LANES, HOST_LANES = 4, 16
# 8 GT/s of which 128 of 130 bits are payload: PCI Express 3.0
LANE_BPS = 8e9 * 128 / 130
LANE_DELAY_S = 1e-6
LEAST_DELAY_S = 1e-6  # what the link engines hold a frame for, at least
MAX_NODES = 64
MAX_CARDS = 16


class NodesSpec(Strict):
    """Servers, each a host with accelerator cards on a PCIe switch, in place of `hosts` and `nic`.

    Of a building `east` with nodes of six cards, east1 is a host and east2 to east7 are its cards, east8 the next host.
    """

    count: Annotated[int, whole(1, MAX_NODES)] = Field(default=1, description="How many nodes.")
    cards: Annotated[int, whole(1, MAX_CARDS)] = Field(
        default=CARDS, description="Accelerator cards of each; each is a host of the network."
    )
    lanes: Annotated[int, whole(1, 16)] = Field(
        default=LANES, description="PCIe lanes between a card and the switch."
    )
    host_lanes: Annotated[int, whole(1, 32)] = Field(
        default=HOST_LANES, description="PCIe lanes between the host and the switch."
    )
    lane_bps: Rate = Field(
        default=LANE_BPS,
        alias="lane_rate",
        description="Of a lane in one direction; default: PCI Express 3.0, 8 GT/s less its 128b/130b coding. What "
        "transaction headers take is left to you: packets here have headers of their own.",
    )
    lane_delay_s: DelayOrZero = Field(
        default=LANE_DELAY_S,
        alias="lane_delay",
        description="Between a card, or the host, and the switch, one way.",
    )
    network_bps: Rate = Field(
        alias="network", description="Of the node's network card, to the building's switch; both directions."
    )
    network_delay_s: DelayOrZero = Field(
        default=0.0, alias="network_delay", description="From node to the building's switch, one way."
    )

    def checks(self) -> Iterator[Finding]:
        """Delays are long enough to be emulated."""
        for key, delay_s in (("lane_delay", self.lane_delay_s), ("network_delay", self.network_delay_s)):
            if 0 < delay_s < LEAST_DELAY_S:
                yield Finding((key,), format_duration(delay_s), "0 ms, or at least 1 us")

    @property
    def hosts(self) -> int:
        """Of the network: hosts and cards of all nodes."""
        return self.count * (self.cards + 1)

    def rate_bps(self, number: int) -> float:
        """Of the cable of the building's host of this number, from 0."""
        return self.lane_bps * (self.lanes if number % (self.cards + 1) else self.host_lanes)


def hosts_of(building: Any) -> Any:
    """How many hosts a building has that is not validated yet; anything else where that cannot be counted."""
    nodes = look(building, "nodes")
    if not isinstance(nodes, Mapping | NodesSpec):
        return look(building, "hosts")
    count, cards = look(nodes, "count"), look(nodes, "cards")
    count, cards = 1 if count is None else count, CARDS if cards is None else cards
    if isinstance(count, int) and isinstance(cards, int):
        return count * (cards + 1)
    return None


def free_hosts(data: Mapping[str, Any]) -> int | None:
    """Hosts for ranks in a scenario that is not validated yet; None if they cannot be counted."""
    if isinstance(named := data.get("hosts"), list | tuple):
        return len(named)
    background = data.get("background_traffic")
    entries = background if isinstance(background, list | tuple) else ()
    taken = [look(entry, "hosts") for entry in entries if isinstance(entry, Mapping)]
    count = _host_count(data)
    return None if count is None else count - sum(len(hosts) for hosts in taken if isinstance(hosts, list))


def _host_count(data: Mapping[str, Any]) -> int | None:
    """Hosts of a scenario that is not validated yet; None if they cannot be counted."""
    buildings = look(data, "topology", "buildings")
    counts = list(map(hosts_of, buildings.values())) if isinstance(buildings, Mapping) else []
    return sum(counts) if counts and all(isinstance(count, int) and count >= 0 for count in counts) else None
