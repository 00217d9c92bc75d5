"""Probes of the rate and delay of every WAN link of a running fabric, before anything else uses it.

Probe nodes are attached to the edges without shaping. Rules pin each of their addresses to one link, so every link is
measured separately.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.net.links.packet_sockets import (
    Endpoint,
    measure_one_way_delays,
    probe_transmission_s,
    receive_stamped,
    udp_pair,
)
from testbed.net.links.shaping import burst_bytes
from testbed.processes import wait_readable
from testbed.spec.link_direction import PACKET_FAULTS, Direction
from testbed.spec.topology import Topology, probe_address

DELAY_PACKETS = 20
JITTER_PACKETS = 60  # enough for a useful estimate of the spread
RATE_BOUND = 0.03
SPREAD_BOUND, SPREAD_BOUND_S = 2.0, 0.0005
# Interquartile range of the delay, divided by the jitter: uniform within +-1; normal; Pareto of shape 3, with the
# quantile function (1 - q)^(-1/3), scaled to standard deviation 1.
SPREADS = {"uniform": 1.0, "normal": 1.349, "pareto": 0.562}
ATTEMPTS = 3
BLAST_S = 0.3
BLAST_PACKETS = 60  # minimum; slow links get smaller packets so that this number fits
SMALLEST_PAYLOAD_BYTES = 200
HEADER_BYTES = 14 + 20 + 8  # Ethernet, IPv4 and UDP, which the shaper counts in addition to the payload
BLAST_BYTES = 12_000_000  # maximum, so that the receive buffer holds the whole blast however late it is read
IN_FLIGHT_BYTES = 16 << 20  # maximum of the probe's own packets, however large the bandwidth-delay product
PACE = 1.1  # sending rate relative to the link's rate
STOCK_S = 0.02  # backlog that keeps the link's queue filled while the sender has no core
DRY = 0.01  # share of the blast by which the sender may fall behind the link's rate
STALL_FRAMES = 4  # a gap of up to this many frame times is not a stall, however short the blast
QUIET_S = 0.05


@dataclass(frozen=True)
class LinkMeasurement:
    """One direction of a WAN link: its configuration and the probe's result.

    Attributes:
        a, b, plane, direction: Together they identify the direction of the link.
        asked: The configured properties.
        rate_bps: Measured rate of Ethernet frames; NaN if no packet arrived.
        delay_s: Median one-way delay without the probe packet's serialisation time; NaN if no packet arrived.
        lost: Share lost of the packets that were sent one at a time.
        saturated: Whether the probe could send at the configured rate; if it could not, the link may be faster than
            measured.
        rate_noise: Share by which configured loss, duplicates and jitter can change the measured rate.
        spread_s: Interquartile range of the delays.
    """

    a: str
    b: str
    plane: int
    direction: str
    asked: Direction
    rate_bps: float
    delay_s: float
    lost: float
    saturated: bool = True
    rate_noise: float = 0.0
    spread_s: float = 0.0

    @property
    def name(self) -> str:
        """The direction's name in messages, such as "east to west, plane 0"."""
        ends = (self.a, self.b) if self.direction == "a_to_b" else (self.b, self.a)
        return f"{ends[0]} to {ends[1]}, plane {self.plane}"


def measure_links(topology: Topology, pids: Mapping[str, int]) -> list[LinkMeasurement]:
    """Measure every direction of every WAN link in turn; `pids` has a process in each building's probe node."""
    found = []
    for index, link in enumerate(topology.wan):
        a = (pids[link.a], probe_address(index, "a"))
        b = (pids[link.b], probe_address(index, "b"))
        for direction, here, there in (("a_to_b", a, b), ("b_to_a", b, a)):
            asked: Direction = getattr(link, direction)
            packets = JITTER_PACKETS if asked.jitter_s else DELAY_PACKETS
            for _ in range(ATTEMPTS):  # a short disturbance of the host passes, but a wrong link stays wrong
                times = measure_one_way_delays(here, there, packets)
                if spread_offence(asked, spread(times)) <= 1:
                    break
            for _ in range(ATTEMPTS):
                rate_bps, saturated, noise, stalled = _rate(here, there, asked, topology.mtu)
                if not stalled and abs(rate_bps / asked.rate_bps - 1) <= RATE_BOUND + noise:
                    break
            found.append(
                LinkMeasurement(
                    link.a,
                    link.b,
                    link.plane,
                    direction,
                    asked,
                    rate_bps=rate_bps,
                    delay_s=statistics.median(times) - probe_transmission_s(asked.rate_bps)
                    if times
                    else float("nan"),
                    lost=1 - len(times) / packets,
                    saturated=saturated,
                    rate_noise=noise,
                    spread_s=spread(times),
                )
            )
    return found


def spread(times: list[float]) -> float:
    """Return the interquartile range; NaN for fewer than four values."""
    if len(times) < 4:
        return float("nan")
    lower, _, upper = statistics.quantiles(times, n=4)
    return upper - lower


def expected_spread_s(asked: Direction) -> float:
    """Return the interquartile range of the delay that the configured jitter produces."""
    return asked.jitter_s * SPREADS[asked.jitter_distribution]


def spread_offence(asked: Direction, spread_s: float) -> float:
    """Return the deviation of the delays' spread relative to its bound: above 1 is out of bounds.

    It is 0 if no packet arrived; the invariants of loss and delay report that case.
    """
    if math.isnan(spread_s):
        return 0.0
    expected_s = expected_spread_s(asked)
    least_s, most_s = expected_s / SPREAD_BOUND, expected_s * SPREAD_BOUND
    if spread_s < least_s:
        return (expected_s - spread_s) / max(expected_s - least_s, SPREAD_BOUND_S)
    return (spread_s - expected_s) / max(most_s - expected_s, SPREAD_BOUND_S)


def _rate(here: Endpoint, there: Endpoint, asked: Direction, mtu: int) -> tuple[float, bool, float, bool]:
    """Measure the arrival rate of datagrams that are sent slightly too fast, from the receiving kernel's time stamps.

    The result is corrected for configured loss and duplicates.

    Returns:
        The rate in bit/s, whether the datagrams were sent fast enough, and the share by which randomness can change the
        rate. The last element is true if a single gap between arrivals changed the rate by as much as the bound. Such a
        gap can hide a link that is too fast.
    """
    fitting = int(asked.rate_bps * BLAST_S / 8 / BLAST_PACKETS) - HEADER_BYTES
    payload = max(SMALLEST_PAYLOAD_BYTES, min(mtu - 28, fitting))
    frame = payload + HEADER_BYTES
    rate = asked.rate_bps / 8 / frame  # frames per second
    # The blast begins with twice the shaper's burst at once, so that frames queue from then on. The pace then keeps the
    # queue filled without overflowing it.
    head = 2 * burst_bytes(asked.rate_bps, mtu) // frame + 1
    stock = min(STOCK_S * rate, asked.queue_bytes / 4 / frame)
    count = head + max(BLAST_PACKETS // 2, int(min(BLAST_S * rate, BLAST_BYTES / frame)))
    stamps: list[int] = []
    with udp_pair(here, there, IN_FLIGHT_BYTES) as (sender, receiver):
        receiver.setblocking(False)
        sender.setblocking(False)
        data, sent, missing, start = bytes(payload), 0, 0.0, time.monotonic()
        while sent < count:
            wanted = (time.monotonic() - start) * rate
            missing = max(missing, wanted - sent)
            due = min(count, head + int(wanted * PACE + min(stock, wanted / 2)))
            while sent < due:
                with contextlib.suppress(
                    BlockingIOError
                ):  # the sender's own queue is full: the packet counts as sent
                    sender.send(data)
                sent += 1
            time.sleep(0.001)
        # wait for queued frames and frames in flight, so that they do not disturb the next measurement
        patience_s = asked.delay_s + asked.jitter_s + asked.queue_bytes * 8 / asked.rate_bps + QUIET_S
        last = time.monotonic()
        while len(stamps) < count and time.monotonic() - last < patience_s:
            if _collect(receiver, stamps, QUIET_S):
                last = time.monotonic()
    saturated = missing <= DRY * count
    stamps = stamps[max(head, len(stamps) // 3) :]  # a third: in a short blast the burst affects more
    if len(stamps) < 2 or stamps[-1] <= stamps[0]:
        return float("nan"), saturated, 0.0, False
    took_s = (stamps[-1] - stamps[0]) / 1e9
    arriving, changed = 1 - asked.mean_loss, asked.mean_loss
    for kind, share in asked.faults.items():
        arriving *= 1 + PACKET_FAULTS[kind].arrivals * share
        changed += abs(PACKET_FAULTS[kind].arrivals) * share
    noise = 2.6 * math.sqrt(changed * asked.loss_spread / len(stamps)) + 2 * asked.jitter_s / took_s
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(stamps)) / 1e9
    # configured loss and jitter also leave gaps
    stalled = not noise and gap_s > max(RATE_BOUND * took_s, STALL_FRAMES / rate)
    return (len(stamps) - 1) * frame * 8 / took_s / arriving, saturated, noise, stalled


def _collect(receiver: socket.socket, stamps: list[int], wait_s: float) -> bool:
    """Receive all packets that have arrived, waiting at most `wait_s` for the first; return whether there are any."""
    if not wait_readable([receiver], wait_s):
        return False
    with contextlib.suppress(BlockingIOError):
        while True:
            stamps.append(receive_stamped(receiver)[1])
    return True
