"""The commands of `ip` and `tc` that every host of a network needs, as requests to the kernel: no program is started.

A program takes 45 ms of CPU time in a guest of the virtual clock, and each host needs two. So the words that `Setup`
keeps become netlink messages here, those that hosts have many of; the programs carry out all others. What the kernel
holds afterwards is the same either way, byte by byte (a test compares).
"""

from __future__ import annotations

import functools
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from testbed.links.htb import HtbClass
from testbed.links.netlink import (
    ADDRESS,
    CLASS,
    CREATE,
    EXCLUSIVE,
    FILTER,
    FORMS,
    LINK,
    NEIGHBOUR,
    QDISC,
    REPLACE,
    Netlink,
    Request,
    interface_indexes,
    nest,
    put,
    text,
)

_ADD = CREATE | EXCLUSIVE
_UP = 1  # IFF_UP
_ROOT, _INGRESS, _INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000  # TC_H_
_NUMBER, _WIDE = struct.Struct("=I"), struct.Struct("=Q")
_PERMANENT = 0x80  # NUD_PERMANENT
_EVERY_PROTOCOL = 0x0300  # ETH_P_ALL, in network byte order
_STOLEN, _REDIRECT = 4, 1  # TC_ACT_STOLEN, TCA_EGRESS_REDIR
_HTB_GLOBAL = struct.Struct("=IIIII")  # struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
_HTB_RATE = struct.Struct(
    "=BBHhHI"
)  # struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
_HTB_REST = struct.Struct("=IIIII")  # of struct tc_htb_opt: buffer, cbuffer, quantum, level, prio
_NETEM = struct.Struct("=IIIIII")  # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
_NETEM_RATE = struct.Struct("=IiIi")  # struct tc_netem_rate
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred
_CELL_LOG, _ETHERNET, _UNALIGNED = 3, 1, -1  # what tc gives HTB for its frames of up to 1600 bytes
_MOST = 0xFFFFFFFF  # where a rate has no room in 32 bits, and stands in an attribute of its own
_REDIRECTED = ["matchall", "action", "mirred", "egress", "redirect"]
_NEW_QDISC = {"add": _ADD, "replace": CREATE | REPLACE, "change": 0}
_NETEM_WORDS = {"limit", "delay", "loss-random", "rate", "seed"}

Words = Sequence[str]
Index = Callable[[str], int]


class Indexes:
    """Numbers of the interfaces behind a socket, by name; `flush` is called before the kernel is asked for them."""

    def __init__(self, netlink: Netlink, flush: Callable[[], None]) -> None:
        self._netlink = netlink
        self._flush = flush
        self._known: Mapping[str, int] = {}

    def __call__(self, name: str) -> int:
        """Of an interface that should be there by now; 0, which the kernel refuses, for one that is not."""
        if name not in self._known:
            self._flush()
            self._known = interface_indexes(self._netlink.dump(LINK, FORMS[LINK].pack(0, 0, 0, 0, 0)))
        return self._known.get(name, 0)


def translate(program: str, command: str, index: Index) -> Request | None:
    """What a command of `ip` or `tc` asks of the kernel; None where it takes the program to know."""
    words = command.split()
    encode = _ENCODERS.get((program, *words[:2]))
    found = encode(words[2:], index) if encode else None
    return found and Request(*found, f"{program} {command}")


def _options(words: Words, *flags: str) -> dict[str, str]:
    """Names and values; of `flags`, which have none, the name twice."""
    found, left = {}, iter(words)
    for word in left:
        found[word] = word if word in flags else next(left, "")
    return found


def _link(flags: int, change: int, *parts: bytes) -> bytes:
    return FORMS[LINK].pack(0, 0, 0, flags, change) + b"".join(parts)


def _link_set(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    options = _options(words, "up")
    numbers = {"mtu": 4, "gso_max_segs": 40, "txqueuelen": 13}  # IFLA_
    if not {*options} <= {*numbers, "dev", "up"}:
        return None
    up = _UP if "up" in options else 0
    named = put(3, text(options["dev"]))
    parts = [
        put(number, _NUMBER.pack(int(options[name]))) for name, number in numbers.items() if name in options
    ]
    return LINK, 0, _link(up, up, named, *parts)


def _link_add(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    if words[1:] != ["type", "ifb"]:
        return None
    return LINK, _ADD, _link(0, 0, put(3, text(words[0])), nest(18, put(1, text("ifb"))))


def _address_add(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    address, _, length = words[0].partition("/")
    packed = socket.inet_aton(address)
    head = FORMS[ADDRESS].pack(socket.AF_INET, int(length or 32), 0, 0, index(_options(words[1:])["dev"]))
    return ADDRESS, _ADD, head + put(2, packed) + put(1, packed)


def _neighbour(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    options = _options(words[1:])
    if options.get("nud") != "permanent":
        return None
    head = FORMS[NEIGHBOUR].pack(socket.AF_INET, index(options["dev"]), _PERMANENT, 0, 0)
    where = put(1, socket.inet_aton(words[0])) + put(2, bytes.fromhex(options["lladdr"].replace(":", "")))
    return NEIGHBOUR, CREATE | REPLACE, head + where


def _handle(word: str) -> int:
    major, _, minor = word.partition(":")
    return int(major or "0", 16) << 16 | int(minor or "0", 16)


def _traffic_control(
    form: int, index: int, handle: int, parent: int, kind: str, options: bytes, info: int = 0
) -> bytes:
    return FORMS[form].pack(0, index, handle, parent, info) + put(1, text(kind)) + options


def _qdisc(flags: int, words: Words, index: Index) -> tuple[int, int, bytes] | None:
    if words[2:] == ["handle", "ffff:", "ingress"]:
        body = _traffic_control(QDISC, index(words[1]), _INGRESS_HANDLE, _INGRESS, "ingress", b"")
        return QDISC, flags, body
    at = 3 if words[2] == "root" else 4
    parent = _ROOT if words[2] == "root" else _handle(words[3])
    handle = 0
    if words[at] == "handle":
        handle, at = _handle(words[at + 1]), at + 2
    kind, rest = words[at], " ".join(words[at + 1 :])
    options = _options(rest.replace("loss random ", "loss-random ").split())
    encoded = None
    if kind == "htb" and {*options} == {"default"}:
        told = _HTB_GLOBAL.pack(3, 10, int(options["default"], 16), 0, 0)
        encoded = nest(2, put(2, told))
    elif kind in ("bfifo", "pfifo") and {*options} == {"limit"}:
        encoded = put(2, _NUMBER.pack(int(options["limit"])))
    elif kind == "netem" and {*options} <= _NETEM_WORDS:
        encoded = _netem(options)
    if encoded is None:
        return None
    return QDISC, flags, _traffic_control(QDISC, index(words[1]), handle, parent, kind, encoded)


def _netem(options: Mapping[str, str]) -> bytes | None:
    """Delays to the nanosecond: tc, as of iproute2 6.1, cuts them off to microseconds, and to ticks of 64 ns."""
    parts = []
    if rate := int(options.get("rate", "0").removesuffix("bps")):
        if rate > _MOST:
            parts.append(put(8, _WIDE.pack(rate)))
        parts.append(put(6, _NETEM_RATE.pack(min(rate, _MOST), 0, 0, 0)))
    if (delay := options.get("delay")) is not None:
        if not delay.endswith("us"):
            return None
        parts.append(put(10, _WIDE.pack(round(float(delay.removesuffix("us")) * 1000))))
    if (seed := options.get("seed")) is not None:
        parts.append(put(14, _WIDE.pack(int(seed))))
    loss = round(float(options.get("loss-random", "0%").removesuffix("%")) / 100 * _MOST)
    return put(2, _NETEM.pack(0, int(options["limit"]), loss, 0, 0, 0) + b"".join(parts))


def _class_add(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    options = _options(words[:6])
    if words[6] != "htb":
        return None
    asked = HtbClass.told(_options(words[7:]))
    wide = b"".join(
        put(number, _WIDE.pack(rate)) for number, rate in ((6, asked.rate), (7, asked.ceil)) if rate > _MOST
    )
    rates = b"".join(
        _HTB_RATE.pack(_CELL_LOG, _ETHERNET, 0, _UNALIGNED, 0, min(rate, _MOST))
        for rate in (asked.rate, asked.ceil)
    )
    told = rates + _HTB_REST.pack(asked.burst, asked.cburst, asked.quantum, 0, asked.prio)
    parent, handle = _handle(options["parent"]), _handle(options["classid"])
    body = _traffic_control(CLASS, index(options["dev"]), handle, parent, "htb", nest(2, wide, put(1, told)))
    return CLASS, _ADD, body


def _filter_add(words: Words, index: Index) -> tuple[int, int, bytes] | None:
    """Of all that comes in, to another device."""
    if words[2:6] != ["parent", "ffff:", "protocol", "all"] or words[8:13] != _REDIRECTED:
        return None
    own, preference, to = index(words[1]), int(words[7]), index(words[14])
    action = nest(
        1,
        put(1, text("mirred")),
        nest(2, put(2, _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT, to))),
    )
    info = preference << 16 | _EVERY_PROTOCOL
    options = nest(2, nest(2, action))
    body = _traffic_control(FILTER, own, 0, _INGRESS_HANDLE, "matchall", options, info)
    return FILTER, _ADD, body


_ENCODERS: dict[tuple[str, ...], Callable[[Words, Index], tuple[int, int, bytes] | None]] = {
    ("ip", "link", "set"): _link_set,
    ("ip", "link", "add"): _link_add,
    ("ip", "address", "add"): _address_add,
    ("ip", "neigh", "replace"): _neighbour,
    **{("tc", "qdisc", word): functools.partial(_qdisc, flags) for word, flags in _NEW_QDISC.items()},
    ("tc", "class", "add"): _class_add,
    ("tc", "filter", "add"): _filter_add,
}
