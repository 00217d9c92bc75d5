"""Traffic shaping of one sending interface: HTB with a FIFO or a marking RED queue, set and read back.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Settings are made with `tc` and read back over netlink, two independent paths to the
same setting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.clock import clock_here
from testbed.net.errors import LinkError
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES, Direction, QueueClass

BURST_S = 0.002  # long enough for a late timer to catch up, too short to show in a 100 ms window
# Under the virtual clock no timer is late, but HTB reschedules itself only some hundreds of nanoseconds later. Frames
# that it releases early are held on ingress.
VIRTUAL_CLOCK_BURST_S = 2e-6
MAX_QUANTUM_BYTES = 200_000
FILTER_PREFERENCE = 10
MIN_SHARE = 0.001  # share of the rate guaranteed to a class without a guarantee, since HTB requires one
DEFAULT_CLASS_MINOR = 0x10  # the class for unmatched packets, which is the only one if there are no classes
MAX_QUEUE_BYTES = 2**32 - 1  # maximum of a qdisc that is limited in bytes


@dataclass(frozen=True)
class Shape:
    """Rate and queue of one sending interface.

    The rate counts bits of Ethernet frames. The queue is limited in bytes, or in packets if `queue_packets` is given.
    ECN-capable packets that find `ecn_bytes` or more in the queue are marked. If there are classes, each has its own
    queue.
    """

    rate_bps: float
    queue_bytes: int
    queue_packets: int | None = None
    ecn_bytes: int | None = None
    classes: tuple[QueueClass, ...] = ()

    @classmethod
    def from_direction(cls, direction: Direction) -> Shape:
        """Return the shape of the interface that sends into a WAN direction."""
        return cls(
            direction.rate_bps,
            direction.queue_bytes,
            direction.queue_packets,
            direction.ecn_bytes,
            direction.classes,
        )


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """Return the burst of a shaper in bytes: the data that accumulates while a timer is late.

    Under the real clock it is at least two frames. Under the virtual clock it is nearly zero, so that each frame waits
    in its queue until the wire is free.
    """
    if clock_here() == "free":
        return math.ceil(rate_bps / 8 * VIRTUAL_CLOCK_BURST_S)
    return max(2 * (mtu + ETHERNET_HEADER_BYTES), math.ceil(rate_bps / 8 * BURST_S))


@dataclass(frozen=True)
class _LeafClass:
    """A leaf class of HTB; rates in bytes per second, quantum in bytes."""

    minor: int
    rate: int
    ceil: int
    priority: int
    quantum: int
    dscps: tuple[int, ...]


def _leaf_classes(shape: Shape, mtu: int) -> list[_LeafClass]:
    frame, whole = mtu + ETHERNET_HEADER_BYTES, max(1, round(shape.rate_bps / 8))
    if not shape.classes:
        return [_LeafClass(DEFAULT_CLASS_MINOR, whole, whole, 0, _quantum(whole, mtu), ())]
    least = min(max(entry.share, MIN_SHARE) for entry in shape.classes)
    found, minor = [], DEFAULT_CLASS_MINOR
    for entry in shape.classes:
        minor += bool(entry.dscps)
        share = max(entry.share, MIN_SHARE)
        found.append(
            _LeafClass(
                minor if entry.dscps else DEFAULT_CLASS_MINOR,
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
    """Return the `tc` commands that shape an interface, or change its shape in place.

    Args:
        interface: Name of the interface.
        shape: The requested shape.
        mtu: MTU of the interface in bytes.
        now: The current shape; None if the interface is not shaped yet.
    """
    whole = max(1, round(shape.rate_bps / 8))
    burst = burst_bytes(shape.rate_bps, mtu)
    existing = {leaf.minor for leaf in _leaf_classes(now, mtu)} if now else set()
    leaves = {leaf.minor: leaf for leaf in _leaf_classes(shape, mtu)}
    # in tc `bps` means bytes per second, which is the kernel's unit
    quantum = _quantum(whole, mtu)  # HTB requires it for this class, too, but never uses it
    commands = [
        *([] if now else [f"qdisc add dev {interface} root handle 1: htb default {DEFAULT_CLASS_MINOR:x}"]),
        f"class {'change' if now else 'add'} dev {interface} parent 1: classid 1:1"
        f" htb rate {whole}bps ceil {whole}bps burst {burst} cburst {burst} quantum {quantum}",
    ]
    if now and now.classes:
        commands.append(f"filter del dev {interface} parent 1: pref {FILTER_PREFERENCE}")
    removed = sorted(existing - set(leaves))
    commands += [f"qdisc del dev {interface} parent 1:{minor:x}" for minor in removed]
    commands += [f"class del dev {interface} classid 1:{minor:x}" for minor in removed]
    for leaf in leaves.values():
        exists = leaf.minor in existing
        burst, cburst = (burst_bytes(rate * 8, mtu) for rate in (leaf.rate, leaf.ceil))
        if shape.classes:  # a class gets its guaranteed rate only if it can save up tokens while others send
            burst, cburst = (max(2 * (mtu + ETHERNET_HEADER_BYTES), each) for each in (burst, cburst))
        commands.append(
            f"class {'change' if exists else 'add'} dev {interface} parent 1:1 classid 1:{leaf.minor:x}"
            f" htb rate {leaf.rate}bps ceil {leaf.ceil}bps burst {burst} cburst {cburst}"
            f" prio {leaf.priority} quantum {leaf.quantum}"
        )
        queue, handle_prefix = _queue_command(shape)
        changed = exists and now is not None and _queue_command(now)[1] == handle_prefix
        commands.append(
            f"qdisc {'change' if changed else 'replace'} dev {interface} parent 1:{leaf.minor:x}"
            f" handle {handle_prefix}{leaf.minor:x}: {queue}"
        )
        commands += [
            f"filter add dev {interface} parent 1: protocol ip pref {FILTER_PREFERENCE} u32"
            f" match ip dsfield {dscp << 2:#x} 0xfc flowid 1:{leaf.minor:x}"
            for dscp in leaf.dscps
        ]
    return commands


def _queue_command(shape: Shape) -> tuple[str, str]:
    """Return the qdisc and its options for tc, and the first digit of the handles of qdiscs of this kind."""
    if shape.ecn_bytes:
        if shape.queue_packets:
            raise LinkError(
                "queue_packets: the kernel can mark only in queues that are limited in bytes: use queue"
            )
        # RED as a step function: its average follows the queue within two packets, and from ecn_bytes on every packet
        # is marked. With nodrop, packets that cannot be marked are dropped only when the queue is full.
        step = shape.ecn_bytes
        bandwidth_bps = min(round(shape.rate_bps), 32_000_000_000)  # tc has 32 bits for bytes per second
        marking = f"min {step} max {step + 1} avpkt {step} burst 1 probability 1 bandwidth {bandwidth_bps}bit"
        marking += " ecn nodrop"
        return f"red limit {shape.queue_bytes} {marking}", "3"
    if shape.queue_packets:
        return f"pfifo limit {shape.queue_packets}", "2"
    if shape.queue_bytes > MAX_QUEUE_BYTES:
        raise LinkError(
            f"queue: got {shape.queue_bytes} bytes, expected at most {MAX_QUEUE_BYTES}, the kernel's limit; "
            "give the topology a smaller `queue`, or the network a size_scale"
        )
    return f"bfifo limit {shape.queue_bytes}", "1"


def qdisc_kinds(shape: Shape) -> set[str]:
    """Return the kinds of qdiscs that implement a shape."""
    return {"htb", _queue_command(shape)[0].split()[0]}
