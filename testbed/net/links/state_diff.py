"""Descriptions of the differences between two states of a network namespace: object, field, old and new value."""

from __future__ import annotations

import re
import socket
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.net.links.interfaces import TICKS_PER_US
from testbed.net.links.namespace_state import FDB, KIND, OFFLOADS, PACKET_FILTER, PORT, ROOT, Key
from testbed.net.links.netlink import (
    ADDRESS,
    CLASS,
    FILTER,
    HEADER,
    LINK,
    MESSAGE_STRUCTS,
    NEIGHBOUR,
    QDISC,
    ROUTE,
    RULE,
    parse_attributes,
)
from testbed.net.links.setup import feature_names

_MESSAGE_CLASSES = {
    **dict.fromkeys((LINK, PORT), ifinfmsg),
    ADDRESS: ifaddrmsg,
    ROUTE: rtmsg,
    **dict.fromkeys((NEIGHBOUR, FDB), ndmsg),
    RULE: fibmsg,
    **dict.fromkeys((QDISC, CLASS, FILTER), tcmsg),
}
_NOUNS = {
    ADDRESS: "address",
    ROUTE: "route",
    NEIGHBOUR: "neighbour",
    FDB: "forwarding entry",
    RULE: "rule",
    QDISC: "queueing discipline",
    CLASS: "class",
    FILTER: "filter",
    OFFLOADS: "offloads",
}
_UNITS = {"rate": " bytes/s", "ceil": " bytes/s"}
UNDESCRIBED = "changed"
_MAX_FIELDS = 4  # limit on what is shown of one object
_SHORT_BYTES = 16
_TRANSPARENT = (
    "options",
    "parms",
    "init",
    "metrics",
    "af_spec",
    "linkinfo",
    "info_data",
    "info_slave_data",
    "rate",
    "conf",
)
_PREFIX = re.compile(r"^(IFLA_BRPORT|IFLA|TCA_HTB|TCA_NETEM|TCA|RTAX|RTA|NDA|IFA|FRA)_")


def object_name(key: Key, data: bytes, names: Mapping[int, str]) -> str:
    """Return the name of an object for messages, such as "class 1:10 of p3".

    Args:
        key: Its key.
        data: Its data.
        names: Names of the interfaces in its namespace, by index.
    """
    kind, index = key[0], key[1]
    interface = names.get(index, f"interface {index}")
    if kind == LINK:
        return interface
    if kind == PORT:
        return f"bridge port {interface}"
    if kind == PACKET_FILTER:
        return "nftables"
    of = f" of {interface}" if index else ""
    return f"{_NOUNS[kind]} {_qualifier(key, data)}".rstrip() + of


def _qualifier(key: Key, data: bytes) -> str:
    kind = key[0]
    if kind in (QDISC, CLASS, FILTER):
        return _traffic_control_qualifier(kind, data)
    if kind in (NEIGHBOUR, ADDRESS):
        return _format_address(key[2], key[3]) + (f"/{key[4]}" if kind == ADDRESS else "")
    if kind == FDB:
        return key[2].hex(":") if key[2] else ""
    if kind == ROUTE:
        return f"to {_format_address(key[3], key[4])}/{key[5]}" if key[4] else "to anywhere"
    return str(int.from_bytes(key[3] or b"", "little")) if kind == RULE else ""


def _traffic_control_qualifier(kind: int, data: bytes) -> str:
    _, _, handle, parent, info = MESSAGE_STRUCTS[kind].unpack_from(data)
    if kind == FILTER:
        return f"of preference {info >> 16} at {_format_handle(parent)}"
    shown = _format_handle(handle)
    if kind == QDISC:
        found = next((part for number, part in parse_attributes(data, 20) if number == KIND), b"")
        shown = f"{found.rstrip(bytes(1)).decode()} {shown}" if handle else found.rstrip(bytes(1)).decode()
    return shown


def _format_handle(handle: int) -> str:
    if handle == ROOT:
        return "root"
    return f"{handle >> 16:x}:" + (f"{handle & 0xFFFF:x}" if handle & 0xFFFF else "")


def _format_address(family: int, number: bytes | None) -> str:
    if number is None:
        return ""
    try:
        return socket.inet_ntop(family, number)
    except (ValueError, OSError):
        return number.hex(":")


def differs(key: Key, old: bytes, new: bytes) -> bool:
    """Return whether an object has changed between two messages about it.

    Events on interfaces have fewer attributes than answers, so only attributes in both messages are compared.
    """
    if old == new:
        return False
    if key[0] not in (LINK, PORT):
        return True
    if old[:16] != new[:16]:
        return True
    before, after = dict(parse_attributes(old, 16)), dict(parse_attributes(new, 16))
    # a nested attribute differs in length where the kernel omits parts of it
    return any(
        payload != after[number] and len(payload) == len(after[number])
        for number, payload in before.items()
        if number in after
    )


def describe_difference(key: Key, old: bytes | None, new: bytes | None) -> str:
    """Describe the change of an object: "gone", "added", or its fields, as in "rate 12500000 -> 6250000 bytes/s"."""
    if old is None or new is None:
        return "gone" if new is None else "added"
    before, after = _decode_fields(key[0], old), _decode_fields(key[0], new)
    if before == after:  # pyroute2 has no name for the changed attribute
        size = MESSAGE_STRUCTS[abs(key[0])].size if key[0] not in (OFFLOADS, PACKET_FILTER) else 0
        before, after = dict(_raw_attributes(old, size)), dict(_raw_attributes(new, size))
    changes = [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}{_UNITS.get(name, '')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    more = [f"and {len(changes) - _MAX_FIELDS} more"] if len(changes) > _MAX_FIELDS else []
    return ", ".join(changes[:_MAX_FIELDS] + more) or UNDESCRIBED


def _decode_fields(kind: int, data: bytes) -> dict[str, str]:
    """Return all fields of an object by name, or its raw attributes by number if pyroute2 cannot decode them."""
    if kind == OFFLOADS:
        bits = int.from_bytes(data, "little")
        return {name: "on" if bits >> bit & 1 else "off" for bit, name in enumerate(feature_names()) if name}
    if kind == PACKET_FILTER:
        return {"generation": str(int.from_bytes(data, "big"))}
    message = _MESSAGE_CLASSES[kind](HEADER.pack(16 + len(data), abs(kind), 0, 0, 0) + data)
    try:
        message.decode()
        found = dict(_flatten(message.dump()))
    except Exception:  # pyroute2 may raise anything for attributes that it does not know
        size = MESSAGE_STRUCTS[abs(kind)].size
        return dict(_raw_attributes(data, size))
    if found.get("kind") == "htb" and kind == CLASS:
        _convert_bursts(found)
    if found.get("kind") in ("bfifo", "pfifo") and "options" in found:
        limit = found.pop("options").replace(":", "")  # pyroute2 does not decode it
        found["limit"] = str(int.from_bytes(bytes.fromhex(limit), "little"))
    return found


def _raw_attributes(data: bytes, size: int, path: str = "attribute") -> Iterator[tuple[str, str]]:
    """Yield attributes by number; long ones, which may be nested, also as the attributes inside."""
    for number, part in parse_attributes(data, size):
        yield f"{path} {number}", _abbreviate_bytes(part)
        if len(part) > _SHORT_BYTES:
            yield from _raw_attributes(part, 0, f"{path} {number}")


def _abbreviate_bytes(part: bytes) -> str:
    """Shorten bytes for a message, with a checksum that distinguishes values with the same beginning."""
    return part.hex() if len(part) <= _SHORT_BYTES else f"{part[:8].hex()}... ({zlib.crc32(part):08x})"


def _convert_bursts(found: dict[str, str]) -> None:
    """Convert bursts to bytes; the kernel stores them as the time that they take at their rate."""
    for burst, name, rate in (("burst", "buffer", "rate"), ("cburst", "cbuffer", "ceil")):
        if name in found and rate in found:
            found[burst] = str(round(int(found.pop(name)) / TICKS_PER_US / 1e6 * int(found[rate])))


def _flatten(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each field in a message at any depth; nested names have their parent as prefix."""
    for name, value in message.items():
        if name not in ("attrs", "header", "event", "value", "target", "stats"):
            yield from _flatten_value(name, value)
    for attribute in message.get("attrs") or ():
        yield from _flatten_value(_PREFIX.sub("", attribute[0]).lower(), attribute[1])


def _flatten_value(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        prefix = "" if name in _TRANSPARENT else f"{name} "
        yield from ((f"{prefix}{part}", held) for part, held in _flatten(value))
    elif isinstance(value, (list, tuple)):
        for number, held in enumerate(value):
            yield from _flatten_value(f"{name} {number}", held)
    else:
        text = value if isinstance(value, str) else str(value)
        yield name, text if len(text) <= 2 * _SHORT_BYTES else _abbreviate_bytes(text.encode())
