"""Measures rate and delay of every WAN link of a running fabric, before anything else runs on it.

Probe nodes sit unshaped on the edges, and rules pin their addresses to one link each, so what is measured is that link.
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
from testbed.spec.link_direction import Direction
from testbed.spec.topology import Topology, probe_address

DELAY_PACKETS = 20
JITTER_PACKETS = 60  # for a spread worth having
RATE_BOUND = 0.03
SPREAD_BOUND, SPREAD_BOUND_S = 2.0, 0.0005
# Interquartile range of the delay over the size of the jitter: uniform within +-1; normal; Pareto of shape 3, whose
# quantile is (1 - q)^(-1/3), scaled to standard deviation 1.
SPREADS = {"uniform": 1.0, "normal": 1.349, "pareto": 0.562}
ATTEMPTS = 3
BLAST_S = 0.3
BLAST_PACKETS = 60  # at least; slow links get smaller packets for it
SMALLEST_PAYLOAD_BYTES = 200
HEADER_BYTES = 14 + 20 + 8  # Ethernet, IPv4 and UDP: what the shaper counts beside the payload
BLAST_BYTES = 12_000_000  # at most: the receiver's buffer takes it all, however late we read
IN_FLIGHT_BYTES = 16 << 20  # of the probe's own packets, on a link however long and fat
PACE = 1.1  # of the rate
STOCK_S = 0.02  # of frames waiting in the link's queue, so that it does not run dry while we have no core
DRY = 0.01  # share of the blast that may be missing when the link wanted it
STALL_FRAMES = 4  # so many of them late are no stall, however short the blast
QUIET_S = 0.05


@dataclass(frozen=True)
class LinkMeasurement:
    """One direction of a WAN link: asked, and measured: rate in bit/s of Ethernet frames, median one-way delay without
    the probe's own time on the wire.

    `rate_bps` and `delay_s` are NaN when nothing came through. `lost` is a share of the packets sent one at a time.
    `saturated` tells whether the probe could send as fast as the link should carry; if not, it may carry more.
    `rate_noise` is the share by which loss, duplicates and jitter that were asked for can move the measured rate.
    `spread_s` is the interquartile range of the delays.
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
        """For people: such as `east to west, plane 0`."""
        ends = (self.a, self.b) if self.direction == "a_to_b" else (self.b, self.a)
        return f"{ends[0]} to {ends[1]}, plane {self.plane}"


def measure_links(topology: Topology, pids: Mapping[str, int]) -> list[LinkMeasurement]:
    """Measure every link and direction, one after the other; `pids` has a process of each building's probe node."""
    found = []
    for index, link in enumerate(topology.wan):
        a = (pids[link.a], probe_address(index, "a"))
        b = (pids[link.b], probe_address(index, "b"))
        for direction, here, there in (("a_to_b", a, b), ("b_to_a", b, a)):
            asked: Direction = getattr(link, direction)
            packets = JITTER_PACKETS if asked.jitter_s else DELAY_PACKETS
            for _ in range(ATTEMPTS):  # a hiccup of the machine passes; what is wrong stays
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
    """Interquartile range; NaN of fewer than four."""
    if len(times) < 4:
        return float("nan")
    lower, _, upper = statistics.quantiles(times, n=4)
    return upper - lower


def expected_spread_s(asked: Direction) -> float:
    """Of the delays that the jitter asked for gives."""
    return asked.jitter_s * SPREADS[asked.jitter_distribution]


def spread_offence(asked: Direction, spread_s: float) -> float:
    """Above 1 where the spread of delays is out of bounds; 0 where nothing came through: loss and delay say so."""
    if math.isnan(spread_s):
        return 0.0
    expected_s = expected_spread_s(asked)
    least_s, most_s = expected_s / SPREAD_BOUND, expected_s * SPREAD_BOUND
    if spread_s < least_s:
        return (expected_s - spread_s) / max(expected_s - least_s, SPREAD_BOUND_S)
    return (spread_s - expected_s) / max(most_s - expected_s, SPREAD_BOUND_S)


def _rate(here: Endpoint, there: Endpoint, asked: Direction, mtu: int) -> tuple[float, bool, float, bool]:
    """Rate at which datagrams sent a little too fast arrive, by the receiving kernel's stamps.

    Loss and duplicates that were asked for are taken out. Also: whether the datagrams were sent fast enough, the share
    by which chance can move the rate, and whether one gap between arrivals moved it by the bound: that makes a link
    that is too fast look right.
    """
    fitting = int(asked.rate_bps * BLAST_S / 8 / BLAST_PACKETS) - HEADER_BYTES
    payload = max(SMALLEST_PAYLOAD_BYTES, min(mtu - 28, fitting))
    frame = payload + HEADER_BYTES
    rate = asked.rate_bps / 8 / frame  # frames per second
    # All at once in the beginning: twice what the shaper lets through unhindered, so that from then on frames wait for
    # their turn. The pace then keeps the queue filled, without filling it up.
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
                with contextlib.suppress(BlockingIOError):  # our own queue is full: the packet counts as sent
                    sender.send(data)
                sent += 1
            time.sleep(0.001)
        # then what is still in the queue or on its way; nothing may run into what comes after
        patience_s = asked.delay_s + asked.jitter_s + asked.queue_bytes * 8 / asked.rate_bps + QUIET_S
        last = time.monotonic()
        while len(stamps) < count and time.monotonic() - last < patience_s:
            if _collect(receiver, stamps, QUIET_S):
                last = time.monotonic()
    saturated = missing <= DRY * count
    stamps = stamps[max(head, len(stamps) // 3) :]  # a third: a short blast feels the burst for longer
    if len(stamps) < 2 or stamps[-1] <= stamps[0]:
        return float("nan"), saturated, 0.0, False
    took_s = (stamps[-1] - stamps[0]) / 1e9
    arriving = (1 - asked.mean_loss) * (1 - asked.corrupt) * (1 + asked.duplicate)
    changed = asked.mean_loss + asked.corrupt + asked.duplicate
    noise = 2.6 * math.sqrt(changed * asked.loss_spread / len(stamps)) + 2 * asked.jitter_s / took_s
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(stamps)) / 1e9
    # what is lost or jittered leaves gaps of its own
    stalled = not noise and gap_s > max(RATE_BOUND * took_s, STALL_FRAMES / rate)
    return (len(stamps) - 1) * frame * 8 / took_s / arriving, saturated, noise, stalled


def _collect(receiver: socket.socket, stamps: list[int], wait_s: float) -> bool:
    """Take in what has arrived, waiting at most `wait_s` for it; whether anything had."""
    if not wait_readable([receiver], wait_s):
        return False
    with contextlib.suppress(BlockingIOError):
        while True:
            stamps.append(receive_stamped(receiver)[1])
    return True
