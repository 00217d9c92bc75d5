"""What a host can carry, and the smallest size scale that fits it. Pure; the figures are measured ones, rounded down.

Two things run out first: the packets that cross the WAN (two Open vSwitch edges and the link engine each: about 0.8
Gbit/s at 1500 bytes for the userspace datapath's one thread, some four times that in the kernel), and the bytes that
rank processes and their namespaces move (8 ranks moved 8 x 0.8 Gbit/s over kernel bridges on 2 cores when nothing was
measured at the same time; half of it leaves room to measure).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.spec.scale import Scale
from testbed.spec.topology import Topology

NIC_BPS_PER_CORE = 1.0e9
WAN_PACKETS_PER_S_PER_CORE = {"netdev": 15_000.0, "system": 60_000.0}
HOST_BYTES = 12 * 1024 * 1024  # a namespace, its shell, its interfaces
RANK_BYTES = 60 * 1024 * 1024
MEMORY_SHARE = 0.7
HEADROOM = 2.0  # `auto` leaves half of the capacity free
LARGEST_SCALE = 1e7
IN_GUEST_BYTES = (
    2 * 1024 * 1024,
    12 * 1024 * 1024,
)  # the same, measured in guests: no shells, smaller libraries
GUEST_BYTES, GUEST_STEP_BYTES = 512 << 20, 256 << 20
GUEST_HOST_BYTES = 6 << 20
GUEST_RANK_BYTES = 16 << 20  # forked from one parent, so most of it is shared
VIRTUAL_BYTES = 2e9  # a gigabyte takes some ten seconds


@dataclass(frozen=True)
class NetworkBackend:
    """The parts that a run uses here: link engine ("userspace" or "netem"), datapath ("netdev" or "system")."""

    link_engine: str
    datapath: str


@dataclass(frozen=True)
class HostCapacity:
    """The machine: cores, and memory free for us in bytes."""

    cores: float
    memory_bytes: int


def overload(
    topology: Topology, host: HostCapacity, backend: NetworkBackend, headroom: float = 1.0
) -> list[str]:
    """What of `topology` (emulated rates) this host cannot carry, one sentence each; empty when it can."""
    nic_bps = sum(entry.nic.rate_bps for entry in topology.hosts) * headroom
    nic_limit_bps = NIC_BPS_PER_CORE * host.cores
    wan_bps = sum(link.a_to_b.rate_bps + link.b_to_a.rate_bps for link in topology.wan)
    packets = wan_bps / 8 / topology.mtu * headroom
    packets_limit = WAN_PACKETS_PER_S_PER_CORE[backend.datapath] * host.cores
    found = []
    if nic_bps > nic_limit_bps:
        found.append(
            f"its NICs add up to {nic_bps / headroom / 1e9:.4g} Gbit/s, this host of {host.cores:g} cores carries about"
            f" {nic_limit_bps / headroom / 1e9:.3g} Gbit/s"
        )
    if packets > packets_limit:
        found.append(
            f"its WAN links add up to {packets / headroom:,.0f} packets/s of {topology.mtu} bytes, this host's"
            f" {backend.datapath} datapath carries about {packets_limit / headroom:,.0f}"
        )
    return found


def memory_shortage(topology: Topology, ranks: int, host: HostCapacity, in_guest: bool = False) -> str | None:
    """One sentence when hosts and ranks need more memory than is free; no scale mends that."""
    host_bytes, rank_bytes = IN_GUEST_BYTES if in_guest else (HOST_BYTES, RANK_BYTES)
    needed = len(topology.hosts) * host_bytes + ranks * rank_bytes
    if needed <= host.memory_bytes * MEMORY_SHARE:
        return None
    gib = 1024**3
    return (
        f"{len(topology.hosts)} hosts and {ranks} ranks need about {needed / gib:.1f} GiB of memory,"
        f" {host.memory_bytes * MEMORY_SHARE / gib:.1f} GiB may be used here"
    )


def guest_memory(topology: Topology, ranks: int, gradient_bytes: float) -> int:
    """Bytes of memory for a guest of the virtual clock that carries `topology` (emulated) and its ranks.

    `gradient_bytes`: emulated, of each rank, which holds them and as much again in messages. On their way are at most
    all of them, and at most what the links and their queues hold; the kernel counts a packet at twice its size.
    """
    flying = sum(
        direction.rate_bps / 8 * direction.delay_s
        + min(direction.queue_bytes, direction.rate_bps / 8 * direction.delay_s)
        for link in topology.wan
        for direction in (link.a_to_b, link.b_to_a)
    )
    needed = GUEST_BYTES + len(topology.hosts) * GUEST_HOST_BYTES + ranks * GUEST_RANK_BYTES
    needed += int(2 * ranks * gradient_bytes + 2 * min(flying, ranks * gradient_bytes))
    return -(-needed // GUEST_STEP_BYTES) * GUEST_STEP_BYTES


def virtual_scale(traffic_bytes: float) -> float:
    """The size scale for `auto` under the virtual clock: the smallest of 1, 2, 5, 10, ... for which moving so much
    (real bytes, all ranks and steps of a variant) takes no longer than a coffee: some `VIRTUAL_BYTES`.
    """
    power = 1.0
    while True:
        for step in (1.0, 2.0, 5.0):
            if traffic_bytes / (step * power) <= VIRTUAL_BYTES:
                return step * power
        power *= 10


def smallest_scale(
    resolve: Callable[[Scale], Topology],
    host: HostCapacity,
    backend: NetworkBackend,
    size: float | None,
    dilation: float | None,
) -> Scale | None:
    """The scale for `auto` (None): 1 where this host carries the figures as they are, else with headroom.

    That is the smallest of 2, 5, 10, 20, ...; None beyond LARGEST_SCALE. Where both are free, sizes shrink: they cost
    no time.
    """

    def at(factor: float) -> Scale:
        return Scale(factor, dilation or 1.0) if size is None else Scale(size, dilation or factor)

    if not overload(resolve(at(1.0)), host, backend):
        return at(1.0)
    if size and dilation:
        return None
    power = 1.0
    while power <= LARGEST_SCALE:
        for step in (1.0, 2.0, 5.0):
            if not overload(resolve(at(step * power)), host, backend, HEADROOM):
                return at(step * power)
        power *= 10
    return None
