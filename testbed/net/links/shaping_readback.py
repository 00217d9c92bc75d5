"""Read-back of shaped interfaces over netlink: HTB classes, queues and counters, compared with the requested ones."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.interfaces import HtbClass, Qdisc, find_interfaces, read_htb_classes, read_qdiscs
from testbed.net.links.link_engine import compare_fields
from testbed.net.links.netlink import Netlink, parse_attributes
from testbed.net.links.shaping import DEFAULT_CLASS_MINOR, MIN_SHARE, Shape, shape_commands
from testbed.spec.link_direction import QueueClass

_ROOT_CLASS = 0x00010001
_MAJOR = 0x00010000
_FLOW_ID = re.compile(r"flowid 1:([0-9a-f]+)")
_DSFIELD = re.compile(r"match 00([0-9a-f]{2})0000/00fc0000 at 0")
_FIFO = struct.Struct("=I")  # struct tc_fifo_qopt: limit
_RED_PARAMETERS = 1  # TCA_RED_PARMS
_RED = struct.Struct("=II")  # start of struct tc_red_qopt: limit, qth_min
_RED_COUNTERS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked


@dataclass(frozen=True)
class QueueCounters:
    """The sums of the counters of some qdiscs since they were set up; `waiting_*`: packets and bytes in them now."""

    sent_bytes: int = 0
    sent_packets: int = 0
    dropped_packets: int = 0
    waiting_bytes: int = 0
    waiting_packets: int = 0
    marked_packets: int = 0

    @classmethod
    def sum_of(cls, queues: Sequence[Qdisc]) -> QueueCounters:
        """Return the sums of these qdiscs' counters; only RED queues mark."""
        names = [field.name for field in fields(cls) if field.name != "marked_packets"]
        marked = (_RED_COUNTERS.unpack_from(queue.xstats)[3] for queue in queues if queue.kind == "red")
        sums = {name: sum(getattr(queue, name) for queue in queues) for name in names}
        return cls(**sums, marked_packets=sum(marked))


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
    links = find_interfaces(netlink, names)
    by_index = defaultdict[int, list[Qdisc]](list)
    for qdisc in read_qdiscs(netlink):
        by_index[qdisc.index].append(qdisc)
    return {link.name: (link.index, by_index[link.index]) for link in links}


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
    (link,) = find_interfaces(netlink, [interface])
    compare_classes(interface, shape_commands(interface, shape, mtu), read_htb_classes(netlink, link.index))


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


def read_counters(netlink: Netlink, names: Iterable[str]) -> dict[str, QueueCounters]:
    """Read the counters of shaped interfaces in one namespace, each summed over its queues."""
    found = {}
    for name, (_, on) in _read_qdiscs_of(netlink, names).items():
        queues = [qdisc for qdisc in on if _is_class_queue(qdisc)]
        if not queues:
            raise LinkError(f"{name}: the shaper was removed")
        found[name] = QueueCounters.sum_of(queues)
    return found


def _is_class_queue(qdisc: Qdisc) -> bool:
    return qdisc.kind in ("bfifo", "pfifo", "red") and qdisc.parent >> 16 == _MAJOR >> 16
