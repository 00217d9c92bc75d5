"""Hardware of hosts: network cards, accelerators, the links between a rank's accelerators, and inference nodes.

The file form (`...Spec`) and what it resolves to. That an inference node has a single-socket host and six low-power
cards is in the abstract of arXiv:2107.04140; lanes, rates and delays are not, and are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from testbed.spec.base_model import Finding, Form, StrictModel, look_up
from testbed.spec.links import PauseSpec
from testbed.spec.units import format_duration
from testbed.spec.value_types import (
    ACCELERATOR,
    COMPUTE_DTYPES,
    Count,
    DelayOrZero,
    Duration,
    Queue,
    Rate,
    RateOrNone,
    SizeOrNone,
    choice,
    whole,
)


class NicSpec(StrictModel):
    """Network card of a host."""

    rate_bps: Rate = Field(
        alias="rate", description="Rate of the card, and of the switch port it is plugged into."
    )
    delay_s: DelayOrZero = Field(
        default=0.0, alias="delay", description="Between the host and its switch, one way."
    )
    queue_bytes: Queue = Field(
        default="auto",
        alias="queue",
        description="Buffer of the switch port that the card is plugged into; auto: 1 ms at `rate`, at least 64 "
        "packets. What the host itself cannot send yet waits in its memory.",
    )
    pause: PauseSpec | None = Field(
        default=None, description="The switch pauses the host before it overflows; never, if left out."
    )


class IntraNodeSpec(StrictModel):
    """What a rank's accelerators send each other takes time, by a formula: no network carries it.

    Those joined by links of their own (scale-up) are one tier; where a rank stands for more, the network between these
    domains is the other, at the rate of an accelerator's share of the rank's card. Latencies are NCCL's of a hop of a
    ring under its Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat` and `baseLat`).
    """

    scale_up: Count | None = Field(
        default=None,
        description="Accelerators joined by links of their own; default: the accelerator's (8 of H100).",
    )
    scale_up_rate_bps: RateOrNone = Field(
        default=None,
        alias="scale_up_rate",
        description="Of each accelerator's links to those, one way; default: the accelerator's (3.6 Tbit/s of H100).",
    )
    scale_up_latency_s: Duration = Field(
        default=3.4e-6, alias="scale_up_latency", description="Of a hop between two of those."
    )
    scale_out_latency_s: Duration = Field(
        default=9.6e-6, alias="scale_out_latency", description="Of a hop between two domains."
    )
    launch_s: Duration = Field(
        default=8.4e-6, alias="launch", description="Of each collective, whatever its size."
    )


@dataclass(frozen=True)
class Hardware:
    """Of a host, where it is not as the workload says: its accelerators, what they multiply in, the memory of each.

    accelerator: a name of data/accelerators.yaml. memory_bytes: where it is not what that has.
    """

    accelerator: str | None = None
    compute_dtype: str | None = None
    memory_bytes: int | None = None

    def over(self, other: Hardware) -> Hardware:
        """This, and what the other says where this says nothing. Another accelerator has a memory of its own."""
        memory_bytes = self.memory_bytes
        if memory_bytes is None and self.accelerator in (None, other.accelerator):
            memory_bytes = other.memory_bytes
        return Hardware(
            self.accelerator or other.accelerator, self.compute_dtype or other.compute_dtype, memory_bytes
        )


UNSET_HARDWARE = Hardware()


class HardwareSpec(StrictModel):
    """What computes in some hosts."""

    accelerator: Annotated[str | None, ACCELERATOR] = Field(
        default=None,
        description="What computes in its hosts, in place of `workload.accelerator`. A `workload.flops_utilisation` of "
        "one's own holds here in the same proportion.",
    )
    compute_dtype: Annotated[str | None, choice("a type", COMPUTE_DTYPES)] = Field(
        default=None,
        description="In which these multiply, in place of `workload.compute_dtype`: each has another peak. What "
        "travels has as many bytes.",
    )
    memory_bytes: SizeOrNone = Field(
        default=None,
        alias="memory",
        description="Of each accelerator, in place of what its data sheet has: what a search's configurations fit in.",
    )

    @property
    def hardware(self) -> Hardware:
        """What it says."""
        return Hardware(self.accelerator, self.compute_dtype, self.memory_bytes)


_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")
_EXPECTED = "numbers of hosts from 1, such as [1, 2] or 1-4"


def _parse_numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        first, last = int(found[1]), int(found[2])
        if first <= last:
            return tuple(range(first, last + 1))
    if isinstance(value, (list, tuple)) and value and all(type(one) is int and one > 0 for one in value):
        if len(set(value)) == len(value):
            return tuple(value)
        raise ValueError("each host once")
    raise ValueError(_EXPECTED)


def _write_numbers(value: tuple[int, ...]) -> str | list[int]:
    if len(value) > 1 and value == tuple(range(value[0], value[-1] + 1)):
        return f"{value[0]}-{value[-1]}"
    return list(value)


_NUMBERS = Form(
    _parse_numbers,
    {
        "anyOf": [
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "uniqueItems": True},
            {"type": "string", "pattern": f"^{_RANGE.pattern}$", "examples": ["1-4"]},
        ]
    },
    _write_numbers,
)


class HostHardwareSpec(HardwareSpec):
    """Hosts of a building that differ from its others."""

    hosts: Annotated[tuple[int, ...], _NUMBERS] = Field(
        description="Which ones, by their numbers in the building: [1, 2], or 1-2, are east1 and east2."
    )
    nic: NicSpec | None = Field(default=None, description="Their network card; the building's if left out.")

    def checks(self) -> Iterator[Finding]:
        """Something differs."""
        if self.nic is None and self.hardware == UNSET_HARDWARE:
            yield Finding((), "hosts alone", "nic, accelerator, compute_dtype or memory beside them")


DEFAULT_CARDS = 6
LANES, HOST_LANES = 4, 16
# 8 GT/s of which 128 of 130 bits are payload: PCI Express 3.0
LANE_BPS = 8e9 * 128 / 130
LANE_DELAY_S = 1e-6
MIN_LINK_DELAY_S = 1e-6  # what the link engines hold a frame for, at least
MAX_NODES = 64
MAX_CARDS = 16


class NodesSpec(StrictModel):
    """Servers, each a host with accelerator cards on a PCIe switch, in place of `hosts` and `nic`.

    Of a building `east` with nodes of six cards, east1 is a host and east2 to east7 are its cards, east8 the next host.
    """

    count: Annotated[int, whole(1, MAX_NODES)] = Field(default=1, description="How many nodes.")
    cards: Annotated[int, whole(1, MAX_CARDS)] = Field(
        default=DEFAULT_CARDS, description="Accelerator cards of each; each is a host of the network."
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
            if 0 < delay_s < MIN_LINK_DELAY_S:
                yield Finding((key,), format_duration(delay_s), "0 ms, or at least 1 us")

    @property
    def hosts(self) -> int:
        """Of the network: hosts and cards of all nodes."""
        return self.count * (self.cards + 1)

    def rate_bps(self, number: int) -> float:
        """Of the cable of the building's host of this number, from 0."""
        return self.lane_bps * (self.lanes if number % (self.cards + 1) else self.host_lanes)


def count_hosts(building: Any) -> Any:
    """How many hosts a building has that is not validated yet; anything else where that cannot be counted."""
    nodes = look_up(building, "nodes")
    if not isinstance(nodes, Mapping | NodesSpec):
        return look_up(building, "hosts")
    count, cards = look_up(nodes, "count"), look_up(nodes, "cards")
    count, cards = 1 if count is None else count, DEFAULT_CARDS if cards is None else cards
    if isinstance(count, int) and isinstance(cards, int):
        return count * (cards + 1)
    return None


def count_free_hosts(data: Mapping[str, Any]) -> int | None:
    """Hosts for ranks in a scenario that is not validated yet; None if they cannot be counted."""
    if isinstance(named := data.get("hosts"), list | tuple):
        return len(named)
    background = data.get("background_traffic")
    entries = background if isinstance(background, list | tuple) else ()
    taken = [look_up(entry, "hosts") for entry in entries if isinstance(entry, Mapping)]
    count = _host_count(data)
    return None if count is None else count - sum(len(hosts) for hosts in taken if isinstance(hosts, list))


def _host_count(data: Mapping[str, Any]) -> int | None:
    """Hosts of a scenario that is not validated yet; None if they cannot be counted."""
    buildings = look_up(data, "topology", "buildings")
    counts = list(map(count_hosts, buildings.values())) if isinstance(buildings, Mapping) else []
    return sum(counts) if counts and all(isinstance(count, int) and count >= 0 for count in counts) else None
