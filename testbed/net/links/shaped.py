"""What the kernel holds of shaped interfaces: HTB's classes, their queues, what these have counted. By netlink."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from testbed.net.links.errors import LinkError, SettingMismatch
from testbed.net.links.htb import HtbClass
from testbed.net.links.netlink import Netlink, attributes
from testbed.net.links.readback import compare_fields
from testbed.net.links.rtnetlink_dumps import Discipline, disciplines, htb_classes, interfaces
from testbed.net.links.shaping import LEAST_SHARE, REST_MINOR, Shape, shape_commands
from testbed.spec.link_direction import QueueClass

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
