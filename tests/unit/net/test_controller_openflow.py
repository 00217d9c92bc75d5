"""Rules as OpenFlow messages, through os-ken's own encoding and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from testbed.net.controller.openflow import FlowMod, flow_removal, groups_of, parse_rule
from testbed.net.controller.rules import Ecmp, Match, Output, Rule
from testbed.net.controller.switch_sessions import DesiredState, Difference
from tests.unit.net.openflow_switch import entries, entry
from tests.unit.net.test_controller_rules import rules

DATAPATH = ProtocolDesc(version=ofproto_v1_3.OFP_VERSION)


def over_the_wire(message: Any) -> Any:
    """What a switch reads from the bytes of a flow mod."""
    message.set_xid(1)
    if not isinstance(message, FlowMod):
        message.serialize()
    parsed = ofproto_v1_3_parser.OFPFlowMod.parser(
        DATAPATH,
        ofproto_v1_3.OFP_VERSION,
        ofproto_v1_3.OFPT_FLOW_MOD,
        len(message.buf),
        1,
        bytearray(message.buf),
    )
    parsed.instructions = parsed.instructions or []
    return parsed


@given(rules)
def test_rules_survive_the_wire(rule: Rule) -> None:
    message = FlowMod(DATAPATH, rule)
    groups = groups_of([rule])
    assert parse_rule(DATAPATH, over_the_wire(message), groups) == rule
    shown = entry(message)
    assert shown.key == message.key
    assert parse_rule(DATAPATH, shown, groups) == rule


def test_ecmp_is_a_bundle_of_the_bytes_that_open_vswitch_documents() -> None:
    message = FlowMod(DATAPATH, Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 7),)))
    message.set_xid(1)
    # struct nx_action_bundle: type, length, vendor Nicira, subtype 12, algorithm hrw, fields symmetric_l3l4+udp,
    # basis, slave type NXM_OF_IN_PORT, two slaves, no register; then the slaves, padded to 8 bytes
    expected = (
        "ffff 0028 00002320 000c 0001 0003 0007 00000002 0002 0000 00000000 00000000 0003 0004 00000000"
    )
    assert bytes.fromhex(expected.replace(" ", "")) in bytes(message.buf)


OURS = [
    Rule(200, Match(ipv4_dst="10.0.0.1/32"), (Output(1),), "host east1"),
    Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 7),)),
    Rule(0, Match()),
]


class Connection(ProtocolDesc):  # type: ignore[misc]  # os-ken has no types
    """Gives messages their transaction ids."""

    def set_xid(self, message: Any) -> None:
        message.set_xid(1)


def flows(*own: Rule) -> list[Any]:
    return entries(own)


def compare(own: Sequence[Rule], flows: Sequence[Any]) -> Difference:
    connection = Connection(version=ofproto_v1_3.OFP_VERSION)
    return DesiredState(connection, own).compare(connection, flows, groups_of(own))


def test_what_was_sent_compares_equal_in_any_order() -> None:
    assert not compare(OURS, flows(*reversed(OURS)))


def test_a_missing_rule_is_found() -> None:
    difference = compare(OURS, flows(*OURS[1:]))
    assert difference.missing == (OURS[0],)
    assert difference.describe(DATAPATH) == f"missing: {OURS[0]}"


@pytest.mark.parametrize(
    "changed",
    [
        Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 5), 7),)),
        Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 8),)),
        Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Output(3),)),
        Rule(100, Match(ipv4_dst="10.1.0.0/16")),
    ],
)
def test_other_actions_are_found_and_would_be_overwritten(changed: Rule) -> None:
    there = flows(OURS[0], changed, OURS[2])
    difference = compare(OURS, there)
    assert difference.missing == (OURS[1],)
    assert difference.foreign == (there[1],)
    assert difference.overwrites(there[1])
    assert f"not ours: {changed}" in difference.describe(DATAPATH)


@pytest.mark.parametrize(
    "changed",
    [
        Rule(101, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 7),)),
        Rule(100, Match(ipv4_dst="10.1.0.0/17"), (Ecmp((3, 4), 7),)),
        Rule(100, Match(4, "10.1.0.0/16"), (Ecmp((3, 4), 7),)),
    ],
)
def test_another_match_or_priority_is_found_and_has_to_be_removed(changed: Rule) -> None:
    there = flows(OURS[0], changed, OURS[2])
    difference = compare(OURS, there)
    assert difference.foreign == (there[1],)
    assert not difference.overwrites(there[1])
    removal = over_the_wire(flow_removal(DATAPATH, there[1]))
    assert removal.command == ofproto_v1_3.OFPFC_DELETE_STRICT
    assert (removal.table_id, removal.priority) == (0, changed.priority)
    assert dict(removal.match.items()) == dict(there[1].match.items())


def foreign_flow(**changes: Any) -> Any:
    fields = {"priority": 9, "match": ofproto_v1_3_parser.OFPMatch(), "instructions": []}
    return entry(ofproto_v1_3_parser.OFPFlowMod(DATAPATH, **{**fields, **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"idle_timeout": 5}, "timeouts 5 s"),
        ({"match": ofproto_v1_3_parser.OFPMatch(eth_type=0x86DD)}, "match .*34525"),
        ({"match": ofproto_v1_3_parser.OFPMatch(eth_type=0x0800, ip_ecn=1)}, "match .*ip_ecn"),
        ({"match": ofproto_v1_3_parser.OFPMatch(eth_type=0x0800)}, "match .*2048"),
        (
            {"instructions": [ofproto_v1_3_parser.OFPInstructionMeter(8)]},
            "instruction OFPInstructionMeter",
        ),
    ],
)
def test_flows_that_no_rule_makes_are_foreign(changes: dict[str, Any], words: str) -> None:
    flow = foreign_flow(**changes)
    with pytest.raises(ValueError, match=words):
        parse_rule(DATAPATH, flow)
    difference = compare([], [flow])
    assert difference.foreign == (flow,)
    assert not difference.overwrites(flow)


def test_other_bundles_are_not_taken_for_ours() -> None:
    [flow] = flows(OURS[1])
    flow.instructions[0].actions[0].fields = 1  # symmetric_l4
    with pytest.raises(ValueError, match="NXActionBundle"):
        parse_rule(DATAPATH, flow)


def test_long_differences_are_cut() -> None:
    words = compare([Rule(number, Match()) for number in range(9)], []).describe(DATAPATH)
    assert words.count("missing") == 5
    assert words.endswith("and 4 more")
