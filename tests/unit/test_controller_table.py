"""The in-memory network itself: it must see what is wrong with wrong rules."""

from __future__ import annotations

import pytest

from testbed.controller.rules import Match, Output, Rule
from testbed.controller.table import AmbiguousRulesError, Network, Packet, Table

PACKET = Packet("10.0.0.1", "10.1.0.1")
WIRES = {(1, 3): (2, 3), (2, 3): (1, 3), (1, 4): (2, 4), (2, 4): (1, 4)}


def test_the_highest_priority_wins() -> None:
    table = Table([Rule(1, Match(), (Output(5),)), Rule(2, Match(ipv4_dst="10.1.0.0/16"), (Output(6),))])
    assert table.output_ports(PACKET, 1) == [6]
    assert table.output_ports(Packet("10.0.0.1", "10.2.0.1"), 1) == [5]


def test_a_packet_without_a_rule_is_dropped() -> None:
    assert Table([Rule(1, Match(in_port=2), (Output(5),))]).lookup(PACKET, 1) is None


def test_a_packet_never_leaves_by_the_port_it_came_in_at() -> None:
    assert Table([Rule(1, Match(), (Output(5),))]).output_ports(PACKET, 5) == []


def test_two_rules_of_one_priority_for_a_packet_are_an_error() -> None:
    table = Table([Rule(1, Match(in_port=1)), Rule(1, Match(ipv4_dst="10.1.0.0/16"))])
    with pytest.raises(AmbiguousRulesError, match="in_port=1"):
        table.lookup(PACKET, 1)
    assert table.lookup(PACKET, 2) is not None


def test_loops_are_seen() -> None:
    there = Rule(1, Match(), (Output(3),))
    back = Rule(1, Match(), (Output(4),))
    assert Network({1: [there], 2: [back]}, WIRES).forward(PACKET, (1, 1)).looped


def test_copies_are_followed_to_all_their_ends() -> None:
    flood = Rule(1, Match(in_port=1), (Output(2), Output(3), Output(4)))
    out = Rule(1, Match(), (Output(1),))
    journey = Network({1: [flood], 2: [out]}, WIRES).forward(PACKET, (1, 1))
    assert sorted(journey.delivered) == [(1, 2), (2, 1), (2, 1)]
    assert not journey.looped
