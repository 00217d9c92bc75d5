"""What is counted on hosts and inside buildings: what adds up, what does not, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from testbed.comm.transport.socket_view import NoSocketView
from testbed.comm.transport.sockets import WireCounts
from testbed.measure.execution.network_evidence import reason_not_repeated, scenario_pauses
from testbed.measure.fidelity.building_invariants import (
    building_of,
    conservation_in_buildings,
    packet_balances,
    subtract_counts,
)
from testbed.measure.fidelity.host_invariants import (
    Attempt,
    BaselineTimes,
    Foreign,
    find_stalls,
    foreign_in_steps,
    foreign_outside_steps,
    network_as_before,
    no_foreign_traffic,
    ranks_awake,
)
from testbed.measure.fidelity.invariants import Conservation
from testbed.measure.ranks.telemetry import HostCounts, HostMonitor, host_traffic
from testbed.net.fabric.bridges import NIC, bridges, cables
from testbed.net.links.interfaces import NodeCounts, PortCounts
from testbed.net.links.protocol_counters import ProtocolCounts, parse_protocol_counts, read_protocol_counts
from testbed.spec.topology import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
TWO = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
HOSTS = [host.name for host in TWO.hosts]
FRAMES, BYTES = 1000, 1000 * 9014

SNMP = """\
Ip: Forwarding InReceives InHdrErrors InDelivers OutRequests ReasmReqds ReasmOKs FragOKs FragCreates
Ip: 2 1000 1 990 700 30 10 5 15
Icmp: InMsgs OutMsgs
Icmp: 4 3
Tcp: InSegs OutSegs RetransSegs InErrs
Tcp: 900 800 7 2
Udp: InDatagrams NoPorts InErrors OutDatagrams
Udp: 50 6 1 40
"""
NETSTAT = """\
TcpExt: SyncookiesSent
TcpExt: 0
IpExt: InOctets OutOctets
IpExt: 100000 90000
"""
DEV = """\
Inter-|   Receive                 |  Transmit
 face |bytes    packets errs drop |bytes    packets errs
    lo:    1140      10    0    0     1140       10    0
  eth0:       5       5    0    0        5        5    0
"""


def test_protocols_are_read_without_what_goes_round_over_the_loopback() -> None:
    found = parse_protocol_counts(SNMP, NETSTAT, DEV)
    assert found == ProtocolCounts(
        out_packets=800 + 7 + 40 + 3 + 15 - 5 - 10,
        out_headers=690,
        out_bytes=90000 - 1000,
        in_packets=990,
        in_bytes=100000 - 1000,
        in_errors=3,
        delivered=990 + 20 - 10,
        tcp_out=807,
        tcp_in=900,
        tcp_resent=7,
        udp_out=40,
        udp_in=57,
        icmp_out=3,
        icmp_in=4,
    )
    assert read_protocol_counts().in_packets >= 0  # of this very machine, whose kernel may have more to say


def protocols(out: int, into: int) -> ProtocolCounts:
    return ProtocolCounts(out, out, 9000 * out, into, 9000 * into, 0, into, out, into, 0, 0, 0, 0, 0)


def counted() -> dict[str, NodeCounts]:
    """Every host has sent and received a thousand frames, half of them to and from other buildings."""
    port = PortCounts(FRAMES, BYTES, FRAMES, BYTES)
    found = {name: NodeCounts({NIC: port}, protocols(FRAMES, FRAMES)) for name in HOSTS}
    for bridge in bridges(TWO):
        found[bridge.name] = NodeCounts({entry.interface: port for entry in bridge.ports})
    return found


def changed(node: str, interface: str, **figures: int) -> dict[str, NodeCounts]:
    """With one interface counting otherwise; and with it, as in a pair of interfaces, the other end of its cable."""
    found = counted()
    ends = {cable.a: cable.b for cable in cables(TWO)} | {cable.b: cable.a for cable in cables(TWO)}
    mirror = {name.translate(str.maketrans("rt", "tr")): value for name, value in figures.items()}
    places = [((node, interface), figures)]
    if (node, interface) in ends and set(figures) <= {"rx_packets", "tx_packets", "rx_bytes", "tx_bytes"}:
        places.append((ends[node, interface], mirror))
    for (name, port), own in places:
        entry = dataclasses.replace(found[name].ports[port], **own)
        found[name] = dataclasses.replace(found[name], ports={**found[name].ports, port: entry})
    return found


def judged(counts: dict[str, NodeCounts], **more: Any) -> Any:
    return conservation_in_buildings(list(packet_balances(TWO, counts)), **more)


def test_all_that_adds_up_is_fine() -> None:
    found = judged(counted())
    assert found.ok is True
    assert "Of 10000 frames that entered switches inside buildings every one came out again" in found.sentence


def test_what_a_switch_loses_is_named_with_the_switch_and_who_dropped_it() -> None:
    lost = changed("east-leaf", "uplink", tx_packets=FRAMES - 3, dropped_otherwise=3)
    found = judged(lost)
    assert found.ok is False
    assert found.severity == "caution"
    assert "3 at switch east-leaf (dropped by a queueing discipline on uplink)" in found.sentence
    assert judged(changed("east-leaf", "uplink", tx_packets=FRAMES - 300)).severity == "untrusted"


def test_what_comes_from_nowhere_is_missing_too() -> None:
    assert judged(changed("west-leaf", "uplink", tx_packets=FRAMES + 2)).measured == "2 missing"


def test_what_the_topology_s_queues_drop_or_hold_is_not_missing() -> None:
    full = changed("west-leaf", "p1", tx_packets=FRAMES - 5, dropped=4, waiting=1)
    far = next(cable.a[0] for cable in cables(TWO) if cable.b == ("west-leaf", "p1"))
    less = PortCounts(FRAMES - 5, BYTES, FRAMES, BYTES)
    full[far] = NodeCounts({NIC: less}, protocols(FRAMES, FRAMES - 5))
    full["west-leaf"] = dataclasses.replace(
        full["west-leaf"],
        ports={
            **full["west-leaf"].ports,
            "p1": dataclasses.replace(full["west-leaf"].ports["p1"], tx_bytes=BYTES),
        },
    )
    found = judged(full)
    assert found.ok is True, found.sentence
    assert found.sentence.endswith("the queues of NICs and switch ports dropped 4, most at switch west-leaf.")


def test_frames_that_change_their_length_are_noticed() -> None:
    assert "1 at switch east-leaf" in judged(changed("east-leaf", "uplink", tx_bytes=BYTES - 10)).sentence


@pytest.mark.parametrize(
    ("figures", "where"),
    [
        ({"in_packets": FRAMES - 7, "delivered": FRAMES - 7}, "between its NIC and its IP layer"),
        ({"delivered": FRAMES - 7}, "between its IP layer and its sockets"),
        ({"out_packets": FRAMES + 7}, "between its sockets and its NIC"),
    ],
)
def test_what_a_host_loses_is_named_with_the_place(figures: dict[str, int], where: str) -> None:
    found = counted()
    own = found["east2"].protocols
    assert own is not None
    found["east2"] = dataclasses.replace(found["east2"], protocols=dataclasses.replace(own, **figures))
    assert f"7 at east2, {where}" in judged(found).sentence


def test_cables_of_a_link_engine_count_with_their_own_books() -> None:
    books = Conservation("east1-east-leaf a_to_b", 10, 10, 10, 8, 8, 0, 0, 1, 0, 0)
    assert "1 at the cable east1-east-leaf a_to_b" in judged(counted(), timed=[books]).sentence


def test_what_events_and_corruption_make_of_it() -> None:
    lost = changed("east-leaf", "uplink", tx_packets=FRAMES - 3)
    books = list(packet_balances(TWO, lost, left_out=["east"]))
    found = conservation_in_buildings(books, left_out=["east"])
    assert found.ok is True
    assert "Left out, as events affect them: east" in found.sentence
    assert {building_of(TWO, cable) for cable in cables(TWO)} == {"east", "west"}
    assert conservation_in_buildings([], left_out=["east", "west"]).ok is None
    assert judged(lost, corrupting=True).ok is None


def test_of_a_card_that_events_change_host_cable_and_switch_are_left_out() -> None:
    names = {balance.name for balance in packet_balances(TWO, counted(), cards=["east2"])}
    every = {balance.name for balance in packet_balances(TWO, counted())}
    without = {
        "switch east-leaf",
        "the cable from east2 eth0 to east-leaf p1",
        "the cable from east-leaf p1 to east2 eth0",
    }
    assert without <= every
    assert every - names == {*without, *(name for name in every if name.startswith("east2, between"))}


def test_only_what_was_counted_meanwhile_counts() -> None:
    assert subtract_counts(counted(), counted())["east1"].ports[NIC] == PortCounts(0, 0, 0, 0)
    document = json.loads(json.dumps(dataclasses.asdict(counted()["east1"])))
    assert TypeAdapter(NodeCounts).validate_python(document) == counted()["east1"]


def step(rank: int = 0, foreign: int = 0, udp: int = 0, opened: int = 0, **more: Any) -> dict[str, Any]:
    """A rank's record of a step in which its host sent so many packets of others, 1500 bytes each."""
    own = {"own_packets": FRAMES, "own_bytes": 8948 * FRAMES, "icmp": 0}
    out = {
        "packets": FRAMES + foreign,
        "headers": FRAMES // 2 + foreign,
        "bytes": 8948 * FRAMES + 52 * (FRAMES // 2) + 1500 * foreign,
        "udp": udp,
    }
    into = {"packets": FRAMES, "headers": FRAMES, "bytes": 9000 * FRAMES, "udp": 0}
    seen = {"opened": opened, "out": {**own, **out}, "in": {**own, **into}}
    return {"rank": rank, "trial": 0, "start_s": 5.0, "end_s": 6.0, "traffic": seen, "looks_s": 0.02, **more}


def test_what_others_send_is_named_with_host_way_and_bytes() -> None:
    found = foreign_in_steps(HOSTS, [step(0), step(1, foreign=100, udp=100), step(1, foreign=20)], 9000)
    assert found == [
        Foreign("east2", "out", 120, 120 * 1514, ("100 UDP", "20 foreign TCP")),
    ]
    assert foreign_in_steps(HOSTS, [step(0), {**step(), "traffic": None}], 9000) == []


def test_the_first_segments_of_new_connections_are_nobody_else_s() -> None:
    assert foreign_in_steps(HOSTS, [step(0, foreign=6, opened=3)], 9000) == []


def test_hosts_without_ranks_have_nothing_to_send_and_frames_past_ip_are_somebody_s() -> None:
    quiet = NodeCounts({NIC: PortCounts(0, 0, 0, 0)}, protocols(0, 0))
    seen = dict.fromkeys(HOSTS, quiet)
    ranks, background = {"east1", "east2"}, {"west1", "west2"}
    seen["east1"] = counted()["east1"]
    seen["west1"] = counted()["west1"]
    assert list(foreign_outside_steps(seen, ranks, background, HOSTS)) == []
    seen["east2"] = NodeCounts({NIC: PortCounts(0, 0, 12, 12 * 100)}, protocols(2, 0))
    seen["east4"] = NodeCounts({NIC: PortCounts(0, 0, 4, 400)}, protocols(4, 0))
    seen["west2"] = NodeCounts(
        {NIC: PortCounts(30, 3000, 5, 500)}, dataclasses.replace(protocols(5, 30), tcp_in=20)
    )
    found = {
        (entry.host, entry.direction): (entry.packets, entry.kinds)
        for entry in foreign_outside_steps(seen, ranks, background, HOSTS)
    }
    assert found == {
        ("east2", "out"): (10, ("bypassing IP",)),
        ("east4", "out"): (4, ("no rank runs there",)),
        ("west2", "in"): (10, ("not TCP",)),
    }


@pytest.mark.parametrize(
    ("bytes_", "ok", "severity"),
    [(0, True, None), (100, True, None), (5_000, False, "caution"), (20_000, False, "untrusted")],
)
def test_how_bad_foreign_traffic_is_goes_by_the_time_that_it_takes(
    bytes_: int, ok: bool, severity: str | None
) -> None:
    found = [Foreign("east1", "out", 1, bytes_, ("1 UDP",))] if bytes_ else []
    judged = no_foreign_traffic(found, slowest_bps=8e6, steps_s=1.0)
    assert judged.ok is ok
    if bytes_:
        assert f"east1 sent 1 packets, about {bytes_} bytes (1 UDP)" in judged.sentence
    if severity:
        assert judged.severity == severity
    assert no_foreign_traffic([], 8e6, 1.0, known=False).ok is None


def test_a_rank_s_own_segments_are_told_from_those_of_its_host() -> None:
    before = HostCounts(protocols(100, 50), WireCounts(3, 90, 40, 9000, 4000))
    after = HostCounts(protocols(300, 150), WireCounts(4, 250, 140, 90_000, 44_000))
    found = host_traffic(before, after)
    assert found is not None
    assert found["opened"] == 1
    assert (found["out"]["packets"], found["out"]["own_packets"], found["out"]["own_bytes"]) == (
        200,
        160,
        81_000,
    )
    assert (found["in"]["packets"], found["in"]["own_packets"], found["in"]["own_bytes"]) == (
        100,
        100,
        40_000,
    )
    broken = dataclasses.replace(after, host=dataclasses.replace(after.host, in_errors=4))
    found = host_traffic(before, broken)
    assert found is not None
    assert found["in"]["packets"] == 96
    assert host_traffic(before, dataclasses.replace(after, own=None)) is None
    # a connection that has gone takes its counts with it
    assert host_traffic(before, HostCounts(after.host, WireCounts(2, 250, 140, 90_000, 44_000))) is None


@dataclasses.dataclass
class Sockets(NoSocketView):
    """A rank's, as far as a monitor looks at them."""

    open: frozenset[object]
    counts: WireCounts

    def __post_init__(self) -> None:
        super().__init__()

    def open_connections(self) -> frozenset[object]:
        return self.open

    def peer_counts(self) -> dict[int, WireCounts]:
        return {1: self.counts}

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts:
        return peers[1]


@pytest.mark.parametrize(
    ("after", "told"), [({"to 1", "to 2"}, True), ({"to 1", "to 2", "to 3"}, True), ({"to 1", "to 3"}, False)]
)
def test_of_a_step_in_which_a_connection_was_closed_nothing_is_told(after: set[str], told: bool) -> None:
    """Another one in its place would else make for counts that run backwards."""
    sockets = Sockets(frozenset({"to 1", "to 2"}), WireCounts(2, 90, 40, 9000, 4000))
    monitor = HostMonitor(sockets)
    monitor.begin()
    sockets.open, sockets.counts = frozenset(after), WireCounts(len(after), 95, 45, 9500, 4500)
    assert (monitor.end(1.0, 2.0)["traffic"] is not None) is told


STILL = [{"at_s": 0.1, "for_s": 0.22}]


def test_a_rank_that_stood_still_is_named_with_when_and_how_long() -> None:
    steps = [step(0), step(1, stalls=STILL)]
    found = ranks_awake(find_stalls(HOSTS, steps, {}), 0.02, exact=True)
    assert found.ok is False
    assert found.severity == "untrusted"
    assert "Rank 1 on east2 stalled in trial 0, 100 ms after its start, for 200 to 220 ms." in found.sentence
    short = [step(1, stalls=[{"at_s": 0.1, "for_s": 0.009}], looks_s=0.008)]
    assert ranks_awake(find_stalls(HOSTS, short, {}), 0.02, exact=True).severity == "caution"
    quiet = ranks_awake(find_stalls(HOSTS, [step(0)], {}), 0.02, exact=True)
    assert quiet.ok is True
    assert quiet.measured == "never"


def test_by_the_real_clock_a_little_is_allowed() -> None:
    steps = [step(1, stalls=[{"at_s": 0.1, "for_s": 0.101}], looks_s=0.06)]
    assert ranks_awake(find_stalls(HOSTS, steps, {}), 0.1, exact=False).ok is True
    assert ranks_awake(find_stalls(HOSTS, [step(1, stalls=STILL)], {}), 0.1, exact=False).ok is False


def test_a_pause_that_the_scenario_asks_for_is_no_stall() -> None:
    log = [
        {"action": "host_pause", "target": "east2", "begins": True, "time_s": 5.09},
        {"action": "host_pause", "target": "east2", "begins": False, "time_s": 5.31},
        {"action": "link_down", "target": "east-west-0", "begins": True, "time_s": 5.0},
        {"action": "host_pause", "target": "east3", "begins": True, "time_s": None},
    ]
    pauses = scenario_pauses(log)
    assert pauses == {"east2": [(5.09, 5.31)]}
    own = find_stalls(HOSTS, [step(1, stalls=STILL)], pauses)
    found = ranks_awake(own, 0.02, exact=True, paused=sorted(pauses))
    assert found.ok is True
    assert found.sentence.endswith("Left out, as the scenario pauses them: east2.")
    other = find_stalls(HOSTS, [step(0, stalls=STILL)], pauses)
    assert ranks_awake(other, 0.02, exact=True).ok is False
    open_ended = scenario_pauses(log[:1])
    assert find_stalls(HOSTS, [step(1, stalls=STILL)], open_ended) == []


def attempts(*took_s: float) -> list[Attempt]:
    return [Attempt(each_s, 0) for each_s in took_s]


@pytest.mark.parametrize(
    ("after_s", "exact", "ok"),
    [
        (0.1, True, True),
        (0.1015, True, True),
        (0.103, True, False),
        (0.097, True, False),
        (0.12, False, True),
        (0.13, False, False),
    ],
)
def test_the_lone_collective_takes_what_it_took(after_s: float, exact: bool, ok: bool) -> None:
    found = network_as_before(BaselineTimes(attempts(0.4, 0.1), attempts(after_s + 0.5, after_s)), exact)
    assert found.ok is ok
    assert ("something has changed" in found.sentence) is not ok
    assert found.severity == ("untrusted" if exact else "caution")


def test_the_order_of_messages_that_come_at_once_is_nobodys() -> None:
    # 8 ranks that pay 0.1 ms for each message: 13.55 and 14.35 ms were seen on a network that nobody touched
    before, after = attempts(0.01355), attempts(0.01435)
    assert network_as_before(BaselineTimes(before, after), exact=True).ok is False
    assert network_as_before(BaselineTimes(before, after, order_s=0.0014), exact=True).ok is True
    assert network_as_before(BaselineTimes(before, attempts(0.0151), order_s=0.0014), exact=True).ok is False
    assert (
        network_as_before(BaselineTimes(before, after, order_s=0.0014), exact=True).bound
        == "within 2%, or 1.4 ms"
    )


def test_windows_that_open_meanwhile_make_it_what_its_paths_have() -> None:
    # one CUBIC connection over 40 ms: 130 ms before, 120.2 ms after, which is what latency and bandwidth make
    before, after = attempts(0.130), attempts(0.1202)
    assert network_as_before(BaselineTimes(before, after), exact=True).ok is False
    opened = network_as_before(BaselineTimes(before, after, path_s=0.1201), exact=True)
    assert opened.ok is True
    assert "windows were not open yet" in opened.sentence
    assert network_as_before(BaselineTimes(before, attempts(0.125), path_s=0.1201), exact=True).ok is False
    # quicker than its paths: something has changed
    assert (
        network_as_before(BaselineTimes(attempts(0.1202), attempts(0.110), path_s=0.1201), exact=True).ok
        is False
    )


def test_what_tcp_has_lost_since_matters_only_where_it_holds_the_collective_back() -> None:
    slowed = network_as_before(
        BaselineTimes(attempts(0.13), attempts(0.15), path_s=0.12, resent=7), exact=True
    )
    assert slowed.ok is True
    far = network_as_before(BaselineTimes(attempts(0.13), attempts(0.18), path_s=0.12, resent=7), exact=True)
    assert (far.ok, far.severity) == (False, "caution")
    at_rate = network_as_before(
        BaselineTimes(attempts(0.12), attempts(0.13), path_s=0.12, resent=7), exact=True
    )
    assert (at_rate.ok, at_rate.severity) == (False, "untrusted")


def test_queues_that_overflow_leave_windows_smaller_than_they_were() -> None:
    # a ring of eight took 60.4 ms before steps whose double trees overflowed ports of a leaf, and 67.7 after them
    lone = BaselineTimes(attempts(0.0604), attempts(0.0677), path_s=0.0604, resent=199, overflowed=True)
    assert network_as_before(lone, exact=True).ok is True
    assert network_as_before(dataclasses.replace(lone, resent=0), exact=True).severity == "untrusted"
    far = network_as_before(dataclasses.replace(lone, after=attempts(0.09)), exact=True)
    assert (far.ok, far.severity) == (False, "caution")


def test_rates_that_bbr_remembers_hold_the_collective_back_after_losses() -> None:
    # 115 ms before, 127 after six ranks' steps whose queues overflowed, on a network that nobody touched
    before, after = attempts(0.115), attempts(0.127)
    lossless = network_as_before(BaselineTimes(before, after, path_s=0.115, remembers=True), exact=True)
    assert (lossless.ok, lossless.severity) == (False, "untrusted")
    paced = BaselineTimes(before, after, path_s=0.115, resent=15, remembers=True)
    assert network_as_before(paced, exact=True).severity == "caution"
    far = network_as_before(
        BaselineTimes(before, attempts(0.2), path_s=0.115, resent=15, remembers=True), exact=True
    )
    assert (far.ok, far.severity) == (False, "caution")


def test_what_tcp_sends_again_makes_it_a_matter_of_its_memory() -> None:
    restless = [Attempt(0.104, 3), Attempt(0.107, 1)]
    found = network_as_before(BaselineTimes(attempts(0.1), restless), exact=True)
    assert found.ok is True
    assert "retransmitted" in found.sentence
    assert network_as_before(BaselineTimes(attempts(0.1), [Attempt(0.14, 3)]), exact=True).ok is False
    # where some attempts went without, these count
    assert (
        network_as_before(BaselineTimes(attempts(0.1), [*restless, Attempt(0.11, 0)]), exact=True).ok is False
    )


def test_segments_that_a_card_s_queue_drops_together_count_as_one() -> None:
    full, own = counted()["east1"], protocols(FRAMES + 20, FRAMES)
    ports = {NIC: dataclasses.replace(full.ports[NIC], dropped=3)}
    assert judged({**counted(), "east1": NodeCounts(ports, own)}).ok is True
    none = {NIC: dataclasses.replace(full.ports[NIC], dropped=2)}
    assert judged({**counted(), "east1": NodeCounts(none, own)}).measured == "4 missing"


def test_why_the_lone_collective_is_not_done_again() -> None:
    assert reason_not_repeated((), (), TWO) == ""
    assert "events" in reason_not_repeated(("one",), (), TWO)
    assert "background traffic" in reason_not_repeated((), ("one",), TWO)
    lossy = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
    link = dataclasses.replace(lossy.wan[0], a_to_b=dataclasses.replace(lossy.wan[0].a_to_b, loss=0.01))
    lossy = dataclasses.replace(lossy, wan=(link, *lossy.wan[1:]))
    why = reason_not_repeated((), (), lossy)
    assert "lose packets" in why
    assert network_as_before(BaselineTimes(attempts(0.1), []), exact=True, why_not=why).ok is None
