"""What the kernel holds of shaped interfaces: HTB's classes, their queues, what these have counted. By netlink."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyroute2 import IPRoute

from testbed.directions import QueueClass
from testbed.links.errors import LinkError, SettingMismatch
from testbed.links.settings import compare_fields
from testbed.links.shaping import LEAST_SHARE, REST_MINOR, Shape, shape_commands

TICKS_PER_US = 1e3 / 64  # of the kernel's clock for bursts
_HTB_ALL = 0x00010001
_MAJOR = 0x00010000
_FLOW_ID = re.compile(r"flowid 1:([0-9a-f]+)")
_DSFIELD = re.compile(r"match 00([0-9a-f]{2})0000/00fc0000 at 0")
_FIFO = struct.Struct("=I")  # struct tc_fifo_qopt: limit
_RED = struct.Struct("=II")  # the beginning of struct tc_red_qopt: limit, qth_min
_RED_COUNTERS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked
_NETLINK_HEADER_BYTES = 4


@dataclass(frozen=True)
class ShapeCounters:
    """Counters of one shaped interface since it was set up, in frames and bytes. `waiting_...` are in the queue now."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int
    waiting_packets: int
    marked_packets: int = 0


@dataclass(frozen=True)
class HtbClass:
    """One of HTB's classes as the kernel keeps it: bytes per second, bursts as the ticks that they take, bytes."""

    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int
    prio: int

    @classmethod
    def told(cls, words: Mapping[str, str]) -> HtbClass:
        """What `tc` makes of its words for a class."""
        rate, ceil = (int(words[name].removesuffix("bps")) for name in ("rate", "ceil"))
        burst, cburst = (
            # whole microseconds, then whole ticks, as tc reckons
            int(int(int(words[name]) / over * 1e6) * TICKS_PER_US)
            for name, over in (("burst", rate), ("cburst", ceil))
        )
        return cls(rate, ceil, burst, cburst, int(words["quantum"]), int(words.get("prio", "0")))


def read_shape(ipr: IPRoute, interface: str, filters: Mapping[int, set[int]] | None = None) -> Shape:
    """Rate and queue that the kernel holds for `interface`; LinkError when it is not shaped.

    filters: the DSCPs that lead to each class, from `read_filters`; without, classes are not looked at.
    """
    index = _index(ipr, interface)
    return _shape(ipr, interface, index, list(ipr.get_qdiscs(index=index)), filters)


def read_shapes(ipr: IPRoute, interfaces: Iterable[str]) -> dict[str, Shape]:
    """As `read_shape`, of many interfaces of one namespace that have no classes."""
    found = _disciplines(ipr, interfaces)
    return {name: _shape(ipr, name, index, messages, None) for name, (index, messages) in found.items()}


def _disciplines(ipr: IPRoute, interfaces: Iterable[str]) -> dict[str, tuple[int, list[Any]]]:
    """Index and queueing disciplines of each; all at once, since the kernel tells of all whatever it is asked for."""
    indexes = {link.get_attr("IFLA_IFNAME"): int(link["index"]) for link in ipr.get_links()}
    messages: dict[int, list[Any]] = {}
    for message in ipr.get_qdiscs():
        messages.setdefault(message["index"], []).append(message)
    found = {}
    for name in interfaces:
        if name not in indexes:
            raise LinkError(f"{name}: no such interface")
        found[name] = indexes[name], messages.get(indexes[name], [])
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


def _shape(
    ipr: IPRoute, interface: str, index: int, queues: Iterable[Any], filters: Mapping[int, set[int]] | None
) -> Shape:
    """The shape of an interface with these queueing disciplines."""
    return _shape_of(interface, _classes(ipr, index), queues, filters)


def _classes(ipr: IPRoute, index: int) -> dict[int, HtbClass]:
    """HTB's classes on an interface by their handles."""
    classes = {}
    for found in ipr.get_classes(index=index):
        options = found.get_attr("TCA_OPTIONS")
        if found.get_attr("TCA_KIND") == "htb" and options is not None:
            figures, wide = options.get_attr("TCA_HTB_PARMS"), options.get_attr("TCA_HTB_RATE64")
            ceil = options.get_attr("TCA_HTB_CEIL64") or figures["ceil"]
            rate = figures["rate"] if wide is None else wide
            ticks = figures["buffer"], figures["cbuffer"]
            classes[found["handle"]] = HtbClass(
                int(rate), int(ceil), *ticks, figures["quantum"], figures["prio"]
            )
    return classes


def _shape_of(
    interface: str,
    rates: Mapping[int, HtbClass],
    queues: Iterable[Any],
    filters: Mapping[int, set[int]] | None,
) -> Shape:
    leaves = {message["parent"]: message for message in queues if _is_queue(message)}
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


def _with_queue(rate_bps: float, message: Any, classes: tuple[QueueClass, ...]) -> Shape:
    kind, options = message.get_attr("TCA_KIND"), message.get_attr("TCA_OPTIONS")
    if kind == "red":
        limit, least = _RED.unpack_from(_raw(options), _NETLINK_HEADER_BYTES)
        return Shape(rate_bps, limit, ecn_bytes=least, classes=classes)
    (limit,) = (options["limit"],) if isinstance(options, dict) else _FIFO.unpack_from(_raw(options))
    if kind == "pfifo":
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


def verify_shapes(ipr: IPRoute, asked: Mapping[str, Shape], mtu: int) -> None:
    """Read shapes back and compare; SettingMismatch names what differs. The keys are interfaces of one namespace."""
    for interface, (index, messages) in _disciplines(ipr, asked).items():
        classes = _classes(ipr, index)
        compare_fields(interface, asked[interface], _shape_of(interface, classes, messages, None))
        compare_classes(interface, shape_commands(interface, asked[interface], mtu), classes)


def verify_classes(ipr: IPRoute, interface: str, shape: Shape, mtu: int) -> None:
    """Read all of HTB's classes on an interface back: each has what the shape's commands give it. SettingMismatch."""
    classes = _classes(ipr, _index(ipr, interface))
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


def read_counters(ipr: IPRoute, interfaces: Iterable[str]) -> dict[str, ShapeCounters]:
    """Counters of the shapers of these interfaces of one namespace; of each the sums over its queues."""
    found = _disciplines(ipr, interfaces)
    return {name: _counters(name, messages) for name, (_, messages) in found.items()}


def _counters(interface: str, messages: Iterable[Any]) -> ShapeCounters:
    queues = [message for message in messages if _is_queue(message)]
    if not queues:
        raise LinkError(f"{interface}: its shaper is gone")
    sums = [0] * 6
    for message in queues:
        stats = message.get_attr("TCA_STATS2")
        basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
        marked = 0
        if message.get_attr("TCA_KIND") == "red":
            marked = _RED_COUNTERS.unpack_from(_raw(stats.get_attr("TCA_STATS_APP")))[3]
        figures = (
            *(basic[key] for key in ("bytes", "packets")),
            *(queue[key] for key in ("drops", "backlog", "qlen")),
        )
        sums = [total + int(figure) for total, figure in zip(sums, (*figures, marked), strict=True)]
    return ShapeCounters(*sums)


def _is_queue(message: Any) -> bool:
    """Whether a queueing discipline is one below HTB's classes."""
    return (
        message.get_attr("TCA_KIND") in ("bfifo", "pfifo", "red") and message["parent"] >> 16 == _MAJOR >> 16
    )


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
