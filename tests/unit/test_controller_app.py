"""The application's dialogue with a switch, with messages as os-ken makes them and no connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from testbed.controller.app import RuleInstaller
from testbed.controller.openflow import flow_mod
from testbed.controller.rules import Ecmp, Match, Output, Rule

RULES = [
    Rule(200, Match(ipv4_dst="10.0.0.1/32"), (Output(1),), "host east1"),
    Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 7),), "to west"),
    Rule(0, Match(), comment="everything else"),
]
PORTS = (1, 3, 4)
parser = ofproto_v1_3_parser


class Switch(ProtocolDesc):  # type: ignore[misc]  # os-ken has no types
    """One connection of a switch, as the library shows it to an application."""

    def __init__(self, dpid: int, name: str = "edge") -> None:
        super().__init__(version=ofproto_v1_3.OFP_VERSION)
        self.id = dpid
        self.name = name
        self.sent: list[Any] = []

    def set_xid(self, message: Any) -> None:
        message.set_xid(1000 + len(self.sent))

    def send_msg(self, message: Any) -> None:
        message.serialize()
        self.sent.append(message)

    def event(self, xid: int | None = None, **fields: Any) -> Any:
        """A message from here, an answer to the last one unless `xid` says otherwise."""
        xid = self.sent[-1].xid if xid is None else xid
        return SimpleNamespace(msg=SimpleNamespace(datapath=self, xid=xid, flags=0, **fields))


class Dialogue:
    """An application for one switch, and the events it reported."""

    def __init__(self, *dpids: int) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.app: Any = RuleInstaller(rules=dict.fromkeys(dpids, RULES), report=self.events.append)

    def connect(self, switch: Switch, ports: Sequence[int] = PORTS) -> None:
        self.app.connected(SimpleNamespace(datapath=switch))
        if switch.sent:
            assert isinstance(switch.sent[-1], parser.OFPPortDescStatsRequest)
            local = SimpleNamespace(port_no=ofproto_v1_3.OFPP_LOCAL, name=switch.name.encode())
            others = [SimpleNamespace(port_no=port, name=b"") for port in ports]
            self.app.ports_arrived(switch.event(body=[local, *others]))

    def show_flows(self, switch: Switch, flows: Sequence[Any]) -> None:
        assert isinstance(switch.sent[-1], parser.OFPFlowStatsRequest)
        self.app.flows_arrived(switch.event(body=list(flows)))

    def acknowledge(self, switch: Switch) -> None:
        assert isinstance(switch.sent[-1], parser.OFPBarrierRequest)
        self.app.processed(switch.event())

    def install(self, switch: Switch) -> None:
        self.connect(switch)
        self.show_flows(switch, [])
        self.acknowledge(switch)
        self.show_flows(switch, flows(switch, RULES))

    @property
    def errors(self) -> list[str]:
        return [event["message"] for event in self.events if event["event"] == "error"]


def flows(switch: Switch, rules: Sequence[Rule]) -> list[Any]:
    """Entries of a flow statistics reply."""
    return [flow_mod(switch, rule) for rule in rules]


def kinds(messages: Sequence[Any]) -> list[str]:
    return [type(message).__name__ for message in messages]


def test_rules_go_in_and_are_read_back() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.install(switch)
    assert kinds(switch.sent) == [
        "OFPPortDescStatsRequest",
        "OFPFlowStatsRequest",
        *["OFPFlowMod"] * 3,
        "OFPGroupMod",
        "OFPBarrierRequest",
        "OFPFlowStatsRequest",
    ]
    assert dialogue.events == [
        {"event": "installed", "dpid": 5, "bridge": "edge", "rules": 3},
        {"event": "ready", "dpids": [5]},
    ]


def test_ready_waits_for_all_switches() -> None:
    dialogue = Dialogue(5, 6)
    dialogue.install(Switch(6))
    assert [event["event"] for event in dialogue.events] == ["installed"]
    dialogue.install(Switch(5))
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5, 6]}


def test_only_what_differs_is_changed() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    changed = Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Output(3),))
    other = Rule(7, Match(ipv4_dst="10.2.0.0/16"), (Output(3),))
    dialogue.connect(switch)
    dialogue.show_flows(switch, flows(switch, [RULES[0], changed, RULES[2], other]))
    added, removed = (message for message in switch.sent if isinstance(message, parser.OFPFlowMod))
    assert (added.command, added.priority) == (ofproto_v1_3.OFPFC_ADD, 100)
    assert (removed.command, removed.priority) == (ofproto_v1_3.OFPFC_DELETE_STRICT, 7)


def test_a_switch_that_holds_its_rules_already_is_left_alone() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    dialogue.show_flows(switch, flows(switch, RULES))
    assert kinds(switch.sent) == ["OFPPortDescStatsRequest", "OFPFlowStatsRequest"]
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5]}


def test_answers_in_several_parts_are_put_together() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    first = switch.event(body=flows(switch, RULES[:2]))
    first.msg.flags = ofproto_v1_3.OFPMPF_REPLY_MORE
    dialogue.app.flows_arrived(first)
    assert dialogue.events == []
    dialogue.show_flows(switch, flows(switch, RULES[2:]))
    assert dialogue.events[-1] == {"event": "ready", "dpids": [5]}


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (RULES[:2], "missing: priority 0, any packet -> drop (everything else)"),
        ([*RULES, Rule(9, Match(), (Output(1),))], "not ours: priority 9, any packet -> output 1"),
        (
            [RULES[0], Rule(100, Match(ipv4_dst="10.1.0.0/16"), (Ecmp((3, 4), 8),)), RULES[2]],
            "not ours: priority 100, ipv4_dst=10.1.0.0/16 -> ecmp 3,4 seed 8",
        ),
    ],
)
def test_a_switch_that_holds_something_else_than_it_was_sent_is_an_error(
    held: list[Rule], words: str
) -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    dialogue.show_flows(switch, [])
    dialogue.acknowledge(switch)
    dialogue.show_flows(switch, flows(switch, held))
    [error] = dialogue.errors
    assert error.startswith("bridge edge (datapath id 0000000000000005) does not hold the rules it was sent:")
    assert words in error
    assert len(dialogue.events) == 1


def test_a_refused_rule_is_named_and_not_called_installed() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    dialogue.show_flows(switch, [])
    second = [message for message in switch.sent if isinstance(message, parser.OFPFlowMod)][1]
    dialogue.app.refused(switch.event(second.xid, type=ofproto_v1_3.OFPET_BAD_ACTION, code=4))
    dialogue.acknowledge(switch)
    assert isinstance(switch.sent[-1], parser.OFPBarrierRequest)
    assert dialogue.events == [
        {
            "event": "error",
            "message": "bridge edge (datapath id 0000000000000005) refused rule: priority 100, ipv4_dst=10.1.0.0/16 -> "
            "ecmp 3,4 seed 7 (to west): OFPET_BAD_ACTION(2), OFPBAC_BAD_OUT_PORT(4)",
        }
    ]


def test_errors_of_an_experimenter_are_named() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    error = switch.event(type=ofproto_v1_3.OFPET_EXPERIMENTER, experimenter=0x4F4E4600, exp_type=2600)
    dialogue.app.refused(error)
    assert dialogue.errors[0].endswith("refused a request: experimenter 0x4f4e4600, type 2600")


def test_a_missing_port_is_an_error() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch, ports=(1, 3))
    [error] = dialogue.errors
    assert "bridge edge" in error
    assert "no port 4, which the rules name" in error
    assert kinds(switch.sent) == ["OFPPortDescStatsRequest"]


def test_an_unknown_switch_is_an_error_and_gets_nothing() -> None:
    dialogue, switch = Dialogue(5), Switch(6)
    dialogue.connect(switch)
    assert dialogue.errors == [
        "a bridge with datapath id 0000000000000006 connected, for which there are no rules"
    ]
    assert switch.sent == []


def test_two_bridges_with_one_datapath_id_are_an_error() -> None:
    dialogue = Dialogue(5)
    dialogue.install(Switch(5, "one"))
    dialogue.connect(Switch(5, "two"))
    assert dialogue.errors == ["bridges one and two have the same datapath id"]


def test_a_switch_that_comes_back_is_read_and_left_alone() -> None:
    dialogue, again = Dialogue(5), Switch(5)
    dialogue.install(Switch(5))
    dialogue.connect(again)
    dialogue.show_flows(again, flows(again, RULES))
    assert kinds(again.sent) == ["OFPPortDescStatsRequest", "OFPFlowStatsRequest"]
    assert len(dialogue.events) == 2


def test_a_switch_that_comes_back_empty_is_reported_and_filled() -> None:
    dialogue, again = Dialogue(5), Switch(5)
    dialogue.install(Switch(5))
    dialogue.connect(again)
    dialogue.show_flows(again, [])
    [error] = dialogue.errors
    assert "bridge edge" in error
    assert "had lost its rules, they are put in again: missing: priority 200" in error
    assert kinds(again.sent).count("OFPFlowMod") == 3


def test_what_an_old_connection_or_nobody_asked_for_is_ignored() -> None:
    dialogue, old, new = Dialogue(5), Switch(5), Switch(5)
    dialogue.connect(old)
    dialogue.connect(new)
    dialogue.show_flows(old, [])
    dialogue.app.flows_arrived(new.event(xid=77, body=[]))
    assert kinds(old.sent) == kinds(new.sent) == ["OFPPortDescStatsRequest", "OFPFlowStatsRequest"]
    assert dialogue.events == []


def test_a_fault_of_our_own_is_reported() -> None:
    dialogue, switch = Dialogue(5), Switch(5)
    dialogue.connect(switch)
    with pytest.raises(AttributeError):
        dialogue.app.flows_arrived(switch.event(body=[object()]))
    [error] = dialogue.errors
    assert error.startswith("flows_arrived: AttributeError: 'object' object has no attribute")
