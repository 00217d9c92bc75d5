"""Rate and queue of one sending interface: HTB with computed quantum and burst over a byte-limited FIFO.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Set with `tc`, read back over netlink: two independent ways to the same setting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyroute2 import IPRoute

from testbed.links.errors import LinkError, SettingMismatch
from testbed.virtual import clock_here

ETHERNET_HEADER_BYTES = 14
BURST_S = 0.002  # long enough for a late timer to catch up, short enough not to show in a 100 ms window
EXACT_BURST_S = 2e-6  # under the virtual clock no timer is late; its kernel's finest is 0.5 us
MAX_QUANTUM_BYTES = 200_000


@dataclass(frozen=True)
class Shape:
    """Rate in bit/s of Ethernet frames and queue limit in bytes of one sending interface."""

    rate_bps: float
    queue_bytes: int


@dataclass(frozen=True)
class ShapeCounters:
    """Counters of one shaped interface since it was set up: frames and bytes sent, frames dropped, bytes waiting."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int
    waiting_packets: int


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """Bytes that an idle shaper lets through at once: two frames, or what the rate gives while a timer is late."""
    late_s = EXACT_BURST_S if clock_here() == "free" else BURST_S
    return max(2 * (mtu + ETHERNET_HEADER_BYTES), math.ceil(rate_bps / 8 * late_s))


def shape_commands(interface: str, shape: Shape, mtu: int) -> list[str]:
    """The commands, for `tc`, that give `interface` its rate and queue."""
    frame = mtu + ETHERNET_HEADER_BYTES
    rate_bytes = max(1, round(shape.rate_bps / 8))
    burst = burst_bytes(shape.rate_bps, mtu)
    quantum = min(max(frame, rate_bytes // 1000), MAX_QUANTUM_BYTES)
    # `bps` is tc's word for bytes per second, the unit in which the kernel keeps it
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {rate_bytes}bps ceil {rate_bytes}bps"
        f" burst {burst} cburst {burst} quantum {quantum}",
        f"qdisc add dev {interface} parent 1:1 handle 10: bfifo limit {shape.queue_bytes}",
    ]


def read_shape(ipr: IPRoute, interface: str) -> Shape:
    """Rate and queue that the kernel holds for `interface`; LinkError when it is not shaped."""
    index = _index(ipr, interface)
    rate = limit = None
    for message in ipr.get_classes(index=index):
        options = message.get_attr("TCA_OPTIONS")
        if message.get_attr("TCA_KIND") == "htb" and options is not None:
            wide = options.get_attr("TCA_HTB_RATE64")
            rate = wide if wide is not None else options.get_attr("TCA_HTB_PARMS")["rate"]
    for message in ipr.get_qdiscs(index=index):
        if message.get_attr("TCA_KIND") == "bfifo":
            limit = _fifo_limit(message.get_attr("TCA_OPTIONS"))
    if rate is None or limit is None:
        raise LinkError(f"{interface}: no HTB class with a byte FIFO found on it")
    return Shape(rate_bps=float(rate) * 8, queue_bytes=limit)


def verify_shape(ipr: IPRoute, interface: str, asked: Shape) -> Shape:
    """Read the shape back and compare; SettingMismatch names what differs. The kernel keeps whole bytes per second."""
    found = read_shape(ipr, interface)
    if abs(found.rate_bps - asked.rate_bps) > max(8.0, asked.rate_bps * 1e-6):
        raise SettingMismatch(interface, "rate_bps", asked.rate_bps, found.rate_bps)
    if found.queue_bytes != asked.queue_bytes:
        raise SettingMismatch(interface, "queue_bytes", asked.queue_bytes, found.queue_bytes)
    return found


def read_counters(ipr: IPRoute, interface: str) -> ShapeCounters:
    """Counters of the shaper's queue."""
    for message in ipr.get_qdiscs(index=_index(ipr, interface)):
        if message.get_attr("TCA_KIND") == "bfifo":
            stats = message.get_attr("TCA_STATS2")
            basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
            return ShapeCounters(
                sent_bytes=int(basic["bytes"]),
                sent_packets=int(basic["packets"]),
                dropped_packets=int(queue["drops"]),
                waiting_bytes=int(queue["backlog"]),
                waiting_packets=int(queue["qlen"]),
            )
    raise LinkError(f"{interface}: its shaper is gone")


def _index(ipr: IPRoute, interface: str) -> int:
    found = ipr.link_lookup(ifname=interface)
    if not found:
        raise LinkError(f"{interface}: no such interface")
    return int(found[0])


def _fifo_limit(options: object) -> int:
    # pyroute2 hands a FIFO's options over as the raw bytes of struct tc_fifo_qopt, written in hexadecimal
    if isinstance(options, str):
        options = bytes.fromhex(options.replace(":", ""))
    if isinstance(options, (bytes, bytearray)):
        return int.from_bytes(options[:4], "little")
    raise LinkError(f"cannot read a FIFO's limit from {options!r}")
