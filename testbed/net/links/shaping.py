"""Rate and queue of one sending interface: HTB with computed quantum and burst over a FIFO, or over a RED that marks.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Set with `tc`, read back over netlink (`links.shaped`): two independent ways to
the same setting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.clock import clock_here
from testbed.net.links.errors import LinkError
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.wan_links import ETHERNET_HEADER_BYTES

BURST_S = 0.002  # long enough for a late timer to catch up, short enough not to show in a 100 ms window
# Under the virtual clock no timer is late, but HTB looks again some hundreds of nanoseconds later at the soonest; what
# it lets go early is held where it comes in.
EXACT_BURST_S = 2e-6
MAX_QUANTUM_BYTES = 200_000
FILTER_PREFERENCE = 10
LEAST_SHARE = 0.001  # of the rate, for a class without a guarantee: HTB has none without any
REST_MINOR = 0x10  # of the class that takes what no other names; all there is where there are no classes
MOST_QUEUE_BYTES = 2**32 - 1  # of a queueing discipline that is limited in bytes


@dataclass(frozen=True)
class Shape:
    """Rate in bit/s of Ethernet frames and queue of one sending interface.

    The queue is limited in bytes, or in packets where those are given; ECN-capable packets that meet `ecn_bytes` or
    more are marked. Where there are classes, each has such a queue.
    """

    rate_bps: float
    queue_bytes: int
    queue_packets: int | None = None
    ecn_bytes: int | None = None
    classes: tuple[QueueClass, ...] = ()

    @classmethod
    def of(cls, direction: Direction) -> Shape:
        """What a WAN direction asks of the interface that sends into it."""
        queue = direction.queue_bytes, direction.queue_packets, direction.ecn_bytes
        return cls(direction.rate_bps, *queue, direction.classes)


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """Bytes that an idle shaper lets go before their time: what the rate gives while a timer is late.

    By the real clock two frames at least; under the virtual clock next to none, so that each waits in its queue until
    the wire is free.
    """
    if clock_here() == "free":
        return math.ceil(rate_bps / 8 * EXACT_BURST_S)
    return max(2 * (mtu + ETHERNET_HEADER_BYTES), math.ceil(rate_bps / 8 * BURST_S))


@dataclass(frozen=True)
class _Leaf:
    """One of HTB's classes that hold packets, as the kernel keeps it: bytes per second, bytes."""

    minor: int
    rate: int
    ceil: int
    priority: int
    quantum: int
    dscps: tuple[int, ...]


def _leaves(shape: Shape, mtu: int) -> list[_Leaf]:
    frame, whole = mtu + ETHERNET_HEADER_BYTES, max(1, round(shape.rate_bps / 8))
    if not shape.classes:
        return [_Leaf(REST_MINOR, whole, whole, 0, _quantum(whole, mtu), ())]
    least = min(max(entry.share, LEAST_SHARE) for entry in shape.classes)
    found, minor = [], REST_MINOR
    for entry in shape.classes:
        minor += bool(entry.dscps)
        share = max(entry.share, LEAST_SHARE)
        found.append(
            _Leaf(
                minor if entry.dscps else REST_MINOR,
                max(1, round(share * whole)),
                max(1, round(entry.limit * whole)),
                entry.priority,
                min(round(frame * share / least), MAX_QUANTUM_BYTES),
                entry.dscps,
            )
        )
    return found


def _quantum(rate: int, mtu: int) -> int:
    return min(max(mtu + ETHERNET_HEADER_BYTES, rate // 1000), MAX_QUANTUM_BYTES)


def shape_commands(interface: str, shape: Shape, mtu: int, now: Shape | None = None) -> list[str]:
    """The commands, for `tc`, that give `interface` its rate and queue, or change in place what they are now."""
    whole = max(1, round(shape.rate_bps / 8))
    burst = burst_bytes(shape.rate_bps, mtu)
    there = {leaf.minor for leaf in _leaves(now, mtu)} if now else set()
    leaves = {leaf.minor: leaf for leaf in _leaves(shape, mtu)}
    # `bps` is tc's word for bytes per second, the unit in which the kernel keeps it
    quantum = _quantum(whole, mtu)  # which HTB wants to be told of this class too, though it never uses it
    commands = [
        *([] if now else [f"qdisc add dev {interface} root handle 1: htb default {REST_MINOR:x}"]),
        f"class {'change' if now else 'add'} dev {interface} parent 1: classid 1:1"
        f" htb rate {whole}bps ceil {whole}bps burst {burst} cburst {burst} quantum {quantum}",
    ]
    if now and now.classes:
        commands.append(f"filter del dev {interface} parent 1: pref {FILTER_PREFERENCE}")
    commands += [f"qdisc del dev {interface} parent 1:{gone:x}" for gone in sorted(there - set(leaves))]
    commands += [f"class del dev {interface} classid 1:{gone:x}" for gone in sorted(there - set(leaves))]
    for leaf in leaves.values():
        known = leaf.minor in there
        own, most = (burst_bytes(rate * 8, mtu) for rate in (leaf.rate, leaf.ceil))
        if shape.classes:  # a guarantee is kept only as far as it can be saved up while others send
            own, most = (max(2 * (mtu + ETHERNET_HEADER_BYTES), burst) for burst in (own, most))
        commands.append(
            f"class {'change' if known else 'add'} dev {interface} parent 1:1 classid 1:{leaf.minor:x}"
            f" htb rate {leaf.rate}bps ceil {leaf.ceil}bps burst {own} cburst {most}"
            f" prio {leaf.priority} quantum {leaf.quantum}"
        )
        queue, kind = _queue_command(shape)
        changed = known and now is not None and _queue_command(now)[1] == kind
        commands.append(
            f"qdisc {'change' if changed else 'replace'} dev {interface} parent 1:{leaf.minor:x}"
            f" handle {kind}{leaf.minor:x}: {queue}"
        )
        commands += [
            f"filter add dev {interface} parent 1: protocol ip pref {FILTER_PREFERENCE} u32"
            f" match ip dsfield {dscp << 2:#x} 0xfc flowid 1:{leaf.minor:x}"
            for dscp in leaf.dscps
        ]
    return commands


def _queue_command(shape: Shape) -> tuple[str, str]:
    """(what to say to tc, a digit for queues of this kind)."""
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
        return f"red limit {shape.queue_bytes} {marking}", "3"
    if shape.queue_packets:
        return f"pfifo limit {shape.queue_packets}", "2"
    if shape.queue_bytes > MOST_QUEUE_BYTES:
        raise LinkError(
            f"a queue of {shape.queue_bytes} bytes: the kernel's hold at most {MOST_QUEUE_BYTES}; "
            "give the topology a smaller `queue`, or the network a size_scale"
        )
    return f"bfifo limit {shape.queue_bytes}", "1"


def kinds(shape: Shape) -> set[str]:
    """The kinds of queueing disciplines that make a shape."""
    return {"htb", _queue_command(shape)[0].split()[0]}
