"""Interfaces of a network namespace over rtnetlink: qdiscs, classes, counters, up and down.

It decodes only the attributes that the testbed uses.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.netlink import (
    CLASS,
    FILTER,
    LINK,
    MESSAGE_STRUCTS,
    QDISC,
    ROUTE,
    Netlink,
    Request,
    encode_attribute,
    encode_nested,
    parse_attributes,
)
from testbed.net.links.netns import network_namespace
from testbed.net.links.protocol_counters import ProtocolCounts, read_protocol_counts

_ALL_LINKS, _ALL_ROUTES = MESSAGE_STRUCTS[LINK].pack(0, 0, 0, 0, 0), MESSAGE_STRUCTS[ROUTE].pack(2, *[0] * 8)
# IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS
_WITHOUT_STATISTICS = encode_attribute(29, struct.pack("=I", 1 << 3))
_IFF_UP = 1
_NUMBER, _WIDE = struct.Struct("=I"), struct.Struct("=Q")
_TRAFFIC = struct.Struct("=QQQQ")  # start of struct rtnl_link_stats64: packets in, out, bytes in, out
_SENT = struct.Struct("=QI")  # struct gnet_stats_basic: bytes, packets
_WAITING = struct.Struct("=III")  # start of struct gnet_stats_queue: qlen, backlog, drops
_HTB_RATES = struct.Struct("=8xI8xI")  # fields of two struct tc_ratespec
_HTB_REST = struct.Struct("=IIIII")  # fields of struct tc_htb_opt: buffer, cbuffer, quantum, level, prio
_NETEM_HEAD = struct.Struct("=III")  # start of struct tc_netem_qopt: latency, limit, loss
_NETEM_BYTES = 24  # struct tc_netem_qopt, before its attributes
_ACTIONS = {b"matchall": 2, b"u32": 7}  # TCA_MATCHALL_ACT, TCA_U32_ACT
_MIRRED_DEVICE_AT = 24  # offset in struct tc_mirred


@dataclass(frozen=True)
class Interface:
    """A network interface. Counters start at its creation and are 0 where no statistics were requested."""

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
        """The IFLA_BRPORT_ attributes; empty if the interface is not a bridge port."""
        info = dict(parse_attributes(self.link_info))
        return dict(parse_attributes(info.get(5, b""))) if info.get(4) == b"bridge\0" else {}


def read_interfaces(netlink: Netlink, statistics: bool = False) -> list[Interface]:
    """Read all interfaces of a namespace; counters only with `statistics`."""
    found = []
    for message in netlink.dump(LINK, _ALL_LINKS + (b"" if statistics else _WITHOUT_STATISTICS)):
        _, _, index, flags, _ = MESSAGE_STRUCTS[LINK].unpack_from(message)
        attrs = dict(parse_attributes(message, 16))
        rx_packets, tx_packets, rx_bytes, tx_bytes = _TRAFFIC.unpack_from(attrs.get(23, bytes(32)))
        found.append(
            Interface(
                index,
                attrs[3].rstrip(b"\0").decode(),
                bool(flags & _IFF_UP),
                mtu=_number(attrs.get(4)),
                gso_max_segs=_number(attrs.get(40)),
                rx_packets=rx_packets,
                tx_packets=tx_packets,
                rx_bytes=rx_bytes,
                tx_bytes=tx_bytes,
                link_info=attrs.get(18, b""),
            )
        )
    return found


def _number(payload: bytes | None) -> int:
    return _NUMBER.unpack_from(payload)[0] if payload else 0


@dataclass(frozen=True)
class Qdisc:
    """A queueing discipline; `options` and `xstats` are the kernel's raw attributes."""

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
    xstats: bytes  # counters specific to its kind


def read_qdiscs(netlink: Netlink) -> list[Qdisc]:
    """Read the qdiscs of all interfaces in a namespace; the kernel cannot list those of one interface only."""
    found = []
    for message in netlink.dump(QDISC, MESSAGE_STRUCTS[QDISC].pack(0, 0, 0, 0, 0)):
        _, index, handle, parent, _ = MESSAGE_STRUCTS[QDISC].unpack_from(message)
        attrs = dict(parse_attributes(message, 20))
        stats = dict(parse_attributes(attrs.get(7, b"")))
        size, packets = _SENT.unpack_from(stats.get(1, bytes(16)))
        if 8 in stats:  # TCA_STATS_PKT64
            (packets,) = _WIDE.unpack(stats[8])
        waiting, waiting_bytes, dropped = _WAITING.unpack_from(stats.get(3, bytes(12)))
        kind, options = attrs[1].rstrip(b"\0").decode(), attrs.get(2, b"")
        found.append(
            Qdisc(
                *(index, handle, parent, kind, options),
                *(size, packets, waiting, waiting_bytes, dropped),
                stats.get(4, b""),
            )
        )
    return found


@dataclass(frozen=True)
class NetemOptions:
    """Some options of a netem: rate in bytes per second (0: none), delay, share of packets lost at random, seed.

    Linux before 6.6 does not report the seed.
    """

    rate: int
    delay_s: float
    loss: float
    seed: int | None

    @classmethod
    def parse(cls, options: bytes) -> NetemOptions:
        """Parse the raw options of a qdisc."""
        loss = _NETEM_HEAD.unpack_from(options)[2]
        attrs = dict(parse_attributes(options, _NETEM_BYTES))
        # TCA_NETEM_RATE64, TCA_NETEM_LATENCY64, TCA_NETEM_PRNG_SEED
        rate, delay_ns, seed = (_WIDE.unpack(attrs[key])[0] if key in attrs else None for key in (8, 10, 14))
        return cls(
            _number(attrs.get(6)) if rate is None else rate, (delay_ns or 0) / 1e9, loss / 0xFFFFFFFF, seed
        )


def read_htb_classes(netlink: Netlink, index: int) -> dict[int, HtbClass]:
    """Read the HTB classes of an interface by their handles."""
    found = {}
    for message in netlink.dump(CLASS, MESSAGE_STRUCTS[CLASS].pack(0, index, 0, 0, 0)):
        _, _, handle, _, _ = MESSAGE_STRUCTS[CLASS].unpack_from(message)
        attrs = dict(parse_attributes(message, 20))
        if attrs[1] != b"htb\0" or 2 not in attrs:
            continue
        options = dict(parse_attributes(attrs[2]))
        rates = _HTB_RATES.unpack_from(options[1])
        burst, cburst, quantum, _, prio = _HTB_REST.unpack_from(options[1], _HTB_RATES.size)
        rate, ceil = (
            _WIDE.unpack(options[which])[0] if which in options else narrow
            for which, narrow in zip((6, 7), rates, strict=True)
        )
        found[handle] = HtbClass(rate, ceil, burst, cburst, quantum, prio)
    return found


def read_redirect_targets(netlink: Netlink, index: int, parent: int) -> list[int]:
    """Read the indexes of the devices to which an interface's filters redirect frames, in the order of the filters."""
    found = []
    for message in netlink.dump(FILTER, MESSAGE_STRUCTS[FILTER].pack(0, index, 0, parent, 0)):
        info = MESSAGE_STRUCTS[FILTER].unpack_from(message)[4]
        attrs = dict(parse_attributes(message, 20))
        kind = attrs[1].rstrip(b"\0")
        actions = dict(parse_attributes(attrs.get(2, b""))).get(_ACTIONS.get(kind, 0), b"")
        found += [(info, device) for device in _mirrored(actions)]
    return [device for _, device in sorted(found, key=lambda entry: entry[0])]


def _mirrored(actions: bytes) -> Iterator[int]:
    for _, action in parse_attributes(actions):
        attrs = dict(parse_attributes(action))
        if attrs.get(1) == b"mirred\0":
            yield _NUMBER.unpack_from(dict(parse_attributes(attrs[2]))[2], _MIRRED_DEVICE_AT)[0]


def read_route_rto_min_ms(netlink: Netlink) -> list[int]:
    """Read the minimum RTO in ms of the routes with a source address, 0 where it is not set (RTAX_RTO_MIN).

    Routes without any metric are left out.
    """
    found = []
    for message in netlink.dump(ROUTE, _ALL_ROUTES):
        attrs = dict(parse_attributes(message, MESSAGE_STRUCTS[ROUTE].size))
        if 7 in attrs and (metrics := dict(parse_attributes(attrs.get(8, b"")))):  # RTA_PREFSRC, RTA_METRICS
            found.append(_number(metrics.get(13)))
    return found


TICKS_PER_US = 1e3 / 64  # ticks of the kernel's clock for bursts


@dataclass(frozen=True)
class HtbClass:
    """An HTB class in the kernel's units: rates in bytes per second, bursts in ticks at that rate, quantum in bytes."""

    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int
    prio: int

    @classmethod
    def from_tc_options(cls, options: Mapping[str, str]) -> HtbClass:
        """Convert the options of a `tc class` command as `tc` does."""
        rate, ceil = (int(options[name].removesuffix("bps")) for name in ("rate", "ceil"))
        burst, cburst = (
            # truncated to microseconds and then to ticks, as in tc
            int(int(int(options[name]) / over * 1e6) * TICKS_PER_US)
            for name, over in (("burst", rate), ("cburst", ceil))
        )
        return cls(rate, ceil, burst, cburst, int(options["quantum"]), int(options.get("prio", "0")))


_ROOT, _SHAPER_MAJOR = 0xFFFFFFFF, 1


@dataclass(frozen=True)
class PortCounts:
    """The counters of one interface since its creation.

    `dropped` and `waiting` are frames dropped by and waiting in its shaper's queues, 0 without a shaper.
    `dropped_otherwise` are frames dropped by other qdiscs, on egress or ingress.
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
        """Frames passed to the interface for sending: transmitted, dropped by its queues, or waiting in them."""
        return self.tx_packets + self.dropped + self.waiting


@dataclass(frozen=True)
class NodeCounts:
    """The counters of all interfaces in a namespace by name, and of a host's protocols."""

    ports: Mapping[str, PortCounts]
    protocols: ProtocolCounts | None = None

    def with_sent_packets(self, packets: int) -> NodeCounts:
        """Return a copy that adds sent packets that no protocol counts: those of an RDMA NIC, or those in trains."""
        assert self.protocols is not None
        protocols = replace(self.protocols, out_packets=self.protocols.out_packets + packets)
        return replace(self, protocols=protocols)


def read_node_counts(pid: int | None, protocols: bool = False) -> NodeCounts:
    """Read the counters of the network namespace of process `pid` (None: the current one).

    Args:
        pid: A process in the namespace.
        protocols: Whether to read those of its protocols, too.
    """
    with network_namespace(pid), Netlink() as netlink:
        ports = read_port_counts(netlink)
    return NodeCounts(ports, read_protocol_counts(pid) if protocols else None)


def read_port_counts(netlink: Netlink) -> dict[str, PortCounts]:
    """Read the counters of all interfaces with two dumps, one of the interfaces and one of the qdiscs."""
    shapers: dict[int, Qdisc] = {}
    otherwise: Counter[int] = Counter()
    for found in read_qdiscs(netlink):
        # HTB's drops include those of its queues
        if found.parent == _ROOT and found.kind == "htb":
            shapers[found.index] = found
        elif found.parent >> 16 != _SHAPER_MAJOR:
            otherwise[found.index] += found.dropped_packets
    ports = {}
    for link in read_interfaces(netlink, statistics=True):
        shaper = shapers.get(link.index)
        ports[link.name] = PortCounts(
            *(link.rx_packets, link.rx_bytes, link.tx_packets, link.tx_bytes),
            dropped=shaper.dropped_packets if shaper else 0,
            waiting=shaper.waiting_packets if shaper else 0,
            dropped_otherwise=otherwise[link.index],
        )
    return ports


_SET_LINK = 19  # RTM_SETLINK
_AF_BRIDGE, _PORT, _ISOLATED = 7, 12, 33  # IFLA_PROTINFO, IFLA_BRPORT_ISOLATED


def set_interfaces_up(pid: int | None, names: Iterable[str], up: bool) -> None:
    """Set interfaces up or down and read their state back.

    Args:
        pid: A process in their network namespace; None for the current one.
        names: Names of the interfaces.
        up: Whether to set them up.

    Raises:
        LinkError: An interface does not exist, or the kernel refused.
        SettingMismatch: An interface is not in the requested state.
    """
    asked = list(names)
    state = "up" if up else "down"
    with network_namespace(pid), Netlink() as netlink:
        netlink.execute(
            [
                Request(
                    LINK,
                    0,
                    MESSAGE_STRUCTS[LINK].pack(0, 0, link.index, _IFF_UP * up, _IFF_UP),
                    f"{link.name} {state}",
                )
                for link in find_interfaces(netlink, asked)
            ]
        )
        for link in find_interfaces(netlink, asked):
            if link.up != up:
                raise SettingMismatch(link.name, "state", state, "up" if link.up else "down")


def isolate_bridge_ports(netlink: Netlink, names: Iterable[str], isolated: bool) -> None:
    """Isolate bridge ports from each other, or undo that, and read it back; isolated ports exchange no frames.

    Raises:
        LinkError: A port does not exist, or the kernel refused.
        SettingMismatch: A port is not as requested.
    """
    asked = list(names)
    flag = encode_nested(_PORT, encode_attribute(_ISOLATED, struct.pack("=B", isolated)))
    netlink.execute(
        [
            Request(
                *(_SET_LINK, 0, MESSAGE_STRUCTS[LINK].pack(_AF_BRIDGE, 0, link.index, 0, 0) + flag),
                f"{link.name} isolated: {isolated}",
            )
            for link in find_interfaces(netlink, asked)
        ]
    )
    for link in find_interfaces(netlink, asked):
        found = link.bridge_port.get(_ISOLATED)
        if found is None or bool(found[0]) != isolated:
            raise SettingMismatch(link.name, "isolated", str(isolated), str(not isolated))


def find_interfaces(netlink: Netlink, names: Iterable[str]) -> list[Interface]:
    """Read these interfaces. Raises LinkError if one does not exist."""
    known = {link.name: link for link in read_interfaces(netlink)}
    for name in names:
        if name not in known:
            raise LinkError(f"{name}: no such interface")
    return [known[name] for name in names]
