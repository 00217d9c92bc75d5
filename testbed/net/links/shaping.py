"""Rate and queue of one sending interface: HTB over a FIFO or a RED that marks, set and read back.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Set with `tc`, read back over netlink (`links.shaped`): two independent ways to
the same setting.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from testbed.clock import clock_here
from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.interfaces import Discipline, HtbClass, disciplines, htb_classes, interfaces
from testbed.net.links.link_engine import compare_fields
from testbed.net.links.netlink import Netlink, attributes
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.links import ETHERNET_HEADER_BYTES

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


def qdisc_kinds(shape: Shape) -> set[str]:
    """The kinds of queueing disciplines that make a shape."""
    return {"htb", _queue_command(shape)[0].split()[0]}


_HTB_ALL = 0x00010001
_MAJOR = 0x00010000
_FLOW_ID = re.compile(r"flowid 1:([0-9a-f]+)")
_DSFIELD = re.compile(r"match 00([0-9a-f]{2})0000/00fc0000 at 0")
_FIFO = struct.Struct("=I")  # struct tc_fifo_qopt: limit
_RED_PARAMETERS = 1  # TCA_RED_PARMS
_RED = struct.Struct("=II")  # the beginning of struct tc_red_qopt: limit, qth_min
_RED_COUNTERS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked


@dataclass(frozen=True)
class ShapeCounters:
    """Counters of one shaped interface since it was set up, in frames and bytes. `waiting_...` are in the queue now."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int
    waiting_packets: int
    marked_packets: int = 0


def read_shape(netlink: Netlink, interface: str, filters: Mapping[int, set[int]] | None = None) -> Shape:
    """Rate and queue that the kernel holds for `interface`; LinkError when it is not shaped.

    filters: the DSCPs that lead to each class, from `read_filters`; without, classes are not looked at.
    """
    index, queues = _disciplines(netlink, [interface])[interface]
    return _shape_of(interface, htb_classes(netlink, index), queues, filters)


def _disciplines(netlink: Netlink, names: Iterable[str]) -> dict[str, tuple[int, list[Discipline]]]:
    """Index and queueing disciplines of each of these interfaces."""
    indexes = {link.name: link.index for link in interfaces(netlink)}
    on: dict[int, list[Discipline]] = {}
    for discipline in disciplines(netlink):
        on.setdefault(discipline.index, []).append(discipline)
    found = {}
    for name in names:
        if name not in indexes:
            raise LinkError(f"{name}: no such interface")
        found[name] = indexes[name], on.get(indexes[name], [])
    return found


def read_filters(shown: str) -> dict[int, set[int]]:
    """By a class's number the DSCPs that lead to it, from what `tc filter show` printed of one interface."""
    found: dict[int, set[int]] = {}
    minor = None
    for line in shown.splitlines():
        if flow := _FLOW_ID.search(line):
            minor = int(flow[1], 16)
        if (match := _DSFIELD.search(line)) and minor is not None:
            found.setdefault(minor, set()).add(int(match[1], 16) >> 2)
    return found


def _shape_of(
    interface: str,
    rates: Mapping[int, HtbClass],
    queues: Iterable[Discipline],
    filters: Mapping[int, set[int]] | None,
) -> Shape:
    leaves = {queue.parent: queue for queue in queues if _is_queue(queue)}
    rest = leaves.get(_MAJOR | REST_MINOR)
    if _HTB_ALL not in rates or rest is None:
        raise LinkError(f"{interface}: no HTB class with a queue found on it")
    whole = rates[_HTB_ALL].rate
    classes: tuple[QueueClass, ...] = ()
    if filters is not None and len(leaves) > 1:
        classes = tuple(
            QueueClass(
                f"1:{handle & 0xFFFF:x}",
                tuple(sorted(filters.get(handle & 0xFFFF, ()))),
                priority=rates[handle].prio,
                share=rates[handle].rate / whole,
                limit=rates[handle].ceil / whole,
            )
            for handle in sorted(leaves)
            if handle in rates
        )
    return _with_queue(float(whole) * 8, rest, classes)


def _with_queue(rate_bps: float, queue: Discipline, classes: tuple[QueueClass, ...]) -> Shape:
    if queue.kind == "red":
        limit, least = _RED.unpack_from(dict(attributes(queue.options))[_RED_PARAMETERS])
        return Shape(rate_bps, limit, ecn_bytes=least, classes=classes)
    (limit,) = _FIFO.unpack_from(queue.options)
    if queue.kind == "pfifo":
        return Shape(rate_bps, 0, queue_packets=limit, classes=classes)
    return Shape(rate_bps, limit, classes=classes)


def named(
    found: tuple[QueueClass, ...], asked: tuple[QueueClass, ...], rate_bps: float
) -> tuple[QueueClass, ...]:
    """What was read back as it was asked for, if the kernel's whole bytes per second say the same; else as found."""
    by_dscps = {entry.dscps: entry for entry in found}
    whole = rate_bps / 8
    if len(by_dscps) != len(asked):
        return found
    for entry in asked:
        held = by_dscps.get(tuple(sorted(entry.dscps)))
        wanted = max(entry.share, LEAST_SHARE), entry.limit
        if held is None or held.priority != entry.priority:
            return found
        if any(abs(a - b) * whole > 1.5 for a, b in zip((held.share, held.limit), wanted, strict=True)):
            return found
    return asked


def verify_shapes(
    netlink: Netlink, asked: Mapping[str, Shape], mtu: int, on: Mapping[str, tuple[int, list[Discipline]]]
) -> None:
    """Read shapes back and compare; SettingMismatch names what differs. LinkError.

    The keys are interfaces of one namespace; `on` has the index of each, and its queueing disciplines.
    """
    for interface, shape in asked.items():
        if interface not in on:
            raise LinkError(f"{interface}: no such interface")
        index, queues = on[interface]
        classes = htb_classes(netlink, index)
        compare_fields(interface, shape, _shape_of(interface, classes, queues, None))
        compare_classes(interface, shape_commands(interface, shape, mtu), classes)


def verify_classes(netlink: Netlink, interface: str, shape: Shape, mtu: int) -> None:
    """Read all of HTB's classes on an interface back: each has what the shape's commands give it. SettingMismatch."""
    indexes = {link.name: link.index for link in interfaces(netlink)}
    if interface not in indexes:
        raise LinkError(f"{interface}: no such interface")
    classes = htb_classes(netlink, indexes[interface])
    compare_classes(interface, shape_commands(interface, shape, mtu), classes)


def compare_classes(interface: str, commands: Iterable[str], found: Mapping[int, HtbClass]) -> None:
    """HTB's classes as the kernel has them against the commands that make them; SettingMismatch at the first that is
    not as asked, or missing, or asked for by nobody."""
    asked = {}
    for command in commands:
        words = command.split()
        if words[0] == "class" and words[1] in ("add", "change"):
            told = dict(
                zip(words[words.index("htb") + 1 :: 2], words[words.index("htb") + 2 :: 2], strict=True)
            )
            major, minor = words[words.index("classid") + 1].split(":")
            asked[int(major, 16) << 16 | int(minor, 16)] = HtbClass.told(told)
    for handle in sorted({*asked, *found}):
        name = f"{interface}: class {handle >> 16:x}:{handle & 0xFFFF:x}"
        wanted, held = asked.get(handle), found.get(handle)
        if wanted is None or held is None:
            raise SettingMismatch(name, "class", "there" if wanted else "none", "there" if held else "none")
        for field in fields(HtbClass):
            one, other = getattr(wanted, field.name), getattr(held, field.name)
            if field.name == "quantum" and handle == _HTB_ALL:
                continue  # which an inner class never uses, and does not take anew
            # tc rounds bursts down to the kernel's ticks
            if abs(one - other) > (1 if field.name in ("burst", "cburst") else 0):
                unit = " in ticks of 64 ns" if field.name in ("burst", "cburst") else ""
                raise SettingMismatch(name, field.name + unit, one, other)


def read_counters(netlink: Netlink, names: Iterable[str]) -> dict[str, ShapeCounters]:
    """Counters of the shapers of these interfaces of one namespace; of each the sums over its queues."""
    return {name: _counters(name, on) for name, (_, on) in _disciplines(netlink, names).items()}


def _counters(interface: str, on: Iterable[Discipline]) -> ShapeCounters:
    queues = [discipline for discipline in on if _is_queue(discipline)]
    if not queues:
        raise LinkError(f"{interface}: its shaper is gone")
    return ShapeCounters(
        sent_bytes=sum(queue.sent_bytes for queue in queues),
        sent_packets=sum(queue.sent_packets for queue in queues),
        dropped_packets=sum(queue.dropped_packets for queue in queues),
        waiting_bytes=sum(queue.waiting_bytes for queue in queues),
        waiting_packets=sum(queue.waiting_packets for queue in queues),
        marked_packets=sum(
            _RED_COUNTERS.unpack_from(queue.own)[3] for queue in queues if queue.kind == "red"
        ),
    )


def _is_queue(discipline: Discipline) -> bool:
    """Whether a queueing discipline is one below HTB's classes."""
    return discipline.kind in ("bfifo", "pfifo", "red") and discipline.parent >> 16 == _MAJOR >> 16
