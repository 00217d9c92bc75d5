"""Encoding of frequent `ip` and `tc` commands as netlink requests, so that no program has to be started.

A program takes 45 ms of CPU time in a guest of the virtual clock, and each host needs two. So the commands of `Setup`
that every host has become netlink requests here, and the programs execute only the others. The resulting kernel state
is the same, byte for byte (a test compares them).
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from testbed.net.errors import LinkError
from testbed.net.links.interfaces import HtbClass
from testbed.net.links.netlink import (
    ADDRESS,
    CLASS,
    CREATE,
    EXCLUSIVE,
    FILTER,
    LINK,
    MESSAGE_STRUCTS,
    NEIGHBOUR,
    QDISC,
    REPLACE,
    Request,
    encode_attribute,
    encode_nested,
    encode_string,
)
from testbed.spec.link_direction import PACKET_FAULTS

_ADD = CREATE | EXCLUSIVE
_UP = 1  # IFF_UP
_ROOT, _INGRESS, _INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000  # TC_H_
_NUMBER, _WIDE = struct.Struct("=I"), struct.Struct("=Q")
_PERMANENT = 0x80  # NUD_PERMANENT
_EVERY_PROTOCOL = 0x0300  # ETH_P_ALL, in network byte order
_STOLEN, _REDIRECT = 4, 1  # TC_ACT_STOLEN, TCA_EGRESS_REDIR
_HTB_GLOBAL = struct.Struct("=IIIII")  # struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
# struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
_HTB_RATE = struct.Struct("=BBHhHI")
_HTB_REST = struct.Struct("=IIIII")  # fields of struct tc_htb_opt: buffer, cbuffer, quantum, level, prio
_NETEM = struct.Struct("=IIIIII")  # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
_NETEM_RATE = struct.Struct("=IiIi")  # struct tc_netem_rate
_NETEM_CORRELATIONS = struct.Struct("=III")  # struct tc_netem_corr: of delay, loss, duplication
_NETEM_SHARE = struct.Struct("=II")  # struct tc_netem_reorder, tc_netem_corrupt: probability, correlation
_NETEM_BURSTS = struct.Struct("=IIII")  # struct tc_netem_gemodel: p, r, h, k1
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred
_CELL_LOG, _ETHERNET, _UNALIGNED = 3, 1, -1  # values that tc uses for HTB with frames of up to 1600 bytes
# where iproute2 installs its tables of jitter distributions
_DISTRIBUTION_FOLDERS = ("usr/lib/tc", "usr/lib/*/tc", "usr/lib64/tc", "usr/share/tc", "lib/tc")
_UINT32_MAX = 0xFFFFFFFF  # a higher rate needs a 64-bit attribute
_MATCHALL_REDIRECT = ["matchall", "action", "mirred", "egress", "redirect"]
_NEW_QDISC = {"add": _ADD, "replace": CREATE | REPLACE, "change": 0}
_NETEM_OPTIONS = ["limit", "delay", "distribution", "loss", *PACKET_FAULTS, "rate", "seed"]

Words = Sequence[str]
IndexLookup = Callable[[str], int]


def encode_command(program: str, command: str, index: IndexLookup) -> Request | None:
    """Encode a command of `ip` or `tc` as a netlink request; return None for commands that only the program knows.

    Args:
        program: "ip" or "tc".
        command: The command without the program's name.
        index: A lookup of interface indexes.
    """
    words = command.split()
    encode = _ENCODERS.get((program, *words[:2]))
    found = encode(words[2:], index) if encode else None
    return found and Request(*found, f"{program} {command}")


def _parse_options(words: Words, *flags: str) -> dict[str, str]:
    """Parse options into names and values; `flags` have no value and map to themselves."""
    found, remaining = {}, iter(words)
    for word in remaining:
        found[word] = word if word in flags else next(remaining, "")
    return found


def _link(flags: int, change: int, *parts: bytes) -> bytes:
    return MESSAGE_STRUCTS[LINK].pack(0, 0, 0, flags, change) + b"".join(parts)


def _link_set(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    options = _parse_options(words, "up")
    numbers = {"mtu": 4, "gso_max_segs": 40, "txqueuelen": 13}  # IFLA_
    if not {*options} <= {*numbers, "dev", "up"}:
        return None
    up = _UP if "up" in options else 0
    named = encode_attribute(3, encode_string(options["dev"]))
    parts = [
        encode_attribute(number, _NUMBER.pack(int(options[name])))
        for name, number in numbers.items()
        if name in options
    ]
    return LINK, 0, _link(up, up, named, *parts)


def _link_add(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    if words[1:] != ["type", "ifb"]:
        return None
    name = encode_attribute(3, encode_string(words[0]))
    return LINK, _ADD, _link(0, 0, name, encode_nested(18, encode_attribute(1, encode_string("ifb"))))


def _address_add(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    address, _, length = words[0].partition("/")
    packed = socket.inet_aton(address)
    device = index(_parse_options(words[1:])["dev"])
    head = MESSAGE_STRUCTS[ADDRESS].pack(socket.AF_INET, int(length or 32), 0, 0, device)
    return ADDRESS, _ADD, head + encode_attribute(2, packed) + encode_attribute(1, packed)


def _neighbour(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    options = _parse_options(words[1:])
    if options.get("nud") != "permanent":
        return None
    head = MESSAGE_STRUCTS[NEIGHBOUR].pack(socket.AF_INET, index(options["dev"]), _PERMANENT, 0, 0)
    mac = bytes.fromhex(options["lladdr"].replace(":", ""))
    body = head + encode_attribute(1, socket.inet_aton(words[0])) + encode_attribute(2, mac)
    return NEIGHBOUR, CREATE | REPLACE, body


def _handle(word: str) -> int:
    major, _, minor = word.partition(":")
    return int(major or "0", 16) << 16 | int(minor or "0", 16)


def _traffic_control(
    form: int, index: int, handle: int, parent: int, kind: str, options: bytes, info: int = 0
) -> bytes:
    return (
        MESSAGE_STRUCTS[form].pack(0, index, handle, parent, info)
        + encode_attribute(1, encode_string(kind))
        + options
    )


def _qdisc(flags: int, words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    if words[2:] == ["handle", "ffff:", "ingress"]:
        body = _traffic_control(QDISC, index(words[1]), _INGRESS_HANDLE, _INGRESS, "ingress", b"")
        return QDISC, flags, body
    at = 3 if words[2] == "root" else 4
    parent = _ROOT if words[2] == "root" else _handle(words[3])
    handle = 0
    if words[at] == "handle":
        handle, at = _handle(words[at + 1]), at + 2
    kind, rest = words[at], words[at + 1 :]
    options = _parse_options(rest)
    encoded = None
    if kind == "htb" and {*options} == {"default"}:
        htb_options = _HTB_GLOBAL.pack(3, 10, int(options["default"], 16), 0, 0)
        encoded = encode_nested(2, encode_attribute(2, htb_options))
    elif kind in ("bfifo", "pfifo") and {*options} == {"limit"}:
        encoded = encode_attribute(2, _NUMBER.pack(int(options["limit"])))
    elif kind == "netem":
        encoded = _netem(_group_by_keyword(rest, _NETEM_OPTIONS))
    if encoded is None:
        return None
    return QDISC, flags, _traffic_control(QDISC, index(words[1]), handle, parent, kind, encoded)


def _group_by_keyword(words: Words, names: Container[str]) -> dict[str, list[str]]:
    """Return the words after each of `names` up to the next one; the key "" has those before the first."""
    found: dict[str, list[str]] = {}
    values = found.setdefault("", [])
    for word in words:
        if word in names:
            values = found.setdefault(word, [])
        else:
            values.append(word)
    return found


def _netem(options: Mapping[str, Words]) -> bytes:
    """Encode netem's options, with times in nanoseconds: tc 6.1 truncates them to microseconds and ticks of 64 ns.

    The seed makes all random impairments repeatable, even if the installed tc does not know it. Kernels before Linux
    6.6 ignore it.
    """
    delay, (model, *shares) = options.get("delay", ()), options.get("loss", ("random", "0%"))
    parts = [  # latency and jitter
        encode_attribute(number, _WIDE.pack(round(float(word.removesuffix("us")) * 1000)))
        for number, word in zip((10, 11), delay, strict=False)
    ]
    if len(delay) > 2:
        parts.append(encode_attribute(1, _NETEM_CORRELATIONS.pack(_share(delay[2]), 0, 0)))
    loss = 0
    if model == "gemodel":
        enter, leave, bad, good = map(_share, shares)
        bursts = _NETEM_BURSTS.pack(enter, leave, _UINT32_MAX - bad, good)
        parts.append(encode_nested(5, encode_attribute(2, bursts)))
    else:
        loss = _share(shares[0])
    if rate := int(options.get("rate", ["0"])[0].removesuffix("bps")):
        if rate > _UINT32_MAX:
            parts.append(encode_attribute(8, _WIDE.pack(rate)))
        parts.append(encode_attribute(6, _NETEM_RATE.pack(min(rate, _UINT32_MAX), 0, 0, 0)))
    if "distribution" in options:
        parts.append(encode_attribute(2, _distribution(options["distribution"][0])))
    if "seed" in options:
        parts.append(encode_attribute(14, _WIDE.pack(int(options["seed"][0]))))
    for name, fault in PACKET_FAULTS.items():
        if name in options and fault.netem_attribute is not None:
            share = _NETEM_SHARE.pack(_share(options[name][0]), 0)
            parts.append(encode_attribute(fault.netem_attribute, share))
    gap = 1 if "reorder" in options else 0
    duplicate = _share(options.get("duplicate", ["0%"])[0])
    head = _NETEM.pack(0, int(options["limit"][0]), loss, gap, duplicate, 0)
    return encode_attribute(2, head + b"".join(parts))


def _share(percent: str) -> int:
    return round(float(percent.removesuffix("%")) / 100 * _UINT32_MAX)


@functools.cache
def _distribution(name: str) -> bytes:
    """Return one of iproute2's tables of jitter distributions as 16-bit numbers."""
    given = os.environ.get("TC_LIB_DIR")
    folders = (
        [Path(given)]
        if given
        else [folder for glob in _DISTRIBUTION_FOLDERS for folder in sorted(Path("/").glob(glob))]
    )
    for folder in folders:
        with contextlib.suppress(OSError):
            lines = (folder / f"{name}.dist").read_text().splitlines()
            values = [int(word) for line in lines if not line.startswith("#") for word in line.split()]
            return struct.pack(f"={len(values)}h", *values)
    searched = ", ".join(map(str, folders)) or " ".join(f"/{glob}" for glob in _DISTRIBUTION_FOLDERS)
    raise LinkError(
        f"iproute2's {name}.dist is not in {searched}: netem needs it for jitter with this distribution "
        "(set TC_LIB_DIR to use another folder)"
    )


def _class_add(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    options = _parse_options(words[:6])
    if words[6] != "htb":
        return None
    asked = HtbClass.from_tc_options(_parse_options(words[7:]))
    wide = b"".join(
        encode_attribute(number, _WIDE.pack(rate))
        for number, rate in ((6, asked.rate), (7, asked.ceil))
        if rate > _UINT32_MAX
    )
    rates = b"".join(
        _HTB_RATE.pack(_CELL_LOG, _ETHERNET, 0, _UNALIGNED, 0, min(rate, _UINT32_MAX))
        for rate in (asked.rate, asked.ceil)
    )
    htb_options = rates + _HTB_REST.pack(asked.burst, asked.cburst, asked.quantum, 0, asked.prio)
    parent, handle = _handle(options["parent"]), _handle(options["classid"])
    encoded = encode_nested(2, wide, encode_attribute(1, htb_options))
    body = _traffic_control(CLASS, index(options["dev"]), handle, parent, "htb", encoded)
    return CLASS, _ADD, body


def _filter_add(words: Words, index: IndexLookup) -> tuple[int, int, bytes] | None:
    """Encode a filter that redirects all incoming frames to another device."""
    if words[2:6] != ["parent", "ffff:", "protocol", "all"] or words[8:13] != _MATCHALL_REDIRECT:
        return None
    own, preference, to = index(words[1]), int(words[7]), index(words[14])
    action = encode_nested(
        1,
        encode_attribute(1, encode_string("mirred")),
        encode_nested(2, encode_attribute(2, _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT, to))),
    )
    info = preference << 16 | _EVERY_PROTOCOL
    options = encode_nested(2, encode_nested(2, action))
    body = _traffic_control(FILTER, own, 0, _INGRESS_HANDLE, "matchall", options, info)
    return FILTER, _ADD, body


_ENCODERS: dict[tuple[str, ...], Callable[[Words, IndexLookup], tuple[int, int, bytes] | None]] = {
    ("ip", "link", "set"): _link_set,
    ("ip", "link", "add"): _link_add,
    ("ip", "address", "add"): _address_add,
    ("ip", "neigh", "replace"): _neighbour,
    **{("tc", "qdisc", word): functools.partial(_qdisc, flags) for word, flags in _NEW_QDISC.items()},
    ("tc", "class", "add"): _class_add,
    ("tc", "filter", "add"): _filter_add,
}
