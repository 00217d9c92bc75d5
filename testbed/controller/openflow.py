"""Rules to OpenFlow 1.3 messages and back.

ECMP is Open vSwitch's `bundle` action: it hashes addresses, protocol and TCP or UDP ports and picks a port by highest
random weight, in one rule. (OpenFlow 1.3 SELECT groups hash UDP flows of a host pair onto one port.) Works on the
userspace and the kernel datapath alike, since Open vSwitch resolves it before a flow reaches the datapath.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from testbed.controller.rules import Action, Ecmp, Match, Output, Rule

ETH_TYPE_IPV4 = 0x0800
# From Open vSwitch's lib/ofp-actions.c and include/openflow/nicira-ext.h; the controller libraries lack the first.
HASH_FIELDS_SYMMETRIC_L3L4_UDP = 3
BUNDLE_HIGHEST_RANDOM_WEIGHT = 1
NXM_OF_IN_PORT = 0x00000002


def flow_mod(datapath: Any, rule: Rule, cookie: int) -> Any:
    """The message that adds a rule to the first table."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    actions = [_action(parser, action) for action in rule.actions]
    apply = [parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)] if actions else []
    return parser.OFPFlowMod(
        datapath,
        cookie=cookie,
        command=protocol.OFPFC_ADD,
        priority=rule.priority,
        match=_match(parser, rule.match),
        instructions=apply,
    )


def clearing(datapath: Any) -> list[Any]:
    """The messages that delete all flows of all tables, and all groups."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    no_flows = parser.OFPFlowMod(
        datapath,
        command=protocol.OFPFC_DELETE,
        table_id=protocol.OFPTT_ALL,
        out_port=protocol.OFPP_ANY,
        out_group=protocol.OFPG_ANY,
        match=parser.OFPMatch(),
    )
    no_groups = parser.OFPGroupMod(datapath, protocol.OFPGC_DELETE, protocol.OFPGT_ALL, protocol.OFPG_ALL, [])
    return [no_flows, no_groups]


def rule_of(datapath: Any, flow: Any) -> Rule:
    """The rule that a flow (a flow mod, or an entry of a flow statistics reply) is.

    ValueError when it is none that `flow_mod` could have made.
    """
    if flow.table_id or flow.idle_timeout or flow.hard_timeout:
        raise ValueError(f"table {flow.table_id}, timeouts {flow.idle_timeout} s and {flow.hard_timeout} s")
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    actions: list[Any] = []
    for instruction in flow.instructions:
        if instruction.type != protocol.OFPIT_APPLY_ACTIONS:
            raise ValueError(f"instruction {instruction}")
        actions += instruction.actions
    return Rule(flow.priority, _match_of(flow.match), tuple(_action_of(parser, action) for action in actions))


def _match(parser: Any, match: Match) -> Any:
    fields: dict[str, Any] = {}
    if match.in_port is not None:
        fields["in_port"] = match.in_port
    if match.network is not None:
        fields["eth_type"] = ETH_TYPE_IPV4
        fields["ipv4_dst"] = (str(match.network.network_address), str(match.network.netmask))
    return parser.OFPMatch(**fields)


def _match_of(match: Any) -> Match:
    fields = dict(match.items())
    in_port, address, ethernet = (fields.pop(name, None) for name in ("in_port", "ipv4_dst", "eth_type"))
    if fields or ethernet != (None if address is None else ETH_TYPE_IPV4):
        raise ValueError(f"match {match}")
    if address is None:
        return Match(in_port)
    # a pair of address and mask, or the address alone when the mask has all ones
    return Match(in_port, str(IPv4Network(address)))


def _action(parser: Any, action: Action) -> Any:
    if isinstance(action, Output):
        return parser.OFPActionOutput(action.port)
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


def _action_of(parser: Any, action: Any) -> Action:
    if isinstance(action, parser.OFPActionOutput):
        return Output(action.port)
    if isinstance(action, parser.NXActionBundle):
        kind = (action.algorithm, action.fields, action.slave_type)
        if kind == (BUNDLE_HIGHEST_RANDOM_WEIGHT, HASH_FIELDS_SYMMETRIC_L3L4_UDP, NXM_OF_IN_PORT):
            return Ecmp(tuple(action.slaves), action.basis)
    raise ValueError(f"action {action}")
