"""The in-memory network itself: it must see what is wrong with wrong rules."""

from __future__ import annotations

import pytest

from testbed.net.controller.rules import Ecmp, FastFailover, Goto, Match, Output, Packet, Rule, SetDscp
from testbed.net.controller.table_simulator import AmbiguousRulesError, Network, Switch, Table

PACKET = Packet("10.0.0.1", "10.1.0.1")
WIRES = {(1, 3): (2, 3), (2, 3): (1, 3), (1, 4): (2, 4), (2, 4): (1, 4)}


def test_the_highest_priority_wins() -> None:
    switch = Switch([Rule(1, Match(), (Output(5),)), Rule(2, Match(ipv4_dst="10.1.0.0/16"), (Output(6),))])
    assert switch.outputs(PACKET, 1) == [(6, PACKET)]
    other = Packet("10.0.0.1", "10.2.0.1")
    assert switch.outputs(other, 1) == [(5, other)]


def test_a_packet_without_a_rule_is_dropped() -> None:
    assert Table([Rule(1, Match(in_port=2), (Output(5),))]).lookup(PACKET, 1) is None


def test_a_packet_never_leaves_by_the_port_it_came_in_at() -> None:
    assert Switch([Rule(1, Match(), (Output(5),))]).outputs(PACKET, 5) == []


def test_a_packet_is_marked_and_goes_on_in_a_later_table() -> None:
    marking = Rule(1, Match(ipv4_src="10.0.0.1/32"), (SetDscp(46), Goto(1)))
    switch = Switch([marking, Rule(1, Match(ip_dscp=46), (Output(5),), table=1)])
    [(port, sent)] = switch.outputs(PACKET, 1)
    assert (port, sent.ip_dscp) == (5, 46)
    assert switch.tables[0].packets[marking] == 1
    assert switch.outputs(Packet("10.0.0.2", "10.1.0.1"), 1) == []


def test_of_a_group_the_first_port_that_is_up_is_taken() -> None:
    switch = Switch([Rule(1, Match(), (FastFailover((5, 6)),))])
    assert [port for port, _ in switch.outputs(PACKET, 1)] == [5]
    switch.down.add(5)
    assert [port for port, _ in switch.outputs(PACKET, 1)] == [6]
    switch.down.add(6)
    assert switch.outputs(PACKET, 1) == []


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


@pytest.mark.parametrize(
    ("addresses", "ports", "basis", "links", "taken"),
    [
        (("10.222.94.33", "10.88.175.95"), (24066, 11448), 9006, (3, 4, 5), 4),
        (("10.150.245.79", "10.13.251.48"), (30684, 5281), 18463, (3, 4), 3),
        (("10.130.92.46", "10.139.226.57"), (32814, 47117), 52313, (3, 4), 3),
    ],
)
def test_ecmp_takes_the_link_that_open_vswitch_takes(
    addresses: tuple[str, str], ports: tuple[int, int], basis: int, links: tuple[int, ...], taken: int
) -> None:
    # as its ofproto/trace said (3.1); many more flows are tried on a real switch in tests/net
    switch = Switch([Rule(1, Match(), (Ecmp(links, basis),))])
    for ends, both in ((addresses, ports), (addresses[::-1], ports[::-1])):
        packet = Packet(*ends, source_port=both[0], destination_port=both[1])
        assert [port for port, _ in switch.outputs(packet, in_port=1)] == [taken]
