"""The kernel's state of a network namespace, read over rtnetlink without counters and ages.

Reading must be cheap, so messages are not decoded: counters are stripped, and an object is a key and the remaining
bytes. Only `testbed.net.links.state_diff` decodes them, for objects that differ.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    Netlink,
    encode_attribute,
    parse_attributes,
    parse_messages,
)
from testbed.net.links.netns import network_namespace
from testbed.net.links.setup import read_feature_bits

FDB, PORT = -NEIGHBOUR, -LINK  # the same messages in address family AF_BRIDGE
OFFLOADS, PACKET_FILTER = 1, 2  # kinds of state that rtnetlink does not cover
# RTNLGRP_ of linux/rtnetlink.h: LINK, NEIGH, TC, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE
GROUPS = (1, 3, 4, 5, 7, 8, 9, 11, 19)
EVENT_BUFFER_BYTES = 8 << 20
ROOT, INGRESS, CLSACT = 0xFFFFFFFF, 0xFFFF0000, (0xFFFFFFF2, 0xFFFFFFF3)
_FILTER_PARENTS = {b"ingress": (INGRESS,), b"clsact": CLSACT}  # parents of filters on qdiscs without classes
_AF_BRIDGE = 7
_ERROR = 2
_SKIP_STATISTICS = struct.pack("=HHI", 8, 29, 1 << 3)  # IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS
_CLONED = 0x200
_PERMANENT, _SELF_OR_MASTER = 0x80, 6  # NUD_PERMANENT; NTF_SELF, NTF_MASTER
_SOL_NETLINK, _ADD_MEMBERSHIP, _NETLINK_NETFILTER = 270, 1, 12
_GET_GENERATION = 10 << 8 | 16  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN
_TCF_TIMES_BYTES = 32  # struct tcf_t: when an action was created and used
Key = tuple[Any, ...]
"""Kind, index of the interface (0: none), and whatever else identifies the object."""
State = dict[Key, bytes]
Rules = Mapping[int, Any]
"""For each attribute type: None (omit it), Rules for nested attributes, or a function that changes the payload."""

# The kernel pads to align 64-bit attributes. The padding depends on their offset in an answer, so it is not state.
# IFLA_PAD, IFLA_BR_PAD, IFLA_BRPORT_PAD, TCA_PAD, TCA_HTB_PAD, TCA_NETEM_PAD
_LINK_PAD, _BRIDGE_PAD, _PORT_PAD, _TC_PAD, _HTB_PAD, _NETEM_PAD = 42, 40, 26, 9, 8, 9
_NETEM_HEAD_BYTES = 24  # struct tc_netem_qopt
# IFLA_BR_TOPOLOGY_CHANGE to IFLA_BR_GC_TIMER, IFLA_BR_FDB_N_LEARNED
_TIMERS = dict.fromkeys((*range(14, 20), 48, _BRIDGE_PAD))
# IFLA_BRPORT_TOPOLOGY_CHANGE_ACK to IFLA_BRPORT_HOLD_TIMER, and the numbers of multicast hosts and groups
_PORT_TIMERS = dict.fromkeys((*range(19, 24), 38, 41, _PORT_PAD))
_INET6 = dict.fromkeys((3, 5, 6))  # statistics, ages


def strip_attributes(data: bytes, rules: Rules) -> bytes:
    """Return attributes without those that the rules omit."""
    kept = []
    for number, payload in parse_attributes(data):
        rule = rules.get(number, payload)
        if rule is None:
            continue
        if rule is not payload:
            payload = strip_attributes(payload, rule) if isinstance(rule, Mapping) else rule(payload)  # noqa: PLW2901
        kept.append(encode_attribute(number, payload))
    return b"".join(kept)


def _htb(payload: bytes) -> bytes:
    return payload[:16] + bytes(4)  # the last field of struct tc_htb_glob counts packets


def _netem(payload: bytes) -> bytes:
    head, options = payload[:_NETEM_HEAD_BYTES], payload[_NETEM_HEAD_BYTES:]
    return head + strip_attributes(options, {_NETEM_PAD: None})


def _actions(payload: bytes) -> bytes:
    """Strip statistics (TCA_ACT_STATS) and times of use from the actions of a filter."""
    return b"".join(
        encode_attribute(number, strip_attributes(action, {4: None, 2: _action}))
        for number, action in parse_attributes(payload)
    )


def _action(payload: bytes) -> bytes:
    found = parse_attributes(payload)
    return b"".join(encode_attribute(number, part) for number, part in found if len(part) != _TCF_TIMES_BYTES)


def _link_info(payload: bytes) -> bytes:
    kinds = {number: found.rstrip(b"\0") for number, found in parse_attributes(payload) if number in (1, 4)}
    rules: dict[int, Any] = {3: None}
    if kinds.get(1) == b"bridge":
        rules[2] = _TIMERS
    if kinds.get(4) == b"bridge":
        rules[5] = _PORT_TIMERS
    return strip_attributes(payload, rules)


_RUNNING = 0x40  # IFF_RUNNING: up to a second late, and implied by IFF_LOWER_UP, which is compared
# IFLA_ STATS, WIRELESS, OPERSTATE (late, and implied by flags), STATS64, EXT_MASK, PROMISCUITY (counts the listeners),
# CARRIER_CHANGES, EVENT, CARRIER_UP_COUNT, CARRIER_DOWN_COUNT, ALLMULTI
_LINK_RULES: Rules = {
    **dict.fromkeys((7, 11, 16, 23, 29, 30, 35, 44, 47, 48, 61, _LINK_PAD)),
    12: _PORT_TIMERS,
    18: _link_info,
    26: {10: _INET6},
}
# TCA_ STATS, XSTATS, FCNT, STATS2, EXT_WARN_MSG (in events that a request caused)
_TC_IGNORED: dict[int, Any] = dict.fromkeys((3, 4, 6, 7, 16, _TC_PAD))
_OPTION_RULES: Mapping[tuple[int, bytes], Any] = {
    (QDISC, b"htb"): {2: _htb},
    (QDISC, b"netem"): _netem,
    (CLASS, b"htb"): {_HTB_PAD: None},
    (FILTER, b"u32"): {7: _actions, 9: None},
    (FILTER, b"matchall"): {2: _actions, 4: None},
    (FILTER, b"flower"): {3: _actions},
    (FILTER, b"bpf"): {1: _actions},
    (FILTER, b"basic"): {3: _actions, 5: None},
    (FILTER, b"fw"): {4: _actions},
}
"""For the options of a qdisc, class or filter (TCA_OPTIONS), by its kind."""
_AGES = {ADDRESS: {6: None}, ROUTE: {12: None}, RULE: {}, NEIGHBOUR: {3: None, 4: None}}
IFNAME, IFLA_EVENT, KIND = 3, 44, 1
_FEATURES = 2  # IFLA_EVENT_FEATURES


def parse_object(kind: int, body: bytes) -> tuple[Key, bytes] | None:
    """Return an object's key and its stripped data; None for cached routes, which the kernel adds and removes.

    Args:
        kind: Message type of the object.
        body: Body of the message.
    """
    form = MESSAGE_STRUCTS[kind]
    head, rest = form.unpack_from(body), body[form.size :]
    if kind == LINK:
        family, hardware, index, flags, _ = head
        data = form.pack(family, hardware, index, flags & ~_RUNNING, 0) + strip_attributes(rest, _LINK_RULES)
        return ((PORT if family == _AF_BRIDGE else LINK), index), data
    if kind in (QDISC, CLASS, FILTER):
        return _traffic_control(kind, head, rest)
    if kind == ROUTE and head[8] & _CLONED:
        return None
    data = strip_attributes(rest, _AGES[kind])
    return _address_key(kind, head, dict(parse_attributes(data))), body[: form.size] + data


def _address_key(kind: int, head: tuple[int, ...], found: Mapping[int, bytes]) -> Key:
    if kind == ADDRESS:
        return kind, head[4], head[0], found.get(2, found.get(1)), head[1]
    if kind == NEIGHBOUR:
        family, index, _, flags, _ = head
        if family == _AF_BRIDGE:
            return FDB, index, found.get(2), found.get(5), flags & _SELF_OR_MASTER
        return kind, index, family, found.get(1)
    if kind == ROUTE:
        index = int.from_bytes(found.get(4, b""), "little")
        return kind, index, found.get(15), head[0], found.get(1), head[1], head[3], found.get(6)
    return kind, 0, head[0], found.get(6)


def _traffic_control(kind: int, head: tuple[int, ...], rest: bytes) -> tuple[Key, bytes]:
    family, index, handle, parent, info = head
    name = next((found.rstrip(b"\0") for number, found in parse_attributes(rest) if number == KIND), b"")
    rules = _TC_IGNORED
    if options := _OPTION_RULES.get((kind, name)):
        rules = {**rules, 2: options}
    key: Key = (kind, index, parent, info, handle)
    if kind == QDISC:
        key, info = (kind, index, parent), 0  # info is the reference count
    elif kind == CLASS:
        key = kind, index, handle
    data = strip_attributes(rest, rules)
    return key, MESSAGE_STRUCTS[kind].pack(family, index, handle, parent, info) + data


def is_permanent(kind: int, data: bytes) -> bool:
    """Return whether an object is permanent: all are, except for neighbours that the kernel learned automatically."""
    return kind != NEIGHBOUR or bool(MESSAGE_STRUCTS[NEIGHBOUR].unpack_from(data)[2] & _PERMANENT)


@dataclass(frozen=True)
class Event:
    """A change of an object: its new data, or its last data if it was deleted.

    offloads: whether the offloads of the interface changed.
    """

    key: Key
    data: bytes
    deleted: bool
    offloads: bool = False


class NamespaceState:
    """A reader of the state and the events of one network namespace.

    Args:
        pid: A process in the namespace; None for the current one.
        is_watched: Whether an interface of this name is watched; None for all. If not all interfaces are watched,
            routing rules and packet filters are not watched either.

    Raises:
        OSError: A netlink socket cannot be opened.
    """

    def __init__(self, pid: int | None, is_watched: Callable[[str], bool] | None = None) -> None:
        self._is_watched = is_watched
        self.names: dict[int, str] = {}
        self._has_bridge_ports = False
        with network_namespace(pid), contextlib.ExitStack() as stack:
            self._netlink = stack.enter_context(Netlink())
            self.events = stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
            self._filters = None
            with contextlib.suppress(OSError):
                self._filters = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
                stack.enter_context(self._filters)
            self.events.bind((0, 0))
            with contextlib.suppress(OSError):
                self.events.setsockopt(socket.SOL_SOCKET, 33, EVENT_BUFFER_BYTES)  # SO_RCVBUFFORCE
            self.events.setblocking(False)
            for group in GROUPS:
                self.events.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
            stack.pop_all()
        self._buffer = bytearray(1 << 17)

    def close(self) -> None:
        """Close all sockets."""
        for each in (self._netlink, self.events, self._filters):
            if each is not None:
                each.close()

    def _receive(self, source: socket.socket) -> bytes:
        size = source.recv_into(self._buffer)
        return bytes(memoryview(self._buffer)[:size])

    def _dump(self, kind: int, body: bytes, into: State) -> None:
        for message in self._netlink.dump(kind, body):
            parsed = parse_object(kind, message)
            if parsed is None or not self._watches(parsed[0]) or not is_permanent(parsed[0][0], parsed[1]):
                continue
            key, data = parsed
            into[key] = into[key] + data if key in into else data

    def _watches(self, key: Key) -> bool:
        return self._is_watched is None or (key[1] in self.names and self._is_watched(self.names[key[1]]))

    def read_state(self) -> State:
        """Read all objects as they are now."""
        found: State = {}
        family = MESSAGE_STRUCTS[LINK].pack(0, 0, 0, 0, 0)
        for message in self._netlink.dump(LINK, family + _SKIP_STATISTICS):
            key, data = parse_object(LINK, message) or ((), b"")
            named = dict(parse_attributes(data, 16))
            self.names[key[1]] = named[IFNAME].rstrip(b"\0").decode()
            self._has_bridge_ports = self._has_bridge_ports or 10 in named  # IFLA_MASTER
            if self._watches(key):
                found[key] = data
        self._dump(ADDRESS, MESSAGE_STRUCTS[ADDRESS].pack(0, 0, 0, 0, 0), found)
        self._dump(ROUTE, MESSAGE_STRUCTS[ROUTE].pack(*[0] * 9), found)
        if self._is_watched is None:
            self._dump(RULE, MESSAGE_STRUCTS[RULE].pack(*[0] * 9), found)
        self._dump(NEIGHBOUR, MESSAGE_STRUCTS[NEIGHBOUR].pack(0, 0, 0, 0, 0), found)
        if self._has_bridge_ports:
            self._dump(LINK, MESSAGE_STRUCTS[LINK].pack(_AF_BRIDGE, 0, 0, 0, 0), found)
            self._dump(NEIGHBOUR, MESSAGE_STRUCTS[NEIGHBOUR].pack(_AF_BRIDGE, 0, 0, 0, 0), found)
        queues: State = {}
        self._dump(QDISC, MESSAGE_STRUCTS[QDISC].pack(0, 0, 0, 0, 0), queues)
        found |= queues
        self._read_classes_and_filters(queues, found)
        self._read_offloads_and_generation(found)
        return found

    def _read_offloads_and_generation(self, found: State) -> None:
        """Add the offloads of interfaces, and the generation of nftables, which each change of its rules increments."""
        for index in [key[1] for key in found if key[0] == LINK]:
            found[OFFLOADS, index] = self.read_offloads(index)
        if self._is_watched is None and self._filters is not None:
            with contextlib.suppress(OSError):
                self._filters.send(HEADER.pack(20, _GET_GENERATION, 1, 0, 0) + bytes(4))
                for number, _, _, message in parse_messages(self._receive(self._filters)):
                    generation = dict(parse_attributes(message, 4)) if number != _ERROR else {}
                    found[PACKET_FILTER, 0] = generation.get(1, b"")

    def _read_classes_and_filters(self, queues: State, found: State) -> None:
        """Add classes and filters of qdiscs; the kernel lists classes by interface only, and filters by parent."""
        classful: set[int] = set()
        for key, data in queues.items():
            _, index, handle, _, _ = MESSAGE_STRUCTS[QDISC].unpack_from(data)
            kind = next(parse_attributes(data, 20))[1].rstrip(b"\0")
            if kind in (b"noqueue", b"pfifo", b"bfifo", b"pfifo_fast", b"netem", b"red", b"tbf", b"mq"):
                continue
            if kind not in _FILTER_PARENTS:
                classful.add(index)
            for parent in _FILTER_PARENTS.get(kind, (handle,)):
                self._dump(FILTER, MESSAGE_STRUCTS[FILTER].pack(0, key[1], 0, parent, 0), found)
        for index in classful:
            self._dump(CLASS, MESSAGE_STRUCTS[CLASS].pack(0, index, 0, 0, 0), found)

    def read_offloads(self, index: int) -> bytes:
        """Return which offloads of an interface are on, one bit each; empty if the interface does not exist."""
        try:
            return read_feature_bits(self._netlink, self.names.get(index, ""))
        except OSError:
            return b""

    def discard_events(self) -> None:
        """Discard all events until now, even if the event buffer has overflowed."""
        while True:
            try:
                self.read_events()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
            else:
                return

    def read_events(self) -> list[Event]:
        """Return the events since the last call, in order.

        Raises:
            OSError: With ENOBUFS if the event buffer has overflowed.
        """
        found: list[Event] = []
        while True:
            try:
                received = self._receive(self.events)
            except BlockingIOError:
                return found
            for number, _, _, body in parse_messages(received):
                kind, deleted = number & ~3, number & 3 == 1
                if kind not in MESSAGE_STRUCTS or number & 2:
                    continue
                parsed = parse_object(kind, body)
                if parsed is None:
                    continue
                key, data = parsed
                offloads = False
                if kind == LINK and key[0] == LINK:
                    named = dict(parse_attributes(body, 16))
                    self.names[key[1]] = named[IFNAME].rstrip(b"\0").decode()
                    offloads = int.from_bytes(named.get(IFLA_EVENT, b""), "little") == _FEATURES
                if self._watches(key):
                    found.append(Event(key, data, deleted, offloads))
