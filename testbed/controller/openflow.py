"""Rules to OpenFlow 1.3 messages and back.

ECMP is Open vSwitch's `bundle` action: it hashes addresses, protocol and TCP or UDP ports and picks a port by highest
random weight, in one rule. (OpenFlow 1.3 SELECT groups hash UDP flows of a host pair onto one port.) Works on the
userspace and the kernel datapath alike, since Open vSwitch resolves it before a flow reaches the datapath.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from testbed.controller.rules import Action, Ecmp, Match, Output, Rule

ETH_TYPE_IPV4 = 0x0800
# From Open vSwitch's lib/ofp-actions.c and include/openflow/nicira-ext.h; the controller libraries lack the first.
HASH_FIELDS_SYMMETRIC_L3L4_UDP = 3
BUNDLE_HIGHEST_RANDOM_WEIGHT = 1
NXM_OF_IN_PORT = 0x00000002

MAX_WORDS = 5


def flow_mod(datapath: Any, rule: Rule) -> Any:
    """The message that adds a rule to the first table."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    actions = [_action(parser, action) for action in rule.actions]
    apply = [parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)] if actions else []
    return parser.OFPFlowMod(
        datapath,
        command=protocol.OFPFC_ADD,
        priority=rule.priority,
        match=_match(parser, rule.match),
        instructions=apply,
    )


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


def group_removal(datapath: Any) -> Any:
    """The message that deletes all groups, with the flows that use them."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPGroupMod(datapath, protocol.OFPGC_DELETE, protocol.OFPGT_ALL, protocol.OFPG_ALL, [])


@dataclass(frozen=True)
class Difference:
    """How the flows of a switch differ from the rules it should hold; false when they do not."""

    missing: tuple[Rule, ...]
    foreign: tuple[Any, ...]  # flows as they came

    def __bool__(self) -> bool:
        return bool(self.missing or self.foreign)

    def replaced(self, flow: Any) -> bool:
        """Whether adding the missing rules overwrites a foreign flow: same table, priority and match."""
        try:
            place = (flow.table_id, flow.priority, match_of(flow.match))
        except ValueError:
            return False
        return place in {(0, rule.priority, rule.match) for rule in self.missing}

    def words(self, datapath: Any) -> str:
        """For people; only the first few of many."""
        words = [f"missing: {rule}" for rule in self.missing]
        words += [f"not ours: {_flow_words(datapath, flow)}" for flow in self.foreign]
        more = [f"and {len(words) - MAX_WORDS} more"] if len(words) > MAX_WORDS else []
        return "; ".join(words[:MAX_WORDS] + more)


def compare(rules: Sequence[Rule], datapath: Any, flows: Sequence[Any]) -> Difference:
    """Compare the flows of a statistics reply with the rules that should be there, and nothing else."""
    missing = Counter(rules)
    foreign = []
    for flow in flows:
        try:
            rule = rule_of(datapath, flow)
        except ValueError:
            foreign.append(flow)
            continue
        if missing[rule]:
            missing[rule] -= 1
        else:
            foreign.append(flow)
    return Difference(tuple(missing.elements()), tuple(foreign))


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
    return Rule(flow.priority, match_of(flow.match), tuple(_action_of(parser, action) for action in actions))


def _match(parser: Any, match: Match) -> Any:
    fields: dict[str, Any] = {}
    if match.in_port is not None:
        fields["in_port"] = match.in_port
    if match.network is not None:
        fields["eth_type"] = ETH_TYPE_IPV4
        fields["ipv4_dst"] = (str(match.network.network_address), str(match.network.netmask))
    return parser.OFPMatch(**fields)


def match_of(match: Any) -> Match:
    """The match of a flow. ValueError when it is none that a rule can have."""
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


def _flow_words(datapath: Any, flow: Any) -> str:
    try:
        return str(rule_of(datapath, flow))
    except ValueError as error:
        return f"priority {flow.priority}, {error}"
