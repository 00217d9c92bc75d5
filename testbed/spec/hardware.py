"""Hardware of hosts: NICs, accelerators, the links between a rank's accelerators, and inference nodes.

The file form (`...Spec`) and the resolved form. The single-socket host and the six low-power cards of an inference
node are from the abstract of arXiv:2107.04140; it gives no lanes, rates and delays: these are our estimates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from testbed.spec.base_model import Finding, StrictModel, ValueFormat, look_up
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
    integer,
)


class NicSpec(StrictModel):
    """NIC of a host."""

    rate_bps: Rate
    """Rate of the NIC, and of its switch port."""
    delay_s: DelayOrZero = 0.0
    """Propagation delay between host and switch, one way."""
    queue_bytes: Queue = "auto"
    """Buffer of the NIC's switch port; auto: 1 ms at `rate`, at least 64 packets. Packets that the host cannot send yet
    wait in its memory.
    """
    pause: PauseSpec | None = None
    """Ethernet pause: the switch pauses the host before its buffers overflow. Default: no pause."""


class IntraNodeSpec(StrictModel):
    """Time of the traffic between a rank's accelerators, from a formula. This traffic is not emulated.

    There are two tiers. Accelerators of a scale-up domain have direct links. If a rank represents more than one domain,
    they are connected by the network, at an accelerator's share of the rank's NIC. Latencies are those of one hop of a
    ring under NCCL's Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat` and `baseLat`).
    """

    scale_up: Count | None = None
    """Accelerators per scale-up domain; default: the accelerator's (8 for H100)."""
    scale_up_rate_bps: RateOrNone = None
    """Rate of each accelerator's scale-up links, one way; default: the accelerator's (3.6 Tbit/s for H100)."""
    scale_up_latency_s: Duration = 3.4e-6
    """Latency of a hop within a scale-up domain."""
    scale_out_latency_s: Duration = 9.6e-6
    """Latency of a hop between two scale-up domains."""
    launch_s: Duration = 8.4e-6
    """Fixed time of each collective."""


@dataclass(frozen=True)
class Hardware:
    """A host's hardware where it differs from the workload's: accelerators, their compute type and memory.

    `accelerator`: a name from data/accelerators.yaml. `memory_bytes`: per accelerator, if not the data sheet's.
    """

    accelerator: str | None = None
    compute_dtype: str | None = None
    memory_bytes: int | None = None

    def fill_from(self, other: Hardware) -> Hardware:
        """Return this with gaps filled from `other`. Memory is not taken from another type of accelerator."""
        memory_bytes = self.memory_bytes
        if memory_bytes is None and self.accelerator in (None, other.accelerator):
            memory_bytes = other.memory_bytes
        return Hardware(
            self.accelerator or other.accelerator, self.compute_dtype or other.compute_dtype, memory_bytes
        )


UNSET_HARDWARE = Hardware()


class HardwareSpec(StrictModel):
    """Accelerators of some hosts, where they differ from the workload's."""

    accelerator: Annotated[str | None, ACCELERATOR] = None
    """Accelerator of these hosts, in place of `workload.accelerator`. If `workload.flops_utilisation` is set, it is
    scaled by the ratio of the two accelerators' utilisations.
    """
    compute_dtype: Annotated[str | None, choice("a type", COMPUTE_DTYPES)] = None
    """Data type of these accelerators' matrix products, in place of `workload.compute_dtype`: it determines their peak.
    Message sizes do not change.
    """
    memory_bytes: SizeOrNone = None
    """Memory per accelerator, in place of the data sheet's. Configurations of a search must fit in it."""

    @property
    def hardware(self) -> Hardware:
        """The resolved form."""
        return Hardware(self.accelerator, self.compute_dtype, self.memory_bytes)


_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")
_EXPECTED = "host numbers from 1, such as [1, 2] or 1-4"


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


_NUMBERS = ValueFormat(
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
    """Hosts of a building that differ from the others."""

    hosts: Annotated[tuple[int, ...], _NUMBERS]
    """Numbers of these hosts in the building; [1, 2] and 1-2 both mean east1 and east2."""
    nic: NicSpec | None = None
    """NIC of these hosts; default: the building's."""

    def checks(self) -> Iterator[Finding]:
        """Check that the entry sets a NIC or hardware, not only host numbers."""
        if self.nic is None and self.hardware == UNSET_HARDWARE:
            yield Finding((), "hosts alone", "nic, accelerator, compute_dtype or memory with them")


DEFAULT_CARDS = 6
LANES, HOST_LANES = 4, 16
# PCI Express 3.0: 8 GT/s with 128b/130b coding
LANE_BPS = 8e9 * 128 / 130
LANE_DELAY_S = 1e-6
MIN_LINK_DELAY_S = 1e-6  # the shortest delay that the link engines emulate
MAX_NODES = 64
MAX_CARDS = 16


class NodesSpec(StrictModel):
    """Servers in place of `hosts` and `nic`: each is a host with accelerator cards on a PCIe switch.

    In a building `east` with nodes of six cards, east1 is a host, east2 to east7 are its cards, east8 the next host.
    """

    count: Annotated[int, integer(1, MAX_NODES)] = 1
    """Number of nodes."""
    cards: Annotated[int, integer(1, MAX_CARDS)] = DEFAULT_CARDS
    """Accelerator cards per node; each is a host of the network."""
    lanes: Annotated[int, integer(1, 16)] = LANES
    """PCIe lanes between a card and the switch."""
    host_lanes: Annotated[int, integer(1, 32)] = HOST_LANES
    """PCIe lanes between the host and the switch."""
    lane_bps: Rate = Field(default=LANE_BPS, alias="lane_rate")
    """Rate of a lane in one direction; default: PCI Express 3.0, 8 GT/s less its 128b/130b coding. Transaction headers
    are not subtracted: packets here have their own headers.
    """
    lane_delay_s: DelayOrZero = LANE_DELAY_S
    """Delay between a card, or the host, and the PCIe switch, one way."""
    network_bps: Rate
    """Rate of the node's network card, which connects it to the building's switch, in both directions."""
    network_delay_s: DelayOrZero = 0.0
    """Delay between the node and the building's switch, one way."""

    def checks(self) -> Iterator[Finding]:
        """Check that delays are long enough to be emulated."""
        for key, delay_s in (("lane_delay", self.lane_delay_s), ("network_delay", self.network_delay_s)):
            if 0 < delay_s < MIN_LINK_DELAY_S:
                yield Finding((key,), format_duration(delay_s), "0 ms, or at least 1 us")

    @property
    def hosts(self) -> int:
        """Number of hosts of the network: hosts and cards of all nodes."""
        return self.count * (self.cards + 1)

    def rate_bps(self, number: int) -> float:
        """Return the rate of a host's cable; `number` counts the building's hosts from 0."""
        return self.lane_bps * (self.lanes if number % (self.cards + 1) else self.host_lanes)


def count_hosts(building: Any) -> Any:
    """Return the number of hosts of a building that is not validated yet; anything else if it cannot be counted."""
    nodes = look_up(building, "nodes")
    if not isinstance(nodes, Mapping | NodesSpec):
        return look_up(building, "hosts")
    count, cards = look_up(nodes, "count"), look_up(nodes, "cards")
    count, cards = 1 if count is None else count, DEFAULT_CARDS if cards is None else cards
    if isinstance(count, int) and isinstance(cards, int):
        return count * (cards + 1)
    return None


def count_rank_hosts(data: Mapping[str, Any]) -> int | None:
    """Return the number of hosts for ranks in a scenario that is not validated yet; None if it cannot be counted."""
    if isinstance(named := data.get("hosts"), list | tuple):
        return len(named)
    background = data.get("background_traffic")
    entries = background if isinstance(background, list | tuple) else ()
    taken = [look_up(entry, "hosts") for entry in entries if isinstance(entry, Mapping)]
    count = _host_count(data)
    return None if count is None else count - sum(len(hosts) for hosts in taken if isinstance(hosts, list))


def _host_count(data: Mapping[str, Any]) -> int | None:
    buildings = look_up(data, "topology", "buildings")
    counts = list(map(count_hosts, buildings.values())) if isinstance(buildings, Mapping) else []
    return sum(counts) if counts and all(isinstance(count, int) and count >= 0 for count in counts) else None
