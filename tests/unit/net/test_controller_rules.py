"""Rules as data: what they accept, what they match, their JSON form."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.net.controller.ecmp_hash import TCP, UDP
from testbed.net.controller.rules import (
    MAX_DSCP,
    MAX_PORT,
    MAX_SEED,
    MAX_TCP_PORT,
    Ecmp,
    FastFailover,
    Goto,
    Match,
    Output,
    Packet,
    Ports,
    Rule,
    dumps,
    loads,
    ports_of,
)

ports = st.integers(1, MAX_PORT)
networks = st.builds(
    lambda address, length: str(IPv4Network((address, length), strict=False)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
)
masks = st.sampled_from([MAX_TCP_PORT, 0x000F, 0xFFF0, 1])
some_ports = st.builds(lambda value, mask: Ports(value & mask, mask), st.integers(0, MAX_TCP_PORT), masks)
matches = st.builds(
    Match,
    st.none() | ports,
    st.none() | networks,
    st.none() | networks,
    st.none() | st.integers(0, MAX_DSCP),
    st.none() | some_ports,
    st.none() | some_ports,
) | st.builds(Match, udp_src=st.none() | some_ports, udp_dst=some_ports)
several = st.lists(ports, min_size=2, max_size=8, unique=True).map(tuple)
weighted = st.builds(lambda once, again: (*once, *again), several, st.lists(ports, max_size=3))
actions = (
    st.builds(Output, ports)
    | st.builds(Ecmp, weighted, st.integers(0, MAX_SEED))
    | st.builds(FastFailover, several)
)
onward = st.lists(st.builds(Goto, st.integers(6, 253)), max_size=1)
chains = st.builds(lambda own, last: (*own, *last), st.lists(actions, max_size=2), onward)
rules = st.builds(Rule, st.integers(0, 0xFFFF), matches, chains, st.text(), st.integers(0, 5))


@given(st.dictionaries(st.integers(1, 2**64 - 1), st.lists(rules, max_size=5), max_size=3))
def test_json_holds_everything(by_dpid: dict[int, list[Rule]]) -> None:
    text = dumps(by_dpid)
    found, network = loads(text)
    assert (found, network) == (by_dpid, None)
    assert dumps(found) == text  # comments too, which do not count in comparisons


def test_a_match_covers_what_it_names() -> None:
    match = Match(in_port=2, ipv4_dst="10.1.0.0/16")
    assert match.covers(2, Packet("10.0.0.1", "10.1.255.3"))
    assert not match.covers(3, Packet("10.0.0.1", "10.1.255.3"))
    assert not match.covers(2, Packet("10.0.0.1", "10.2.0.1"))
    assert Match().covers(9, Packet("192.0.2.1", "203.0.113.1"))
    channel = Match(ipv4_src="10.0.0.0/16", ip_dscp=46, tcp_src=Ports(2, 3))
    assert channel.covers(1, Packet("10.0.0.9", "10.1.0.1", 6, 33006, 29500, 46))
    assert not channel.covers(1, Packet("10.0.0.9", "10.1.0.1", 6, 33007, 29500, 46))
    assert not channel.covers(1, Packet("10.0.0.9", "10.1.0.1", 17, 33006, 29500, 46))
    assert not channel.covers(1, Packet("10.0.0.9", "10.1.0.1", 6, 33006, 29500, 0))
    assert not channel.covers(1, Packet("10.2.0.9", "10.1.0.1", 6, 33006, 29500, 46))


def test_a_match_of_udp_ports_is_for_udp_alone_and_survives_json() -> None:
    packet = Packet("10.0.0.1", "10.1.0.1", UDP, 0xC123, 4791)
    match = Match(udp_src=Ports(0xC123), udp_dst=Ports(4791))
    assert match.covers(1, packet)
    assert not match.covers(1, replace(packet, source_port=0xC124))
    assert not match.covers(1, replace(packet, ip_proto=TCP))
    by_dpid = {1: [Rule(7, match, (Output(2),))]}
    assert loads(dumps(by_dpid)) == (by_dpid, None)
    with pytest.raises(ValueError, match="expected ports of one protocol"):
        Match(tcp_src=Ports(1), udp_src=Ports(2))


def test_ports_of_names_those_that_rules_match_and_use() -> None:
    own = [Rule(1, Match(in_port=4), (Output(2),)), Rule(1, Match(), (Ecmp((7, 9)),)), Rule(0, Match())]
    assert ports_of(own) == {2, 4, 7, 9}


@pytest.mark.parametrize("network", ["10.1.0.0", "10.1.0.1/16", "0.0.0.0/0", "10.1.0.0/255.255.0.0", "ten"])
def test_a_match_refuses_what_is_no_network(network: str) -> None:
    with pytest.raises(ValueError, match=network.split("/", maxsplit=1)[0]):
        Match(ipv4_dst=network)


@pytest.mark.parametrize("port", [0, -1, MAX_PORT + 1])
def test_ports_out_of_range_are_refused(port: int) -> None:
    for make in (lambda: Output(port), lambda: Match(in_port=port), lambda: Ecmp((1, port))):
        with pytest.raises(ValueError, match=f"got {port}, expected 1 to {MAX_PORT}"):
            make()


@pytest.mark.parametrize(("choice", "seed"), [((3,), 0), ((3, 3), 0), ((3, 4), -1), ((3, 4), MAX_SEED + 1)])
def test_ecmp_refuses_too_few_ports_and_bad_seeds(choice: tuple[int, ...], seed: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Ecmp(choice, seed)


def document(**changes: Any) -> str:
    rule = {"priority": 1, "match": {}, "actions": [{"output": 2}], **changes}
    return json.dumps({"format": 1, "datapaths": [{"dpid": 5, "rules": [rule]}]})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "rules: got \\[\\], expected an object"),
        ('{"format": 2, "datapaths": []}', "format: got 2, expected 1"),
        ('{"format": 1}', "rules: key 'datapaths' is missing"),
        (document(colour="red"), "datapath 5, rules\\[0\\]: key 'colour' is unknown"),
        (document(match={"vlan": 3}), "rules\\[0\\].match: key 'vlan' is unknown"),
        (document(priority="high"), "rules\\[0\\]: priority: got 'high', expected a whole number"),
        (document(priority=70000), "rules\\[0\\]: priority: got 70000, expected 0 to 65535"),
        (document(match={"ipv4_dst": "10.0.0.1"}), "rules\\[0\\]: ipv4_dst: got '10.0.0.1'"),
        (document(actions=[{"output": 1, "ecmp": {}}]), "expected one of output, ecmp"),
        (document(actions=[{"ecmp": {"ports": [1, 2]}}]), "ecmp: key 'seed' is missing"),
        (document(actions={"output": 1}), "actions: got .* expected a list"),
        (
            '{"format": 1, "datapaths": [{"dpid": 5, "rules": []}, {"dpid": 5, "rules": []}]}',
            "datapaths\\[1\\].dpid: got 5 twice, expected unique ids",
        ),
    ],
)
def test_wrong_documents_are_refused_with_the_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        loads(text)


def test_rules_read_well() -> None:
    rule = Rule(300, Match(2, "10.254.0.2/32"), (Output(3),), "probe out on east-west-0")
    assert str(rule) == (
        "priority 300, in_port=2 ipv4_dst=10.254.0.2/32 -> output 3 (probe out on east-west-0)"
    )
    assert str(Rule(1, Match(), (Ecmp((3, 4), 7),))) == "priority 1, any packet -> ecmp 3,4 seed 7"
    assert str(Rule(0, Match())) == "priority 0, any packet -> drop"
