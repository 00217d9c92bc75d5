"""Interfaces of a network namespace over rtnetlink: qdiscs, classes, counters, up and down.

Only what somebody here asks for is taken out of the messages.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.netlink import (
    CLASS,
    FILTER,
    FORMS,
    LINK,
    QDISC,
    ROUTE,
    Netlink,
    Request,
    attributes,
    nest,
    put,
)
from testbed.net.links.netns import network_namespace
from testbed.net.links.protocol_counters import ProtocolCounts, read_protocols

_EVERY_LINK, _EVERY_ROUTE = FORMS[LINK].pack(0, 0, 0, 0, 0), FORMS[ROUTE].pack(2, *[0] * 8)
_WITHOUT_STATISTICS = put(29, struct.pack("=I", 1 << 3))  # IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS
_UP = 1  # IFF_UP
_NUMBER, _WIDE = struct.Struct("=I"), struct.Struct("=Q")
_TRAFFIC = struct.Struct("=QQQQ")  # the beginning of struct rtnl_link_stats64: packets in, out, bytes in, out
_SENT = struct.Struct("=QI")  # struct gnet_stats_basic: bytes, packets
_WAITING = struct.Struct("=III")  # the beginning of struct gnet_stats_queue: qlen, backlog, drops
_HTB_RATES = struct.Struct("=8xI8xI")  # of two struct tc_ratespec
_HTB_REST = struct.Struct("=IIIII")  # of struct tc_htb_opt: buffer, cbuffer, quantum, level, prio
_NETEM_HEAD = struct.Struct("=III")  # the beginning of struct tc_netem_qopt: latency, limit, loss
_NETEM_BYTES = 24  # struct tc_netem_qopt, before its attributes
_ACTIONS = {b"matchall": 2, b"u32": 7}  # TCA_MATCHALL_ACT, TCA_U32_ACT
_MIRRED_DEVICE_AT = 24  # of struct tc_mirred


@dataclass(frozen=True)
class Interface:
    """One interface. rx and tx count since it was made, where statistics were asked for. Sizes in bytes."""

    index: int
    name: str
    up: bool
    mtu: int
    gso_max_segs: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    link_info: bytes

    @cached_property
    def bridge_port(self) -> Mapping[int, bytes]:
        """What it is as a bridge's port, by IFLA_BRPORT_; empty where it is none."""
        info = dict(attributes(self.link_info))
        return dict(attributes(info.get(5, b""))) if info.get(4) == b"bridge\0" else {}


def interfaces(netlink: Netlink, statistics: bool = False) -> list[Interface]:
    """All of the namespace."""
    found = []
    for message in netlink.dump(LINK, _EVERY_LINK + (b"" if statistics else _WITHOUT_STATISTICS)):
        _, _, index, flags, _ = FORMS[LINK].unpack_from(message)
        told = dict(attributes(message, 16))
        rx_packets, tx_packets, rx_bytes, tx_bytes = _TRAFFIC.unpack_from(told.get(23, bytes(32)))
        found.append(
            Interface(
                index,
                told[3].rstrip(b"\0").decode(),
                bool(flags & _UP),
                mtu=_number(told.get(4)),
                gso_max_segs=_number(told.get(40)),
                rx_packets=rx_packets,
                tx_packets=tx_packets,
                rx_bytes=rx_bytes,
                tx_bytes=tx_bytes,
                link_info=told.get(18, b""),
            )
        )
    return found


def _number(payload: bytes | None) -> int:
    return _NUMBER.unpack_from(payload)[0] if payload else 0


@dataclass(frozen=True)
class Discipline:
    """A queueing discipline; options and statistics as the kernel has them, counters in frames and bytes."""

    index: int
    handle: int
    parent: int
    kind: str
    options: bytes
    sent_bytes: int
    sent_packets: int
    waiting_packets: int
    waiting_bytes: int
    dropped_packets: int
    own: bytes  # what only its kind counts


def disciplines(netlink: Netlink) -> list[Discipline]:
    """All on all interfaces of the namespace, since the kernel tells of all whatever it is asked for."""
    found = []
    for message in netlink.dump(QDISC, FORMS[QDISC].pack(0, 0, 0, 0, 0)):
        _, index, handle, parent, _ = FORMS[QDISC].unpack_from(message)
        told = dict(attributes(message, 20))
        counted = dict(attributes(told.get(7, b"")))
        size, packets = _SENT.unpack_from(counted.get(1, bytes(16)))
        if 8 in counted:  # TCA_STATS_PKT64
            (packets,) = _WIDE.unpack(counted[8])
        waiting, waiting_bytes, dropped = _WAITING.unpack_from(counted.get(3, bytes(12)))
        kind, options = told[1].rstrip(b"\0").decode(), told.get(2, b"")
        found.append(
            Discipline(
                *(index, handle, parent, kind, options),
                *(size, packets, waiting, waiting_bytes, dropped),
                counted.get(4, b""),
            )
        )
    return found


def netem_rate(options: bytes) -> int:
    """Bytes per second of a netem with these options; 0 where it has no rate."""
    told = dict(attributes(options, _NETEM_BYTES))
    return int(_WIDE.unpack(told[8])[0]) if 8 in told else _number(told.get(6))


def netem_delay_and_loss(options: bytes) -> tuple[float, float]:
    """(delay in seconds, share of packets lost at random) of a netem with these options."""
    _, _, loss = _NETEM_HEAD.unpack_from(options)
    told = dict(attributes(options, _NETEM_BYTES))
    (delay_ns,) = _WIDE.unpack(told[10]) if 10 in told else (0,)  # TCA_NETEM_LATENCY64
    return delay_ns / 1e9, loss / 0xFFFFFFFF


def netem_seed(options: bytes) -> int | None:
    """Return the seed of a netem with these options; None before Linux 6.6, where it draws one and does not tell."""
    told = dict(attributes(options, _NETEM_BYTES))
    return int(_WIDE.unpack(told[14])[0]) if 14 in told else None  # TCA_NETEM_PRNG_SEED


def htb_classes(netlink: Netlink, index: int) -> dict[int, HtbClass]:
    """HTB's classes on an interface by their handles."""
    found = {}
    for message in netlink.dump(CLASS, FORMS[CLASS].pack(0, index, 0, 0, 0)):
        _, _, handle, _, _ = FORMS[CLASS].unpack_from(message)
        told = dict(attributes(message, 20))
        if told[1] != b"htb\0" or 2 not in told:
            continue
        options = dict(attributes(told[2]))
        rates = _HTB_RATES.unpack_from(options[1])
        burst, cburst, quantum, _, prio = _HTB_REST.unpack_from(options[1], _HTB_RATES.size)
        rate, ceil = (
            _WIDE.unpack(options[which])[0] if which in options else narrow
            for which, narrow in zip((6, 7), rates, strict=True)
        )
        found[handle] = HtbClass(rate, ceil, burst, cburst, quantum, prio)
    return found


def redirect_targets(netlink: Netlink, index: int, parent: int) -> list[int]:
    """Numbers of the devices that the filters of an interface hand frames to, in the filters' order."""
    found = []
    for message in netlink.dump(FILTER, FORMS[FILTER].pack(0, index, 0, parent, 0)):
        info = FORMS[FILTER].unpack_from(message)[4]
        told = dict(attributes(message, 20))
        kind = told[1].rstrip(b"\0")
        actions = dict(attributes(told.get(2, b""))).get(_ACTIONS.get(kind, 0), b"")
        found += [(info, device) for device in _mirrored(actions)]
    return [device for _, device in sorted(found, key=lambda entry: entry[0])]


def _mirrored(actions: bytes) -> Iterator[int]:
    for _, action in attributes(actions):
        told = dict(attributes(action))
        if told.get(1) == b"mirred\0":
            yield _NUMBER.unpack_from(dict(attributes(told[2]))[2], _MIRRED_DEVICE_AT)[0]


def route_rto_min_ms(netlink: Netlink) -> list[int]:
    """Of the routes for connections from this host, where one was set (RTAX_RTO_MIN)."""
    found = []
    for message in netlink.dump(ROUTE, _EVERY_ROUTE):
        told = dict(attributes(message, FORMS[ROUTE].size))
        if 7 in told and (metrics := dict(attributes(told.get(8, b"")))):  # RTA_PREFSRC, RTA_METRICS
            found.append(_number(metrics.get(13)))
    return found


TICKS_PER_US = 1e3 / 64  # of the kernel's clock for bursts


@dataclass(frozen=True)
class HtbClass:
    """As the kernel keeps it: bytes per second, bursts as the ticks that they take, bytes."""

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


_ROOT, _SHAPER_MAJOR = 0xFFFFFFFF, 1


@dataclass(frozen=True)
class PortCounts:
    """One interface since it was made.

    dropped, waiting: frames, by and in its shaper's queues; 0 where it has none. dropped_otherwise: by any other
    queueing discipline, on its way out or in.
    """

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    dropped: int = 0
    waiting: int = 0
    dropped_otherwise: int = 0

    @property
    def sent_packets(self) -> int:
        """Frames that were given to it to send: those that left, that its queues dropped, that wait in them."""
        return self.tx_packets + self.dropped + self.waiting


@dataclass(frozen=True)
class NodeCounts:
    """All interfaces of a namespace by name; `protocols` of a host's."""

    ports: Mapping[str, PortCounts]
    protocols: ProtocolCounts | None = None

    def with_packets(self, sent: int) -> NodeCounts:
        """The same of a host that has sent so many more than its protocols know of: a card with verbs, or in trains."""
        assert self.protocols is not None
        protocols = replace(self.protocols, out_packets=self.protocols.out_packets + sent)
        return replace(self, protocols=protocols)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NodeCounts:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        ports = {name: PortCounts(**entry) for name, entry in document["ports"].items()}
        protocols = document["protocols"]
        return cls(ports, protocols and ProtocolCounts(**protocols))


def read_node(pid: int | None, protocols: bool = False) -> NodeCounts:
    """Of the network namespace of process `pid` (None: here)."""
    with network_namespace(pid), Netlink() as netlink:
        ports = read_ports(netlink)
    return NodeCounts(ports, read_protocols(pid) if protocols else None)


def read_ports(netlink: Netlink) -> dict[str, PortCounts]:
    """All interfaces: one dump of them and one of the queueing disciplines, whatever their number."""
    shapers: dict[int, Discipline] = {}
    otherwise: Counter[int] = Counter()
    for found in disciplines(netlink):
        # HTB counts what its queues drop as its own, too
        if found.parent == _ROOT and found.kind == "htb":
            shapers[found.index] = found
        elif found.parent >> 16 != _SHAPER_MAJOR:
            otherwise[found.index] += found.dropped_packets
    ports = {}
    for link in interfaces(netlink, statistics=True):
        shaper = shapers.get(link.index)
        ports[link.name] = PortCounts(
            *(link.rx_packets, link.rx_bytes, link.tx_packets, link.tx_bytes),
            dropped=shaper.dropped_packets if shaper else 0,
            waiting=shaper.waiting_packets if shaper else 0,
            dropped_otherwise=otherwise[link.index],
        )
    return ports


_SET_LINK = 19  # RTM_SETLINK
_IFF_UP = 1  # IFF_UP
_AF_BRIDGE, _PORT, _ISOLATED = 7, 12, 33  # IFLA_PROTINFO, IFLA_BRPORT_ISOLATED


def set_interfaces_up(pid: int | None, names: Iterable[str], up: bool) -> None:
    """Set interfaces up or down in the network namespace of process `pid` (None: here), and read it back.

    LinkError, SettingMismatch.
    """
    asked = list(names)
    state = "up" if up else "down"
    with network_namespace(pid), Netlink() as netlink:
        netlink.carry_out(
            [
                Request(
                    LINK, 0, FORMS[LINK].pack(0, 0, link.index, _IFF_UP * up, _IFF_UP), f"{link.name} {state}"
                )
                for link in _of(netlink, asked)
            ]
        )
        for link in _of(netlink, asked):
            if link.up != up:
                raise SettingMismatch(link.name, "state", state, "the other")


def isolate_bridge_ports(netlink: Netlink, names: Iterable[str], isolated: bool) -> None:
    """Whether ports of a bridge exchange no frames with those that are isolated as well; read back.

    LinkError, SettingMismatch.
    """
    asked = list(names)
    flag = nest(_PORT, put(_ISOLATED, struct.pack("=B", isolated)))
    netlink.carry_out(
        [
            Request(
                *(_SET_LINK, 0, FORMS[LINK].pack(_AF_BRIDGE, 0, link.index, 0, 0) + flag),
                f"{link.name} isolated: {isolated}",
            )
            for link in _of(netlink, asked)
        ]
    )
    for link in _of(netlink, asked):
        found = link.bridge_port.get(_ISOLATED)
        if found is None or bool(found[0]) != isolated:
            raise SettingMismatch(link.name, "isolated", str(isolated), str(not isolated))


def _of(netlink: Netlink, names: Iterable[str]) -> list[Interface]:
    known = {link.name: link for link in interfaces(netlink)}
    for name in names:
        if name not in known:
            raise LinkError(f"{name}: no such interface")
    return [known[name] for name in names]
