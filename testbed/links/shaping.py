"""Rate and queue of one sending interface: HTB with computed quantum and burst over a FIFO, or over a RED that marks.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Set with `tc`, read back over netlink: two independent ways to the same setting.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from testbed.config.wan import ETHERNET_HEADER_BYTES
from testbed.directions import Direction
from testbed.links.errors import LinkError
from testbed.links.settings import compare_fields
from testbed.virtual import clock_here

BURST_S = 0.002  # long enough for a late timer to catch up, short enough not to show in a 100 ms window
EXACT_BURST_S = 2e-6  # under the virtual clock no timer is late; its kernel's finest is 0.5 us
MAX_QUANTUM_BYTES = 200_000
_HTB_CLASS = 0x00010001
_FIFO = struct.Struct("=I")  # struct tc_fifo_qopt: limit
_RED = struct.Struct("=II")  # the beginning of struct tc_red_qopt: limit, qth_min
_RED_COUNTERS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked
_NETLINK_HEADER_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """Rate in bit/s of Ethernet frames and queue of one sending interface.

    The queue is limited in bytes, or in packets where those are given; ECN-capable packets that meet `ecn_bytes` or
    more are marked.
    """

    rate_bps: float
    queue_bytes: int
    queue_packets: int | None = None
    ecn_bytes: int | None = None

    @classmethod
    def of(cls, direction: Direction) -> Shape:
        """What a WAN direction asks of the interface that sends into it."""
        return cls(direction.rate_bps, direction.queue_bytes, direction.queue_packets, direction.ecn_bytes)


@dataclass(frozen=True)
class ShapeCounters:
    """Counters of one shaped interface since it was set up, in frames and bytes. `waiting_...` are in the queue now."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int
    waiting_packets: int
    marked_packets: int = 0


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """Bytes that an idle shaper lets through at once: two frames, or what the rate gives while a timer is late."""
    late_s = EXACT_BURST_S if clock_here() == "free" else BURST_S
    return max(2 * (mtu + ETHERNET_HEADER_BYTES), math.ceil(rate_bps / 8 * late_s))


def shape_commands(interface: str, shape: Shape, mtu: int, now: Shape | None = None) -> list[str]:
    """The commands, for `tc`, that give `interface` its rate and queue, or change in place what they are now."""
    frame = mtu + ETHERNET_HEADER_BYTES
    rate_bytes = max(1, round(shape.rate_bps / 8))
    burst = burst_bytes(shape.rate_bps, mtu)
    quantum = min(max(frame, rate_bytes // 1000), MAX_QUANTUM_BYTES)
    queue, handle = _queue_command(shape)
    queue_verb = "change" if now and _queue_command(now)[1] == handle else "replace"
    # `bps` is tc's word for bytes per second, the unit in which the kernel keeps it
    return [
        *([] if now else [f"qdisc add dev {interface} root handle 1: htb default 1"]),
        f"class {'change' if now else 'add'} dev {interface} parent 1: classid 1:1"
        f" htb rate {rate_bytes}bps ceil {rate_bytes}bps burst {burst} cburst {burst} quantum {quantum}",
        f"qdisc {queue_verb} dev {interface} parent 1:1 handle {handle} {queue}",
    ]


def _queue_command(shape: Shape) -> tuple[str, str]:
    """(what to say to tc, the handle of queues of this kind)."""
    if shape.ecn_bytes:
        if shape.queue_packets:
            raise LinkError(
                "queue_packets: the kernel can mark only in queues that are limited in bytes: use queue"
            )
        # RED as a step: its average follows the queue within two packets, and from ecn_bytes on everything is marked;
        # nodrop: what cannot be marked is dropped only when the queue is full.
        step = shape.ecn_bytes
        bandwidth_bps = min(round(shape.rate_bps), 32_000_000_000)  # tc has 32 bits for bytes per second
        marking = f"min {step} max {step + 1} avpkt {step} burst 1 probability 1 bandwidth {bandwidth_bps}bit"
        marking += " ecn nodrop"
        return f"red limit {shape.queue_bytes} {marking}", "30:"
    if shape.queue_packets:
        return f"pfifo limit {shape.queue_packets}", "20:"
    return f"bfifo limit {shape.queue_bytes}", "10:"


def read_shape(ipr: IPRoute, interface: str) -> Shape:
    """Rate and queue that the kernel holds for `interface`; LinkError when it is not shaped."""
    index = _index(ipr, interface)
    return _shape(ipr, interface, index, _queue(ipr.get_qdiscs(index=index)))


def read_shapes(ipr: IPRoute, interfaces: Iterable[str]) -> dict[str, Shape]:
    """As `read_shape`, of many interfaces of one namespace."""
    indexes = {link.get_attr("IFLA_IFNAME"): link["index"] for link in ipr.get_links()}
    queues: dict[int, list[Any]] = {}
    for message in ipr.get_qdiscs():
        queues.setdefault(message["index"], []).append(message)
    shapes = {}
    for name in interfaces:
        if name not in indexes:
            raise LinkError(f"{name}: no such interface")
        shapes[name] = _shape(ipr, name, indexes[name], _queue(queues.get(indexes[name], [])))
    return shapes


def _shape(ipr: IPRoute, interface: str, index: int, message: Any) -> Shape:
    """The shape of an interface whose queue is told by `message`."""
    rate = None
    for found in ipr.get_classes(index=index):
        options = found.get_attr("TCA_OPTIONS")
        if found.get_attr("TCA_KIND") == "htb" and options is not None:
            wide = options.get_attr("TCA_HTB_RATE64")
            rate = wide if wide is not None else options.get_attr("TCA_HTB_PARMS")["rate"]
    if rate is None or message is None:
        raise LinkError(f"{interface}: no HTB class with a queue found on it")
    kind, options = message.get_attr("TCA_KIND"), message.get_attr("TCA_OPTIONS")
    rate_bps = float(rate) * 8
    if kind == "red":
        limit, least = _RED.unpack_from(_raw(options), _NETLINK_HEADER_BYTES)
        return Shape(rate_bps, limit, ecn_bytes=least)
    (limit,) = (options["limit"],) if isinstance(options, dict) else _FIFO.unpack_from(_raw(options))
    return Shape(rate_bps, 0, queue_packets=limit) if kind == "pfifo" else Shape(rate_bps, limit)


def verify_shapes(ipr: IPRoute, asked: Mapping[str, Shape]) -> None:
    """Read shapes back and compare; SettingMismatch names what differs. The keys are interfaces of one namespace."""
    for interface, found in read_shapes(ipr, asked).items():
        compare_fields(interface, asked[interface], found)


def read_counters(ipr: IPRoute, interface: str) -> ShapeCounters:
    """Counters of the shaper's queue."""
    message = _queue(ipr.get_qdiscs(index=_index(ipr, interface)))
    if message is None:
        raise LinkError(f"{interface}: its shaper is gone")
    stats = message.get_attr("TCA_STATS2")
    basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
    marked = 0
    if message.get_attr("TCA_KIND") == "red":
        marked = _RED_COUNTERS.unpack_from(_raw(stats.get_attr("TCA_STATS_APP")))[3]
    return ShapeCounters(
        sent_bytes=int(basic["bytes"]),
        sent_packets=int(basic["packets"]),
        dropped_packets=int(queue["drops"]),
        waiting_bytes=int(queue["backlog"]),
        waiting_packets=int(queue["qlen"]),
        marked_packets=marked,
    )


def _queue(messages: Iterable[Any]) -> Any:
    """The queueing discipline below HTB's class, of all those of an interface; None if there is none."""
    for message in messages:
        if message.get_attr("TCA_KIND") in ("bfifo", "pfifo", "red") and message["parent"] == _HTB_CLASS:
            return message
    return None


def _index(ipr: IPRoute, interface: str) -> int:
    found = ipr.link_lookup(ifname=interface)
    if not found:
        raise LinkError(f"{interface}: no such interface")
    return int(found[0])


def _raw(options: object) -> bytes:
    # pyroute2 hands what it has no decoder for over as hexadecimal text
    if isinstance(options, str):
        return bytes.fromhex(options.replace(":", ""))
    if isinstance(options, (bytes, bytearray)):
        return bytes(options)
    raise LinkError(f"cannot read a queue's settings from {options!r}")
