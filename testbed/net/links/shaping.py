"""Traffic shaping of one sending interface: HTB with a FIFO or a marking RED queue, set and read back.

HTB counts Ethernet frames without preamble and checksum. Its defaults lose several percent above 1 Gbit/s, so quantum,
burst and cburst are always given. Settings are made with `tc` and read back over netlink, two independent paths to the
same setting.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from testbed.clock import clock_here
from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.interfaces import HtbClass, Qdisc, read_htb_classes, read_interfaces, read_qdiscs
from testbed.net.links.link_engine import compare_fields
from testbed.net.links.netlink import Netlink, parse_attributes
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.links import ETHERNET_HEADER_BYTES

BURST_S = 0.002  # long enough for a late timer to catch up, too short to show in a 100 ms window
# Under the virtual clock no timer is late, but HTB reschedules itself only some hundreds of nanoseconds later. Frames
# that it releases early are held on ingress.
VIRTUAL_CLOCK_BURST_S = 2e-6
MAX_QUANTUM_BYTES = 200_000
FILTER_PREFERENCE = 10
MIN_SHARE = 0.001  # of the rate, for a class without a guarantee: HTB requires one
DEFAULT_CLASS_MINOR = 0x10  # of the class for unmatched packets, which is the only one without classes
MAX_QUEUE_BYTES = 2**32 - 1  # of a qdisc that is limited in bytes


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
    """Return the burst of a shaper in bytes: what accumulates while a timer is late.

    Under the real clock it is at least two frames. Under the virtual clock it is next to nothing, so that each frame
    waits in its queue until the wire is free.
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
        if shape.classes:  # a class keeps its guarantee only if it can save up tokens while others send
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


_ROOT_CLASS = 0x00010001
_MAJOR = 0x00010000
_FLOW_ID = re.compile(r"flowid 1:([0-9a-f]+)")
_DSFIELD = re.compile(r"match 00([0-9a-f]{2})0000/00fc0000 at 0")
_FIFO = struct.Struct("=I")  # struct tc_fifo_qopt: limit
_RED_PARAMETERS = 1  # TCA_RED_PARMS
_RED = struct.Struct("=II")  # start of struct tc_red_qopt: limit, qth_min
_RED_COUNTERS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked


@dataclass(frozen=True)
class ShapeCounters:
    """Counters of one shaped interface since it was set up; `waiting_*` is what is in the queue now."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int
    waiting_packets: int
    marked_packets: int = 0


def read_shape(netlink: Netlink, interface: str, filters: Mapping[int, set[int]] | None = None) -> Shape:
    """Read the shape of an interface from the kernel.

    Args:
        netlink: A socket in the namespace of the interface.
        interface: Name of the interface.
        filters: The DSCPs of each class, from `parse_dscp_filters`. Without them, classes are not read.

    Raises:
        LinkError: The interface does not exist or is not shaped.
    """
    index, queues = _read_qdiscs_of(netlink, [interface])[interface]
    return _decode_shape(interface, read_htb_classes(netlink, index), queues, filters)


def _read_qdiscs_of(netlink: Netlink, names: Iterable[str]) -> dict[str, tuple[int, list[Qdisc]]]:
    """Return the index and the qdiscs of each of these interfaces."""
    indexes = {link.name: link.index for link in read_interfaces(netlink)}
    by_index: dict[int, list[Qdisc]] = {}
    for qdisc in read_qdiscs(netlink):
        by_index.setdefault(qdisc.index, []).append(qdisc)
    found = {}
    for name in names:
        if name not in indexes:
            raise LinkError(f"{name}: no such interface")
        found[name] = indexes[name], by_index.get(indexes[name], [])
    return found


def parse_dscp_filters(shown: str) -> dict[int, set[int]]:
    """Return the DSCPs of each class by its minor number, from the output of `tc filter show` for one interface."""
    found: dict[int, set[int]] = {}
    minor = None
    for line in shown.splitlines():
        if flow := _FLOW_ID.search(line):
            minor = int(flow[1], 16)
        if (match := _DSFIELD.search(line)) and minor is not None:
            found.setdefault(minor, set()).add(int(match[1], 16) >> 2)
    return found


def _decode_shape(
    interface: str,
    rates: Mapping[int, HtbClass],
    queues: Iterable[Qdisc],
    filters: Mapping[int, set[int]] | None,
) -> Shape:
    leaves = {queue.parent: queue for queue in queues if _is_class_queue(queue)}
    default = leaves.get(_MAJOR | DEFAULT_CLASS_MINOR)
    if _ROOT_CLASS not in rates or default is None:
        raise LinkError(f"{interface}: has no HTB class with a queue")
    whole = rates[_ROOT_CLASS].rate
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
    return _decode_queue(float(whole) * 8, default, classes)


def _decode_queue(rate_bps: float, queue: Qdisc, classes: tuple[QueueClass, ...]) -> Shape:
    if queue.kind == "red":
        limit, least = _RED.unpack_from(dict(parse_attributes(queue.options))[_RED_PARAMETERS])
        return Shape(rate_bps, limit, ecn_bytes=least, classes=classes)
    (limit,) = _FIFO.unpack_from(queue.options)
    if queue.kind == "pfifo":
        return Shape(rate_bps, 0, queue_packets=limit, classes=classes)
    return Shape(rate_bps, limit, classes=classes)


def match_requested_classes(
    found: tuple[QueueClass, ...], asked: tuple[QueueClass, ...], rate_bps: float
) -> tuple[QueueClass, ...]:
    """Return the requested classes if those read back equal them up to the kernel's rounding, else those read back.

    Args:
        found: Classes read back; the kernel knows neither their names nor fractions of a byte per second.
        asked: The requested classes.
        rate_bps: Rate of the link.
    """
    by_dscps = {entry.dscps: entry for entry in found}
    whole = rate_bps / 8
    if len(by_dscps) != len(asked):
        return found
    for entry in asked:
        held = by_dscps.get(tuple(sorted(entry.dscps)))
        wanted = max(entry.share, MIN_SHARE), entry.limit
        if held is None or held.priority != entry.priority:
            return found
        if any(abs(a - b) * whole > 1.5 for a, b in zip((held.share, held.limit), wanted, strict=True)):
            return found
    return asked


def verify_shapes(
    netlink: Netlink, asked: Mapping[str, Shape], mtu: int, on: Mapping[str, tuple[int, list[Qdisc]]]
) -> None:
    """Compare the shapes of interfaces with the requested ones.

    Args:
        netlink: A socket in the namespace of the interfaces.
        asked: The requested shapes by interface.
        mtu: MTU of the interfaces in bytes.
        on: The index and the qdiscs of each interface.

    Raises:
        SettingMismatch: A setting differs.
        LinkError: An interface does not exist or is not shaped.
    """
    for interface, shape in asked.items():
        if interface not in on:
            raise LinkError(f"{interface}: no such interface")
        index, queues = on[interface]
        classes = read_htb_classes(netlink, index)
        compare_fields(interface, shape, _decode_shape(interface, classes, queues, None))
        compare_classes(interface, shape_commands(interface, shape, mtu), classes)


def verify_classes(netlink: Netlink, interface: str, shape: Shape, mtu: int) -> None:
    """Compare the HTB classes of an interface with those that the shape's commands create.

    Raises:
        SettingMismatch: A setting differs.
        LinkError: The interface does not exist.
    """
    indexes = {link.name: link.index for link in read_interfaces(netlink)}
    if interface not in indexes:
        raise LinkError(f"{interface}: no such interface")
    classes = read_htb_classes(netlink, indexes[interface])
    compare_classes(interface, shape_commands(interface, shape, mtu), classes)


def compare_classes(interface: str, commands: Iterable[str], found: Mapping[int, HtbClass]) -> None:
    """Compare the kernel's HTB classes with the `tc` commands that create them.

    Raises:
        SettingMismatch: A class differs, is missing, or was not requested.
    """
    asked = {}
    for command in commands:
        words = command.split()
        if words[0] == "class" and words[1] in ("add", "change"):
            first = words.index("htb") + 1
            options = dict(zip(words[first::2], words[first + 1 :: 2], strict=True))
            major, minor = words[words.index("classid") + 1].split(":")
            asked[int(major, 16) << 16 | int(minor, 16)] = HtbClass.from_tc_options(options)
    for handle in sorted({*asked, *found}):
        name = f"{interface}: class {handle >> 16:x}:{handle & 0xFFFF:x}"
        wanted, held = asked.get(handle), found.get(handle)
        if wanted is None or held is None:
            raise SettingMismatch(
                name, "class", "present" if wanted else "none", "present" if held else "none"
            )
        for field in fields(HtbClass):
            one, other = getattr(wanted, field.name), getattr(held, field.name)
            if field.name == "quantum" and handle == _ROOT_CLASS:
                continue  # an inner class does not use its quantum, and ignores changes of it
            is_burst = field.name in ("burst", "cburst")
            if abs(one - other) > (1 if is_burst else 0):  # tc rounds bursts down to the kernel's ticks
                unit = " in ticks of 64 ns" if is_burst else ""
                raise SettingMismatch(name, field.name + unit, one, other)


def read_counters(netlink: Netlink, names: Iterable[str]) -> dict[str, ShapeCounters]:
    """Read the counters of shaped interfaces in one namespace, each summed over its queues."""
    return {name: _counters(name, on) for name, (_, on) in _read_qdiscs_of(netlink, names).items()}


def _counters(interface: str, on: Iterable[Qdisc]) -> ShapeCounters:
    queues = [qdisc for qdisc in on if _is_class_queue(qdisc)]
    if not queues:
        raise LinkError(f"{interface}: the shaper was removed")
    return ShapeCounters(
        sent_bytes=sum(queue.sent_bytes for queue in queues),
        sent_packets=sum(queue.sent_packets for queue in queues),
        dropped_packets=sum(queue.dropped_packets for queue in queues),
        waiting_bytes=sum(queue.waiting_bytes for queue in queues),
        waiting_packets=sum(queue.waiting_packets for queue in queues),
        marked_packets=sum(
            _RED_COUNTERS.unpack_from(queue.xstats)[3] for queue in queues if queue.kind == "red"
        ),
    )


def _is_class_queue(qdisc: Qdisc) -> bool:
    return qdisc.kind in ("bfifo", "pfifo", "red") and qdisc.parent >> 16 == _MAJOR >> 16
