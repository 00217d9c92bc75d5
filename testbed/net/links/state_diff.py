"""Differences between two states of a network namespace in words: object, field, old and new value."""

from __future__ import annotations

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
    FORMS,
    HEADER,
    LINK,
    NEIGHBOUR,
    QDISC,
    ROUTE,
    RULE,
    attributes,
)
from testbed.net.links.setup import feature_names

_FORMS = {
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
UNNAMED = "changed"
_FEW = 4  # fields are told of one object
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
_PREFIXES = (
    "IFLA_BRPORT_",
    "IFLA_",
    "TCA_HTB_",
    "TCA_NETEM_",
    "TCA_",
    "RTAX_",
    "RTA_",
    "NDA_",
    "IFA_",
    "FRA_",
)


def name_of(key: Key, left: bytes, names: Mapping[int, str]) -> str:
    """What an object is called, such as "class 1:10 of p3"; `names` are those of its namespace's interfaces."""
    kind, index = key[0], key[1]
    interface = names.get(index, f"interface {index}")
    if kind == LINK:
        return interface
    if kind == PORT:
        return f"bridge port {interface}"
    if kind == PACKET_FILTER:
        return "nftables"
    of = f" of {interface}" if index else ""
    return f"{_NOUNS[kind]} {_which(key, left)}".rstrip() + of


def _which(key: Key, left: bytes) -> str:
    kind = key[0]
    if kind in (QDISC, CLASS, FILTER):
        return _which_of_queues(kind, left)
    if kind in (NEIGHBOUR, ADDRESS):
        return _address(key[2], key[3]) + (f"/{key[4]}" if kind == ADDRESS else "")
    if kind == FDB:
        return key[2].hex(":") if key[2] else ""
    if kind == ROUTE:
        return f"to {_address(key[3], key[4])}/{key[5]}" if key[4] else "to anywhere"
    return str(int.from_bytes(key[3] or b"", "little")) if kind == RULE else ""


def _which_of_queues(kind: int, left: bytes) -> str:
    _, _, handle, parent, info = FORMS[kind].unpack_from(left)
    if kind == FILTER:
        return f"of preference {info >> 16} at {_handle(parent)}"
    shown = _handle(handle)
    if kind == QDISC:
        found = next((part for number, part in attributes(left, 20) if number == KIND), b"")
        shown = f"{found.rstrip(bytes(1)).decode()} {shown}" if handle else found.rstrip(bytes(1)).decode()
    return shown


def _handle(handle: int) -> str:
    if handle == ROOT:
        return "root"
    return f"{handle >> 16:x}:" + (f"{handle & 0xFFFF:x}" if handle & 0xFFFF else "")


def _address(family: int, number: bytes | None) -> str:
    if number is None:
        return ""
    try:
        return socket.inet_ntop(family, number)
    except (ValueError, OSError):
        return number.hex(":")


def differ(key: Key, old: bytes, new: bytes) -> bool:
    """Whether an event's words for an object say something else than what was known of it.

    Events on interfaces leave out some of what answers tell: only what both have counts.
    """
    if old == new:
        return False
    if key[0] not in (LINK, PORT):
        return True
    if old[:16] != new[:16]:
        return True
    before, after = dict(attributes(old, 16)), dict(attributes(new, 16))
    # what is nested is longer in the one than in the other where a kernel leaves parts out
    return any(
        payload != after[number] and len(payload) == len(after[number])
        for number, payload in before.items()
        if number in after
    )


def difference(key: Key, old: bytes | None, new: bytes | None) -> str:
    """What is new of an object: "gone", "added", or its fields, such as "rate 12500000 -> 6250000 bytes/s"."""
    if old is None or new is None:
        return "gone" if new is None else "added"
    before, after = _fields(key[0], old), _fields(key[0], new)
    if before == after:  # something that pyroute2 has no name for
        size = FORMS[abs(key[0])].size if key[0] not in (OFFLOADS, PACKET_FILTER) else 0
        before, after = dict(_unnamed(old, size)), dict(_unnamed(new, size))
    words = [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}{_UNITS.get(name, '')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    more = [f"and {len(words) - _FEW} more"] if len(words) > _FEW else []
    return ", ".join(words[:_FEW] + more) or UNNAMED


def _fields(kind: int, left: bytes) -> dict[str, str]:
    """All fields of an object by name; the bytes of its attributes by number where pyroute2 cannot read them."""
    if kind == OFFLOADS:
        bits = int.from_bytes(left, "little")
        return {name: "on" if bits >> bit & 1 else "off" for bit, name in enumerate(feature_names()) if name}
    if kind == PACKET_FILTER:
        return {"generation": str(int.from_bytes(left, "big"))}
    message = _FORMS[kind](HEADER.pack(16 + len(left), abs(kind), 0, 0, 0) + left)
    try:
        message.decode()
        found = dict(_flat(message.dump()))
    except Exception:  # whatever a library thinks of bytes that it does not know
        size = FORMS[abs(kind)].size
        return dict(_unnamed(left, size))
    if found.get("kind") == "htb" and kind == CLASS:
        _bursts(found)
    if found.get("kind") in ("bfifo", "pfifo") and "options" in found:
        limit = found.pop("options").replace(":", "")  # which pyroute2 has no form for
        found["limit"] = str(int.from_bytes(bytes.fromhex(limit), "little"))
    return found


def _unnamed(left: bytes, size: int, path: str = "attribute") -> Iterator[tuple[str, str]]:
    """Attributes by number; those that may be nested as a whole, and each part of them as well."""
    for number, part in attributes(left, size):
        yield f"{path} {number}", _bytes(part)
        if len(part) > _SHORT_BYTES:
            yield from _unnamed(part, 0, f"{path} {number}")


def _bytes(part: bytes) -> str:
    """Short enough to be read, with what tells it from another that begins alike."""
    return part.hex() if len(part) <= _SHORT_BYTES else f"{part[:8].hex()}... ({zlib.crc32(part):08x})"


def _bursts(found: dict[str, str]) -> None:
    """The kernel keeps bursts as the time that they take at their rate."""
    for burst, name, rate in (("burst", "buffer", "rate"), ("cburst", "cbuffer", "ceil")):
        if name in found and rate in found:
            found[burst] = str(round(int(found.pop(name)) / TICKS_PER_US / 1e6 * int(found[rate])))


def _flat(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, value) of all that is in a message, however deep; of what has no name of its own, its parent's."""
    for name, value in message.items():
        if name not in ("attrs", "header", "event", "value", "target", "stats"):
            yield from _value(name, value)
    for attribute in message.get("attrs") or ():
        yield from _value(_short(attribute[0]), attribute[1])


def _value(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        yield from ((_own(name, part), held) for part, held in _flat(value))
    elif isinstance(value, (list, tuple)):
        for number, held in enumerate(value):
            yield from _value(f"{name} {number}", held)
    else:
        text = value if isinstance(value, str) else str(value)
        yield name, text if len(text) <= 2 * _SHORT_BYTES else _bytes(text.encode())


def _own(parent: str, name: str) -> str:
    return name if parent in _TRANSPARENT else f"{parent} {name}"


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).lower()
    return name.lower()
