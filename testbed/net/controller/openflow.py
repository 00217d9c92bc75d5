"""Conversion of rules to OpenFlow 1.3 messages and back.

ECMP is Open vSwitch's `bundle` action. In one rule, it hashes addresses, protocol and TCP or UDP ports and picks a port
by highest random weight. (OpenFlow 1.3 SELECT groups hash all UDP flows of a host pair onto one port.) It works on both
the userspace and the kernel datapath, since Open vSwitch resolves it before a flow reaches the datapath.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from ipaddress import IPv4Network
from typing import Any

from testbed.net.controller.ecmp_hash import TCP
from testbed.net.controller.rules import (
    PORT_FIELDS,
    Action,
    Ecmp,
    FastFailover,
    Goto,
    Match,
    Output,
    Ports,
    Rule,
    SetDscp,
    parse_network,
)

ETH_TYPE_IPV4 = 0x0800
# From Open vSwitch's lib/ofp-actions.c and include/openflow/nicira-ext.h; the controller libraries lack the first.
HASH_FIELDS_SYMMETRIC_L3L4_UDP = 3
BUNDLE_HIGHEST_RANDOM_WEIGHT = 1
NXM_OF_IN_PORT = 0x00000002

ONF_EXPERIMENTER = 0x4F4E4600
OXM_BASIC = 0x8000
OXM_IN_PORT, OXM_ETH_TYPE, OXM_IP_DSCP, OXM_IP_PROTO = 0, 5, 8, 10
OXM_IPV4_SRC, OXM_IPV4_DST, OXM_TCP_SRC, OXM_TCP_DST = 11, 12, 13, 14
OXM_UDP_SRC, OXM_UDP_DST = 15, 16
# Layouts from openflow.h. The first is a flow statistics entry up to its match.
_FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
_FLOW_MOD = struct.Struct("!BBHIQQBBHHHIIIH2x")
_KEY = struct.Struct("!BHHH")


class FlowMod:
    """The message that adds a rule, or replaces the one with the same table, priority and match.

    It is encoded here rather than by the libraries, which take ten times as long. Fields are in Open vSwitch's order,
    so a switch reports the rule with the same bytes.
    """

    def __init__(self, datapath: Any, rule: Rule) -> None:
        protocol = datapath.ofproto
        self.table_id, self.priority, self.idle_timeout, self.hard_timeout = rule.table, rule.priority, 0, 0
        self.xid: int | None = None
        self.body = _encode_match(rule.match) + _encode_instructions(datapath.ofproto_parser, rule.actions)
        self._size = _FLOW_MOD.size + len(self.body)
        self._fixed = (
            *(0, 0, rule.table, protocol.OFPFC_ADD, 0, 0, rule.priority, protocol.OFP_NO_BUFFER),
            *(protocol.OFPP_ANY, protocol.OFPG_ANY, 0),
        )
        self._head = protocol.OFP_VERSION, protocol.OFPT_FLOW_MOD, self._size

    def set_xid(self, xid: int) -> None:
        """Set the transaction id; the libraries call this."""
        self.xid = xid

    @property
    def buf(self) -> bytes:
        """The encoded message, including its header."""
        return _FLOW_MOD.pack(*self._head, self.xid, *self._fixed) + self.body

    @property
    def key(self) -> bytes:
        """The key that the switch's `FlowEntry` for this rule has."""
        return _KEY.pack(self.table_id, self.priority, 0, 0) + self.body


def _encode_match(match: Match) -> bytes:
    fields = []

    def put(field: int, form: str, value: int, mask: int | None = None) -> None:
        size = struct.calcsize(form)
        if mask is None or mask == (1 << 8 * size) - 1:
            fields.append(struct.pack("!HBB" + form, OXM_BASIC, field << 1, size, value))
        else:
            fields.append(struct.pack("!HBB" + 2 * form, OXM_BASIC, field << 1 | 1, 2 * size, value, mask))

    if match.in_port is not None:
        put(OXM_IN_PORT, "I", match.in_port)
    if match.ip_only:
        put(OXM_ETH_TYPE, "H", ETH_TYPE_IPV4)
    if match.ipv4_src is not None:
        put(OXM_IPV4_SRC, "I", *parse_network(match.ipv4_src))
    if match.ipv4_dst is not None:
        put(OXM_IPV4_DST, "I", *parse_network(match.ipv4_dst))
    if match.ip_dscp is not None:
        put(OXM_IP_DSCP, "B", match.ip_dscp)
    if match.ip_proto is not None:
        put(OXM_IP_PROTO, "B", match.ip_proto)
        port_fields = OXM_UDP_SRC, OXM_UDP_DST
        if match.ip_proto == TCP:
            port_fields = OXM_TCP_SRC, OXM_TCP_DST
        for field, ports in zip(port_fields, match.ports(match.ip_proto), strict=True):
            if ports is not None:
                put(field, "H", ports.value, ports.mask)
    body = b"".join(fields)
    length = 4 + len(body)
    return struct.pack("!HH", 1, length) + body + bytes(-length % 8)


@lru_cache(maxsize=1024)
def _encode_instructions(parser: Any, actions: tuple[Action, ...]) -> bytes:
    apply = [_build_action(parser, action) for action in actions if not isinstance(action, Goto)]
    instructions = [parser.OFPInstructionActions(parser.ofproto.OFPIT_APPLY_ACTIONS, apply)] if apply else []
    instructions += [parser.OFPInstructionGotoTable(a.table) for a in actions if isinstance(a, Goto)]
    encoded = bytearray()
    for instruction in instructions:
        instruction.serialize(encoded, len(encoded))
    return bytes(encoded)


def flow_removal(datapath: Any, flow: Any) -> Any:
    """Return the message that deletes exactly one flow of a statistics reply."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowMod(
        datapath,
        command=protocol.OFPFC_DELETE_STRICT,
        table_id=flow.table_id,
        priority=flow.priority,
        out_port=protocol.OFPP_ANY,
        out_group=protocol.OFPG_ANY,
        match=flow.match,
    )


def group_mod(datapath: Any, group: FastFailover) -> Any:
    """Return the message that adds a group."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    buckets = [
        parser.OFPBucket(
            watch_port=port, watch_group=protocol.OFPG_ANY, actions=[parser.OFPActionOutput(port)]
        )
        for port in group.ports
    ]
    return parser.OFPGroupMod(datapath, protocol.OFPGC_ADD, protocol.OFPGT_FF, group.group_id, buckets)


def group_removal(datapath: Any, group_id: int) -> Any:
    """Return the message that deletes a group and the flows that use it."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPGroupMod(datapath, protocol.OFPGC_DELETE, protocol.OFPGT_ALL, group_id, [])


def groups_of(rules: Iterable[Rule]) -> dict[int, FastFailover]:
    """Return the groups that rules need, by group id.

    Raises:
        ValueError: Two groups have the same id.
    """
    groups: dict[int, FastFailover] = {}
    for rule in rules:
        for action in rule.actions:
            if isinstance(action, FastFailover) and groups.setdefault(action.group_id, action) != action:
                raise ValueError(
                    f"groups for ports {action.ports} and {groups[action.group_id].ports} have the same id"
                )
    return groups


def parse_group(datapath: Any, entry: Any) -> FastFailover | None:
    """Parse an entry of a group description reply; return None for a group that `group_mod` cannot create."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    if entry.type != protocol.OFPGT_FF:
        return None
    ports = []
    for bucket in entry.buckets:
        if len(bucket.actions) != 1 or not isinstance(bucket.actions[0], parser.OFPActionOutput):
            return None
        if bucket.actions[0].port != bucket.watch_port:
            return None
        ports.append(bucket.watch_port)
    try:
        group = FastFailover(tuple(ports))
    except ValueError:
        return None
    return group if group.group_id == entry.group_id else None


class FlowEntry:
    """An entry of a flow statistics reply whose match and instructions are parsed on demand.

    A switch reports unchanged rules with the bytes that were sent, so thousands of them need no parsing.
    """

    library_class: Any = None
    """The library's own class for these entries, set by `install_parser`."""

    def __init__(self, buffer: Any, offset: int) -> None:
        head = _FLOW_STATS.unpack_from(buffer, offset)
        self.length, self.table_id, self.priority = head[0], head[1], head[4]
        self.idle_timeout, self.hard_timeout = head[5], head[6]
        self.packet_count, self.byte_count = head[9], head[10]
        self.raw = bytes(buffer[offset : offset + self.length])

    @classmethod
    def parser(cls, buffer: Any, offset: int) -> FlowEntry:
        """Build an entry from a reply's bytes; the libraries call this."""
        return cls(buffer, offset)

    @property
    def key(self) -> bytes:
        """The identity of an entry: table, priority, timeouts, match and instructions."""
        head = _KEY.pack(self.table_id, self.priority, self.idle_timeout, self.hard_timeout)
        return head + self.raw[_FLOW_STATS.size :]

    @cached_property
    def _parsed(self) -> Any:
        return FlowEntry.library_class.parser(self.raw, 0)

    @property
    def match(self) -> Any:
        """The match, as the library parses it."""
        return self._parsed.match

    @property
    def instructions(self) -> Any:
        """The instructions, as the library parses them."""
        return self._parsed.instructions

    @classmethod
    def install_parser(cls, parser: Any) -> None:
        """Make the library parse flow statistics replies into this class; idempotent."""
        if parser.OFPFlowStatsReply.cls_stats_body_cls is not cls:
            cls.library_class = parser.OFPFlowStatsReply.cls_stats_body_cls
            parser.OFPFlowStatsReply.cls_stats_body_cls = cls


def parse_rule(datapath: Any, flow: Any, groups: Mapping[int, FastFailover] | None = None) -> Rule:
    """Parse a flow into a rule.

    Args:
        datapath: The switch that the flow is from.
        flow: A flow mod, or an entry of a flow statistics reply.
        groups: The groups of the switch, by group id.

    Raises:
        ValueError: The flow is not one that `FlowMod` can create.
    """
    if flow.idle_timeout or flow.hard_timeout:
        raise ValueError(f"timeouts {flow.idle_timeout} s and {flow.hard_timeout} s")
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    actions: list[Action] = []
    for instruction in flow.instructions:
        if instruction.type == protocol.OFPIT_GOTO_TABLE:
            actions.append(Goto(instruction.table_id))
        elif instruction.type == protocol.OFPIT_APPLY_ACTIONS:
            actions += [_parse_action(parser, action, groups) for action in instruction.actions]
        else:
            raise ValueError(f"instruction {instruction}")
    return Rule(flow.priority, parse_match(flow.match), tuple(actions), table=flow.table_id)


def parse_match(match: Any) -> Match:
    """Parse the library's match into a `Match`.

    Raises:
        ValueError: The match is not one that a rule can have.
    """
    given = dict(match.items())
    fields: dict[str, Any] = {name: given.pop(name, None) for name in ("in_port", "ip_dscp")}
    for name in ("ipv4_src", "ipv4_dst"):
        # an (address, mask) pair, or only the address when the mask is all ones
        address = given.pop(name, None)
        fields[name] = None if address is None else str(IPv4Network(address))
    for name in PORT_FIELDS:
        port = given.pop(name, None)
        fields[name] = None if port is None else Ports(*port) if isinstance(port, tuple) else Ports(port)
    parsed = Match(**fields)
    ethernet, protocol = given.pop("eth_type", None), given.pop("ip_proto", None)
    if given or ethernet != (ETH_TYPE_IPV4 if parsed.ip_only else None) or protocol != parsed.ip_proto:
        raise ValueError(f"match {match}")
    return parsed


def _build_action(parser: Any, action: Action) -> Any:
    if isinstance(action, Output):
        return parser.OFPActionOutput(action.port)
    if isinstance(action, FastFailover):
        return parser.OFPActionGroup(action.group_id)
    if isinstance(action, SetDscp):
        return parser.OFPActionSetField(ip_dscp=action.dscp)
    assert isinstance(action, Ecmp)
    return parser.NXActionBundle(
        algorithm=BUNDLE_HIGHEST_RANDOM_WEIGHT,
        fields=HASH_FIELDS_SYMMETRIC_L3L4_UDP,
        basis=action.seed,
        slave_type=NXM_OF_IN_PORT,
        n_slaves=len(action.ports),
        ofs_nbits=0,
        dst=0,
        slaves=list(action.ports),
    )


def _parse_action(parser: Any, action: Any, groups: Mapping[int, FastFailover] | None) -> Action:
    if isinstance(action, parser.OFPActionOutput):
        return Output(action.port)
    if isinstance(action, parser.OFPActionGroup) and groups and action.group_id in groups:
        return groups[action.group_id]
    if isinstance(action, parser.OFPActionSetField) and action.key == "ip_dscp":
        return SetDscp(action.value)
    if isinstance(action, parser.NXActionBundle):
        kind = (action.algorithm, action.fields, action.slave_type)
        if kind == (BUNDLE_HIGHEST_RANDOM_WEIGHT, HASH_FIELDS_SYMMETRIC_L3L4_UDP, NXM_OF_IN_PORT):
            return Ecmp(tuple(action.slaves), action.basis)
    raise ValueError(f"action {action}")


# From openflow.h: the header of a bundle message, before the message that it contains.
_BUNDLE_ADD = struct.Struct("!BBHIIII2xH")
BATCH_SIZE = 500  # messages passed to the library at once, since each call costs a thread switch


class BundleWriter:
    """A writer of an OpenFlow bundle, which a switch applies atomically and in order (ONF extension 230)."""

    def __init__(self, datapath: Any, bundle_id: int, send: Callable[[Any], int]) -> None:
        self._datapath = datapath
        self._id = bundle_id
        self._send = send
        self._pending: list[bytes] = []
        self._control("OPEN")

    def _control(self, what: str) -> None:
        protocol, parser = self._datapath.ofproto, self._datapath.ofproto_parser
        kind = getattr(protocol, f"ONF_BCT_{what}_REQUEST")
        flags = protocol.ONF_BF_ATOMIC | protocol.ONF_BF_ORDERED
        self._send(parser.ONFBundleCtrlMsg(self._datapath, self._id, kind, flags, []))

    def add(self, message: Any) -> None:
        """Add a message; it and its bundle message share a new transaction id."""
        protocol = self._datapath.ofproto
        self._datapath.set_xid(message)
        if not isinstance(message, FlowMod):
            message.serialize()
        inner = bytes(message.buf)
        head = _BUNDLE_ADD.pack(
            protocol.OFP_VERSION,
            protocol.OFPT_EXPERIMENTER,
            _BUNDLE_ADD.size + len(inner),
            message.xid,
            ONF_EXPERIMENTER,
            protocol.ONF_ET_BUNDLE_ADD_MESSAGE,
            self._id,
            protocol.ONF_BF_ATOMIC | protocol.ONF_BF_ORDERED,
        )
        self._pending += (head, inner)
        if len(self._pending) >= BATCH_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._datapath.send(b"".join(self._pending))
            self._pending.clear()

    def commit(self) -> None:
        """Ask the switch to apply the bundle."""
        self._flush()
        self._control("CLOSE")
        self._control("COMMIT")
