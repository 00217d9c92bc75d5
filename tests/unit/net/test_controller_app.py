"""The application's dialogue with switches, in the bytes that go over the wire, without a connection."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from os_ken.ofproto import ofproto_v1_3

from testbed.net.controller.rules import Ecmp, FastFailover, Goto, Match, Output, Ports, Rule, SetDscp
from tests.unit.net.openflow_switch import Dialogue, Switch, entries

TO_WEST = Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 7),), "to west")
RULES = [
    Rule(200, Match(ipv4_dst="10.0.0.1/32"), (Output(1),), "host east1"),
    TO_WEST,
    Rule(0, Match(), comment="everything else"),
]
OTHER = [RULES[0], Rule(100, Match(ipv4_dst="10.1.0.0/16"), (FastFailover((4, 3)),)), RULES[2]]
EDGE = "bridge edge (datapath id 0000000000000005)"


def held(switch: Switch, rules: list[Rule]) -> bool:
    return {found.key for found in switch.flows.values()} == {found.key for found in entries(rules)}


def test_rules_go_in_as_one_bundle_and_are_read_back() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.install(switch)
    assert switch.sent == ["ports", "flows", "[+200, +100, +0]", "flows"]
    assert held(switch, RULES)
    assert dialogue.events == [
        {"event": "installed", "dpid": 5, "bridge": "edge", "rules": 3},
        {"event": "ready", "dpids": [5]},
    ]


def test_ready_waits_for_all_switches() -> None:
    dialogue = Dialogue({5: RULES, 6: RULES})
    dialogue.install(Switch(6))
    assert [event["event"] for event in dialogue.events] == ["installed"]
    dialogue.install(Switch(5))
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5, 6]}


def test_only_what_differs_is_changed() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    other = Rule(7, Match(ipv4_dst="10.2.0.0/16"), (Output(3),))
    switch.hold([RULES[0], Rule(100, TO_WEST.match, (Output(3),)), RULES[2], other])
    dialogue.install(switch)
    assert switch.sent == ["ports", "flows", "[+100, -7]", "flows"]
    assert held(switch, RULES)


def test_a_switch_that_holds_its_rules_already_is_left_alone() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    switch.hold(RULES)
    dialogue.install(switch)
    assert switch.sent == ["ports", "flows"]
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5]}


def test_answers_in_several_parts_are_put_together() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    switch.hold(RULES)
    switch.parts = 2
    dialogue.install(switch)
    assert switch.sent == ["ports", "flows"]
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5]}


def test_rules_of_every_kind_go_in_and_compare_equal() -> None:
    rules = [
        Rule(100, Match(1, ipv4_src="10.0.0.1/32"), (SetDscp(40), Goto(1))),
        Rule(0, Match(), (Goto(1),)),
        Rule(200, Match(ipv4_dst="10.1.0.2/32", ip_dscp=46, tcp_src=Ports(4, 7)), (Output(3),), table=1),
        Rule(200, Match(ipv4_dst="10.1.0.2/32", tcp_dst=Ports(29500)), (FastFailover((3, 4)),), table=1),
        Rule(200, Match(ipv4_dst="10.1.0.2/32", udp_src=Ports(33006)), (Output(3),), table=1),
        Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 3, 4), 9),), table=1),
    ]
    dialogue, switch = Dialogue({5: rules}), Switch(5)
    dialogue.install(switch)
    assert switch.sent == ["ports", "flows", "[+group, +100, +0, +200, +200, +200, +100]", "flows"]
    assert dialogue.errors == []
    assert dialogue.events[-1]["event"] == "ready"


@pytest.mark.parametrize(
    ("stubborn", "words"),
    [
        ([], "missing: priority 200, ipv4_dst=10.0.0.1/32 -> output 1 (host east1); missing: "),
        ([*RULES, Rule(9, Match(), (Output(1),))], "not ours: priority 9, any packet -> output 1"),
    ],
)
def test_a_switch_that_does_not_hold_what_it_was_sent_is_an_error(stubborn: list[Rule], words: str) -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    switch.forgets = True
    switch.hold(stubborn)
    dialogue.install(switch)
    [error] = dialogue.errors
    assert error.startswith(f"{EDGE} does not hold the rules it was sent: {words}")
    assert len(dialogue.events) == 1


def test_a_refused_rule_is_named_and_nothing_of_its_bundle_is_in() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    switch.refuse = lambda message: message.priority == 100
    dialogue.install(switch)
    assert switch.flows == {}
    why = "OFPET_BAD_ACTION(2), OFPBAC_BAD_OUT_PORT(4)"
    message = f"{EDGE} refused rule: priority 100, ipv4_dst=10.1.0.0/16 -> ecmp 3,4 seed 7 (to west): {why}"
    assert dialogue.events == [{"event": "error", "message": message}]


def test_errors_of_an_experimenter_are_named() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.connect(switch)
    _, message = switch._waiting[-1]
    fields = {"type": ofproto_v1_3.OFPET_EXPERIMENTER, "experimenter": 0x4F4E4600, "exp_type": 2600}
    dialogue.app.refused(SimpleNamespace(msg=SimpleNamespace(datapath=switch, xid=message.xid, **fields)))
    assert dialogue.errors[0].endswith("refused a request: experimenter 0x4f4e4600, type 2600")


def test_a_missing_port_is_an_error() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5, ports=(1, 3))
    dialogue.install(switch)
    [error] = dialogue.errors
    assert "bridge edge" in error
    assert "no port 4, which the rules name" in error
    assert switch.sent == ["ports"]


def test_an_unknown_switch_is_an_error_and_gets_nothing() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(6)
    dialogue.install(switch)
    assert dialogue.errors == [
        "a bridge with datapath id 0000000000000006 connected, for which there are no rules"
    ]
    assert switch.sent == []


def test_two_bridges_with_one_datapath_id_are_an_error() -> None:
    dialogue = Dialogue({5: RULES})
    dialogue.install(Switch(5, "one"))
    dialogue.install(Switch(5, "two"))
    assert dialogue.errors == ["bridges one and two have the same datapath id"]


def test_a_switch_that_comes_back_is_read_and_left_alone() -> None:
    dialogue, again = Dialogue({5: RULES}), Switch(5)
    dialogue.install(Switch(5))
    again.hold(RULES)
    dialogue.install(again)
    assert again.sent == ["ports", "flows"]
    assert len(dialogue.events) == 2


def test_what_somebody_else_changed_is_repaired_and_reported() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.install(switch)
    switch.hold([RULES[0], Rule(100, TO_WEST.match, (Output(3),)), RULES[2]])
    dialogue.app.check()
    dialogue.run()
    assert held(switch, RULES)
    assert dialogue.errors == []
    repaired = dialogue.events[-1]
    assert (repaired["event"], repaired["bridge"]) == ("repaired", "edge")
    assert f"missing: {TO_WEST}" in repaired["words"]
    assert "not ours: priority 100, ipv4_dst=10.1.0.0/16 -> output 3" in repaired["words"]


def test_a_group_that_somebody_deleted_comes_back_with_its_rules() -> None:
    dialogue, switch = Dialogue({5: OTHER}), Switch(5)
    dialogue.install(switch)
    switch.groups.clear()
    switch.hold([RULES[0], RULES[2]])
    dialogue.app.check()
    dialogue.run()
    assert held(switch, OTHER)
    assert len(switch.groups) == 1
    assert dialogue.events[-1]["event"] == "repaired"


def test_a_look_at_switches_that_are_as_they_should_be_changes_nothing() -> None:
    dialogue, switch = Dialogue({5: OTHER}), Switch(5)
    dialogue.install(switch)
    before = list(dialogue.events)
    dialogue.app.check()
    dialogue.run()
    assert switch.sent[-2:] == ["flows", "flows"]
    assert dialogue.events == before


def test_other_rules_take_the_place_of_those_in_force() -> None:
    dialogue, east, west = Dialogue({5: RULES, 6: RULES}), Switch(5), Switch(6)
    dialogue.install(east, west)
    answers: list[str | None] = []
    dialogue.app.replace({5: OTHER, 6: RULES}, answers.append)
    assert answers == []
    dialogue.run()
    assert answers == [None]
    assert east.sent[-2:] == ["[+group, +100]", "flows"]
    assert west.sent[-1] == "flows"
    assert held(east, OTHER)
    dialogue.app.replace({5: RULES, 6: RULES}, answers.append)
    dialogue.run()
    assert answers == [None, None]
    assert east.sent[-2:] == ["[+100, -group]", "flows"]
    assert held(east, RULES)
    assert east.groups == {}


def test_where_one_switch_refuses_all_go_back_to_the_last_good_rules() -> None:
    dialogue, east, west = Dialogue({5: RULES, 6: RULES}), Switch(5), Switch(6)
    dialogue.install(east, west)
    west.refuse = lambda message: hasattr(message, "buckets") and bool(message.buckets)
    answers: list[str | None] = []
    dialogue.app.replace({5: OTHER, 6: OTHER}, answers.append)
    dialogue.run()
    [error] = answers
    assert error is not None
    assert "refused a request" in error
    assert held(east, RULES)
    assert held(west, RULES)
    assert dialogue.errors == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({5: [Rule(1, Match(), (Output(9),))]}, "no port 9, which the rules name; it has"),
        ({6: RULES}, "rules for datapaths [6], expected [5]"),
    ],
)
def test_rules_that_cannot_be_are_not_tried(rules: dict[int, list[Rule]], words: str) -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.install(switch)
    before = list(switch.sent)
    answers: list[str | None] = []
    dialogue.app.replace(rules, answers.append)
    assert answers[0] is not None
    assert words in answers[0]
    assert switch.sent == before


def test_without_a_switch_rules_are_not_changed() -> None:
    dialogue = Dialogue({5: RULES, 6: RULES})
    dialogue.install(Switch(5))
    answers: list[str | None] = []
    dialogue.app.replace({5: OTHER, 6: OTHER}, answers.append)
    assert answers == ["bridges with datapath ids 0000000000000006 are not connected"]
    assert held(dialogue.switches[5], RULES)


def test_ports_that_go_down_and_up_are_reported() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.install(switch)
    told: list[set[tuple[int, int]]] = []
    dialogue.app.ports_changed = lambda: told.append(dialogue.app.ports_down())
    dialogue.set_port(switch, 3, up=False)
    dialogue.set_port(switch, 3, up=False)
    dialogue.set_port(switch, 3, up=True)
    assert told == [{(5, 3)}, set()]
    assert [(event["port"], event["up"]) for event in dialogue.events[2:]] == [(3, False), (3, True)]


def test_counts_come_with_their_rules() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.install(switch)
    found: list[dict[int, list[tuple[Rule, int, int]]]] = []
    dialogue.app.read_counters(found.append)
    dialogue.run()
    assert [rule for rule, _, _ in found[0][5]] == RULES


def test_what_an_old_connection_or_nobody_asked_for_is_ignored() -> None:
    dialogue, old, new = Dialogue({5: RULES}), Switch(5), Switch(5)
    dialogue.connect(old)
    dialogue.connect(new)
    handler, message = old._waiting[-1]
    getattr(dialogue.app, handler)(SimpleNamespace(msg=message))
    stray = SimpleNamespace(datapath=new, xid=77, body=[], flags=0)
    dialogue.app.flows_arrived(SimpleNamespace(msg=stray))
    assert old.sent == new.sent == ["ports"]
    assert dialogue.events == []


def test_a_fault_of_our_own_is_reported() -> None:
    dialogue, switch = Dialogue({5: RULES}), Switch(5)
    dialogue.connect(switch)
    _, message = switch._waiting.pop()
    message.body = [object()]
    with pytest.raises(AttributeError):
        dialogue.app.ports_arrived(SimpleNamespace(msg=message))
    [error] = dialogue.errors
    assert error.startswith("ports_arrived: AttributeError: 'object' object has no attribute")


def test_a_switch_needs_time_for_each_change_but_not_for_its_first_rules() -> None:
    dialogue, switch = Dialogue({5: RULES}, rule_s=0.25), Switch(5)
    dialogue.install(switch)
    assert dialogue.events[-1]["event"] == "ready"
    answers: list[str | None] = []
    dialogue.app.replace({5: OTHER}, answers.append)
    dialogue.run()
    assert held(switch, RULES)
    assert answers == []
    dialogue.app.check()  # meanwhile, which disturbs nothing
    assert dialogue.wait() == [0.5]  # a group, and a rule in place of another one
    assert answers == [None]
    assert switch.sent[-2:] == ["[+group, +100]", "flows"]


def test_rules_on_their_way_to_a_switch_that_connects_anew_are_forgotten() -> None:
    dialogue, old, new = Dialogue({5: RULES}, rule_s=0.25), Switch(5), Switch(5)
    dialogue.install(old)
    answers: list[str | None] = []
    dialogue.app.replace({5: OTHER}, answers.append)
    dialogue.run()
    new.hold(RULES)
    dialogue.install(new)
    assert dialogue.wait() == [0.5, 0.5]
    assert old.sent[-1] == "flows"
    assert new.sent[-2:] == ["[+group, +100]", "flows"]
    assert answers == [None]
