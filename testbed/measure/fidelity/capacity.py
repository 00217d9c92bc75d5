"""The traffic that a host can emulate, and the smallest size scale that fits the host. Pure functions.

The limits were measured and rounded down. These two resources run out first:

- WAN packets: each passes two Open vSwitch edges and the link engine. The single thread of the userspace datapath
  carries about 0.8 Gbit/s at 1500 bytes, and the kernel about four times as much.
- Bytes moved by rank processes and their namespaces. 8 ranks moved 8 x 0.8 Gbit/s over kernel bridges on 2 cores with
  no measurement running; half of that leaves room for measurements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from testbed.spec.scale import Scale
from testbed.spec.topology import Topology

NIC_BPS_PER_CORE = 1.0e9
WAN_PACKETS_PER_S_PER_CORE = {"netdev": 15_000.0, "system": 60_000.0}
HOST_BYTES = 12 * 1024 * 1024  # a namespace, its shell, its interfaces
RANK_BYTES = 60 * 1024 * 1024
MEMORY_SHARE = 0.7
HEADROOM = 2.0  # `auto` leaves half of the capacity free
LARGEST_SCALE = 5e7
IN_GUEST_BYTES = (  # HOST_BYTES and RANK_BYTES as measured in guests, which have no shells and smaller libraries
    2 * 1024 * 1024,
    12 * 1024 * 1024,
)
GUEST_BYTES, GUEST_STEP_BYTES = 512 << 20, 256 << 20
GUEST_HOST_BYTES = 6 << 20
GUEST_RANK_BYTES = 16 << 20  # forked from one parent, so most of it is shared
VIRTUAL_BYTES = 2e9  # a gigabyte takes about ten seconds


@dataclass(frozen=True)
class NetworkBackend:
    """The link engine ("userspace" or "netem") and the datapath ("netdev" or "system") of a run."""

    link_engine: str
    datapath: str


@dataclass(frozen=True)
class HostCapacity:
    """The host's cores, and the memory available to a run in bytes."""

    cores: float
    memory_bytes: int


def overload(
    topology: Topology, host: HostCapacity, backend: NetworkBackend, headroom: float = 1.0
) -> list[str]:
    """Return one sentence for each demand of a topology that exceeds the host's capacity; empty if none does.

    Args:
        topology: The topology with emulated rates.
        host: The host's resources.
        backend: The link engine and datapath in use.
        headroom: Factor by which the capacity must exceed the demand.
    """
    nic_bps = sum(entry.nic.rate_bps for entry in topology.hosts) * headroom
    nic_limit_bps = NIC_BPS_PER_CORE * host.cores
    wan_bps = sum(link.a_to_b.rate_bps + link.b_to_a.rate_bps for link in topology.wan)
    packets = wan_bps / 8 / topology.mtu * headroom
    packets_limit = WAN_PACKETS_PER_S_PER_CORE[backend.datapath] * host.cores
    found = []
    if nic_bps > nic_limit_bps:
        found.append(
            f"its NICs add up to {nic_bps / headroom / 1e9:.4g} Gbit/s, but this host with {host.cores:g} cores can "
            f"carry about {nic_limit_bps / headroom / 1e9:.3g} Gbit/s"
        )
    if packets > packets_limit:
        found.append(
            f"its WAN links add up to {packets / headroom:,.0f} packets/s of {topology.mtu} bytes, but this host's"
            f" {backend.datapath} datapath can carry about {packets_limit / headroom:,.0f}"
        )
    return found


def memory_shortage(topology: Topology, ranks: int, host: HostCapacity, in_guest: bool = False) -> str | None:
    """Return a message if hosts and ranks need more memory than is available at any scale, else None."""
    host_bytes, rank_bytes = IN_GUEST_BYTES if in_guest else (HOST_BYTES, RANK_BYTES)
    needed = len(topology.hosts) * host_bytes + ranks * rank_bytes
    if needed <= host.memory_bytes * MEMORY_SHARE:
        return None
    gib = 1024**3
    return (
        f"{len(topology.hosts)} hosts and {ranks} ranks need about {needed / gib:.1f} GiB of memory,"
        f" but at most {host.memory_bytes * MEMORY_SHARE / gib:.1f} GiB may be used here"
    )


def guest_memory(topology: Topology, ranks: int, gradient_bytes: float) -> int:
    """Return the bytes of memory that a virtual-clock guest needs for a topology and its ranks.

    Every rank keeps its gradients and the same amount in messages. Data in flight is at most all gradients, and at most
    the capacity of the links and their queues. The kernel accounts a packet at twice its size.

    Args:
        topology: The topology with emulated figures.
        ranks: Number of ranks.
        gradient_bytes: Emulated gradient bytes of each rank.
    """
    in_flight_bytes = sum(
        direction.rate_bps / 8 * direction.delay_s
        + min(direction.queue_bytes, direction.rate_bps / 8 * direction.delay_s)
        for direction in topology.wan_directions
    )
    needed = GUEST_BYTES + len(topology.hosts) * GUEST_HOST_BYTES + ranks * GUEST_RANK_BYTES
    needed += int(2 * ranks * gradient_bytes + 2 * min(in_flight_bytes, ranks * gradient_bytes))
    return -(-needed // GUEST_STEP_BYTES) * GUEST_STEP_BYTES


def virtual_scale(traffic_bytes: float) -> float:
    """Return the size scale for `auto` under the virtual clock: 1, 2, 5, 10, ...

    It is the smallest scale that reduces `traffic_bytes` (real bytes of all ranks and steps of a variant) to
    `VIRTUAL_BYTES`, so that a run takes seconds.
    """
    return next(scale for scale in _scales() if traffic_bytes / scale <= VIRTUAL_BYTES)


def _scales() -> Iterator[float]:
    """Yield 1, 2, 5, 10, 20, ..."""
    return (step * 10.0**power for power in itertools.count() for step in (1.0, 2.0, 5.0))


def smallest_scale(
    resolve: Callable[[Scale], Topology],
    host: HostCapacity,
    backend: NetworkBackend,
    size: float | None,
    dilation: float | None,
) -> Scale | None:
    """Return the scale for `auto`: 1 if this host can carry the unscaled topology, else the smallest with headroom.

    The candidates are 2, 5, 10, 20, ... If both factors are free, sizes are scaled, since that costs no time.

    Args:
        resolve: Returns the topology at a scale.
        host: The host's resources.
        backend: The link engine and datapath in use.
        size: The size scale, or None to choose it.
        dilation: The time dilation, or None to choose it.

    Returns:
        The scale, or None if none up to LARGEST_SCALE fits.
    """

    def at(factor: float) -> Scale:
        return Scale(factor, dilation or 1.0) if size is None else Scale(size, dilation or factor)

    if not overload(resolve(at(1.0)), host, backend):
        return at(1.0)
    if size and dilation:
        return None
    candidates = itertools.takewhile(lambda scale: scale <= LARGEST_SCALE, _scales())
    return next(
        (at(one) for one in candidates if not overload(resolve(at(one)), host, backend, HEADROOM)), None
    )
