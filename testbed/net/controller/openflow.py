"""Rules to OpenFlow 1.3 messages and back.

ECMP is Open vSwitch's `bundle` action: it hashes addresses, protocol and TCP or UDP ports and picks a port by highest
random weight, in one rule. (OpenFlow 1.3 SELECT groups hash UDP flows of a host pair onto one port.) Works on the
userspace and the kernel datapath alike, since Open vSwitch resolves it before a flow reaches the datapath.
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
    network,
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
# of openflow.h: the entries of a flow statistics reply before their match
_FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
_FLOW_MOD = struct.Struct("!BBHIQQBBHHHIIIH2x")
_KEY = struct.Struct("!BHHH")


class FlowMod:
    """The message that adds a rule, in place of one with the same table, priority and match.

    Encoded here, fields in the order in which Open vSwitch shows them: a tenth of the libraries' time for each, and
    what a switch shows of it has the same bytes.
    """

    def __init__(self, datapath: Any, rule: Rule) -> None:
        protocol = datapath.ofproto
        self.table_id, self.priority, self.idle_timeout, self.hard_timeout = rule.table, rule.priority, 0, 0
        self.xid: int | None = None
        self.body = _match_bytes(rule.match) + _instructions(datapath.ofproto_parser, rule.actions)
        self._size = _FLOW_MOD.size + len(self.body)
        self._fixed = (
            *(0, 0, rule.table, protocol.OFPFC_ADD, 0, 0, rule.priority, protocol.OFP_NO_BUFFER),
            *(protocol.OFPP_ANY, protocol.OFPG_ANY, 0),
        )
        self._head = protocol.OFP_VERSION, protocol.OFPT_FLOW_MOD, self._size

    def set_xid(self, xid: int) -> None:
        """As the libraries' messages have it."""
        self.xid = xid

    @property
    def buf(self) -> bytes:
        """The message's bytes, header included."""
        return _FLOW_MOD.pack(*self._head, self.xid, *self._fixed) + self.body

    @property
    def key(self) -> bytes:
        """The same as `FlowEntry.key` of what a switch shows of it."""
        return _KEY.pack(self.table_id, self.priority, 0, 0) + self.body


def flow_mod(datapath: Any, rule: Rule) -> FlowMod:
    """The message that adds a rule."""
    return FlowMod(datapath, rule)


def _match_bytes(match: Match) -> bytes:
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
        put(OXM_IPV4_SRC, "I", *network(match.ipv4_src))
    if match.ipv4_dst is not None:
        put(OXM_IPV4_DST, "I", *network(match.ipv4_dst))
    if match.ip_dscp is not None:
        put(OXM_IP_DSCP, "B", match.ip_dscp)
    if match.ip_proto is not None:
        put(OXM_IP_PROTO, "B", match.ip_proto)
        fields_of = OXM_UDP_SRC, OXM_UDP_DST
        if match.ip_proto == TCP:
            fields_of = OXM_TCP_SRC, OXM_TCP_DST
        for field, ports in zip(fields_of, match.ports(match.ip_proto), strict=True):
            if ports is not None:
                put(field, "H", ports.value, ports.mask)
    found = b"".join(fields)
    length = 4 + len(found)
    return struct.pack("!HH", 1, length) + found + bytes(-length % 8)


@lru_cache(maxsize=1024)
def _instructions(parser: Any, actions: tuple[Action, ...]) -> bytes:
    apply = [_action(parser, action) for action in actions if not isinstance(action, Goto)]
    made = [parser.OFPInstructionActions(parser.ofproto.OFPIT_APPLY_ACTIONS, apply)] if apply else []
    made += [parser.OFPInstructionGotoTable(action.table) for action in actions if isinstance(action, Goto)]
    found = bytearray()
    for instruction in made:
        instruction.serialize(found, len(found))
    return bytes(found)


def flow_removal(datapath: Any, flow: Any) -> Any:
    """The message that deletes one flow of a statistics reply, whatever it is, and no other."""
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
    """The message that adds a group."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    buckets = [
        parser.OFPBucket(
            watch_port=port, watch_group=protocol.OFPG_ANY, actions=[parser.OFPActionOutput(port)]
        )
        for port in group.ports
    ]
    return parser.OFPGroupMod(datapath, protocol.OFPGC_ADD, protocol.OFPGT_FF, group.group_id, [*buckets])


def group_removal(datapath: Any, group_id: int) -> Any:
    """The message that deletes a group, with the flows that use it."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPGroupMod(datapath, protocol.OFPGC_DELETE, protocol.OFPGT_ALL, group_id, [])


def groups_of(rules: Iterable[Rule]) -> dict[int, FastFailover]:
    """The groups that rules need, by their numbers. ValueError where two have the same."""
    found: dict[int, FastFailover] = {}
    for rule in rules:
        for action in rule.actions:
            if isinstance(action, FastFailover) and found.setdefault(action.group_id, action) != action:
                raise ValueError(
                    f"groups for ports {action.ports} and {found[action.group_id].ports}: one number"
                )
    return found


def group_of(datapath: Any, entry: Any) -> FastFailover | None:
    """The group that an entry of a group description reply is; None when `group_mod` could not have made it."""
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
    """One entry of a flow statistics reply, taken as it comes: what it matches and does is parsed when it is asked for.

    A switch that holds thousands of rules as they were sent needs none of them parsed: their bytes are the same.
    """

    parts: Any = None
    """The library's own parser of such entries, on `watch`."""

    def __init__(self, buffer: Any, offset: int) -> None:
        head = _FLOW_STATS.unpack_from(buffer, offset)
        self.length, self.table_id, self.priority = head[0], head[1], head[4]
        self.idle_timeout, self.hard_timeout = head[5], head[6]
        self.packet_count, self.byte_count = head[9], head[10]
        self.raw = bytes(buffer[offset : offset + self.length])

    @classmethod
    def parser(cls, buffer: Any, offset: int) -> FlowEntry:
        """What the libraries call."""
        return cls(buffer, offset)

    @property
    def key(self) -> bytes:
        """What tells one entry from another: where it stands, when it ends, what it matches and does."""
        head = _KEY.pack(self.table_id, self.priority, self.idle_timeout, self.hard_timeout)
        return head + self.raw[_FLOW_STATS.size :]

    @cached_property
    def _parsed(self) -> Any:
        return FlowEntry.parts.parser(self.raw, 0)

    @property
    def match(self) -> Any:
        """As the library has it."""
        return self._parsed.match

    @property
    def instructions(self) -> Any:
        """As the library has them."""
        return self._parsed.instructions

    @classmethod
    def use(cls, parser: Any) -> None:
        """Have flow statistics replies parsed into entries of this class. Harmless when repeated."""
        if parser.OFPFlowStatsReply.cls_stats_body_cls is not cls:
            cls.parts = parser.OFPFlowStatsReply.cls_stats_body_cls
            parser.OFPFlowStatsReply.cls_stats_body_cls = cls


def rule_of(datapath: Any, flow: Any, groups: Mapping[int, FastFailover] | None = None) -> Rule:
    """The rule that a flow (a flow mod, or an entry of a flow statistics reply) is; groups: those of the switch.

    ValueError when it is none that `flow_mod` could have made.
    """
    if flow.idle_timeout or flow.hard_timeout:
        raise ValueError(f"timeouts {flow.idle_timeout} s and {flow.hard_timeout} s")
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    actions: list[Action] = []
    for instruction in flow.instructions:
        if instruction.type == protocol.OFPIT_GOTO_TABLE:
            actions.append(Goto(instruction.table_id))
        elif instruction.type == protocol.OFPIT_APPLY_ACTIONS:
            actions += [_action_of(parser, action, groups) for action in instruction.actions]
        else:
            raise ValueError(f"instruction {instruction}")
    return Rule(flow.priority, match_of(flow.match), tuple(actions), table=flow.table_id)


def match_of(match: Any) -> Match:
    """The match of a flow. ValueError when it is none that a rule can have."""
    given = dict(match.items())
    found: dict[str, Any] = {name: given.pop(name, None) for name in ("in_port", "ip_dscp")}
    for name in ("ipv4_src", "ipv4_dst"):
        # a pair of address and mask, or the address alone when the mask has all ones
        address = given.pop(name, None)
        found[name] = None if address is None else str(IPv4Network(address))
    for name in PORT_FIELDS:
        port = given.pop(name, None)
        found[name] = None if port is None else Ports(*port) if isinstance(port, tuple) else Ports(port)
    made = Match(**found)
    ethernet, protocol = given.pop("eth_type", None), given.pop("ip_proto", None)
    if given or ethernet != (ETH_TYPE_IPV4 if made.ip_only else None) or protocol != made.ip_proto:
        raise ValueError(f"match {match}")
    return made


def _action(parser: Any, action: Action) -> Any:
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


def _action_of(parser: Any, action: Any, groups: Mapping[int, FastFailover] | None) -> Action:
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


# of openflow.h: a bundle's message before the one it holds
_BUNDLE_ADD = struct.Struct("!BBHIIII2xH")
MESSAGES_AT_ONCE = 500  # handed to the library together: each costs it a switch of threads


class BundleWriter:
    """Puts messages into a bundle that a switch carries out as one, in order, or not at all (ONF extension 230)."""

    def __init__(self, datapath: Any, bundle_id: int, send: Callable[[Any], int]) -> None:
        self._datapath = datapath
        self._id = bundle_id
        self._send = send
        self._held: list[bytes] = []
        self._control("OPEN")

    def _control(self, what: str) -> None:
        protocol, parser = self._datapath.ofproto, self._datapath.ofproto_parser
        kind = getattr(protocol, f"ONF_BCT_{what}_REQUEST")
        flags = protocol.ONF_BF_ATOMIC | protocol.ONF_BF_ORDERED
        self._send(parser.ONFBundleCtrlMsg(self._datapath, self._id, kind, flags, []))

    def add(self, message: Any) -> None:
        """One message, which gets a transaction id, the bundle message's too."""
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
        self._held += (head, inner)
        if len(self._held) >= MESSAGES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._datapath.send(b"".join(self._held))
            self._held.clear()

    def commit(self) -> None:
        """Have the switch carry out the bundle, all of it at once."""
        self._flush()
        self._control("CLOSE")
        self._control("COMMIT")
