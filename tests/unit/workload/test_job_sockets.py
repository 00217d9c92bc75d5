"""What sockets get by class and distance, what is read of them, and what follows for the model of a ring alone."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from testbed.comm.transport import (
    MeshSettings,
    SocketSettings,
    TcpTransport,
    TrafficClass,
    TransportError,
    wait_all,
)
from testbed.comm.transport.sockets import congestion_control, describe_connection
from testbed.comm.transport.wire import ConnectionKey
from testbed.documents import rebuild
from testbed.measure.execution.isolated_all_reduce import IsolatedBaseline
from testbed.measure.ranks.telemetry import SocketSampler
from testbed.measure.results.summary import StepResult, summarise_connections
from testbed.net.controller import Flow, View
from testbed.net.controller.policies.explicit import Te
from testbed.net.fabric.namespace_setup import host_setup
from testbed.net.fabric.plan import Multipath, Plan
from testbed.net.paths.alpha_beta import bdp_bytes
from testbed.net.paths.hops import Paths
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.topology import Topology, load_topology
from testbed.spec.transport import SocketsSpec, TransportSpec
from testbed.workload.job.endpoint_resolution import (
    endpoints_on,
    flows_of,
    multipath_of,
    planned_rates,
    resolve_endpoints,
    socket_rules_of,
)
from testbed.workload.job.endpoints import (
    LISTEN_PORT,
    SUBFLOW_PORT,
    THIS_NAMESPACE,
    JobEndpoints,
    SocketRules,
)

REPOSITORY = Path(__file__).parents[3]
USUAL = SocketSettings("cubic")
URGENT = ConnectionKey(TrafficClass(46))


def topology(scale: Scale = UNSCALED) -> Topology:
    return load_topology(REPOSITORY / "topologies" / "two-buildings-4-planes.yaml").resolve(scale)


def specs(*entries: dict[str, Any]) -> tuple[SocketsSpec, ...]:
    return TransportSpec.model_validate({"sockets": list(entries)}).sockets


def wiring(spec: TransportSpec, rules: SocketRules | None = None) -> JobEndpoints:
    of = topology()
    places = endpoints_on(of, of.hosts, {host.name: THIS_NAMESPACE for host in of.hosts})
    return resolve_endpoints(spec, UNSCALED, of, places, seed=3, sockets=rules)


def test_of_the_entries_that_fit_the_first_that_says_something_counts_key_by_key() -> None:
    rules = socket_rules_of(
        specs(
            {"dscp": 46, "congestion_control": "reno"},
            {"distance": "same_region", "congestion_control": "bbr", "buffers": "8 MiB"},
            {"pacing": "40 Gbit/s", "buffers": "1 MiB"},
        ),
        Scale(size_scale=1024),
        topology(),
        (),
    )
    urgent = rules.settings(USUAL, 0, 4, URGENT, "same_region")
    assert (urgent.congestion_control, urgent.window_bytes) == ("reno", 8192)
    bulk = rules.settings(USUAL, 0, 4, ConnectionKey(), "same_region")
    assert (bulk.congestion_control, bulk.window_bytes) == ("bbr", 8192)
    inside = socket_rules_of(
        specs({"distance": "same_building", "congestion_control": "bbr"}), UNSCALED, topology(), ()
    )
    for distance, expected in (("same_zone", "bbr"), ("same_building", "bbr"), ("same_rack", "cubic")):
        assert inside.settings(USUAL, 0, 1, ConnectionKey(), distance).congestion_control == expected
    near = rules.settings(USUAL, 0, 1, ConnectionKey(), "same_rack")
    assert (near.congestion_control, near.window_bytes) == ("cubic", 1024)
    assert near.pacing_bps == pytest.approx(40e9 / 1024)
    assert SocketRules().settings(USUAL, 0, 1, URGENT, "same_rack") is USUAL


def test_rules_come_through_json_as_they_were() -> None:
    rules = socket_rules_of(
        specs({"dscp": [1, 2], "buffers": "bdp"}, {"pacing": "planned"}),
        UNSCALED,
        topology(),
        topology().hosts,
        [(0, 4, 0, 0, 1e9)],
    )
    assert rebuild(SocketRules, json.loads(json.dumps(asdict(rules)))) == rules
    assert rules.settings(USUAL, 0, 4, ConnectionKey(), "same_region").pacing_bps == 1e9
    assert rules.settings(USUAL, 4, 0, ConnectionKey(), "same_region").pacing_bps is None


def test_a_bdp_buffer_is_what_is_under_way_on_the_empty_path() -> None:
    of = topology()
    products = bdp_bytes(Paths(of), of.hosts)
    link = of.wan[0].a_to_b
    payload = (of.mtu + 14 - 66) / (of.mtu + 14)
    round_trip_s = 2 * (link.delay_s + 2 * of.hosts[0].nic.delay_s)
    slowest_bps = min(link.rate_bps, of.hosts[0].nic.rate_bps)
    # each hop has all of a frame, and of its acknowledgement, before it passes it on
    bits = 8 * (of.mtu + 14 + 66)
    round_trip_s += bits * (2 / of.hosts[0].nic.rate_bps + 1 / link.rate_bps)
    under_way = slowest_bps / 8 * payload * round_trip_s
    assert products[0][4] == pytest.approx(under_way, rel=1e-9)
    assert products[0][0] == 0.0
    assert products[0][1] < products[0][4]


def test_planned_rates_are_those_at_which_all_are_done_together() -> None:
    of = topology()
    flows = [Flow("east1", "west1", 0, 3e9, 1, 2), Flow("east2", "west2", 0, 1e9, 3, 4)]
    rates = Te().planned_bps(View(of, flows))
    longest_s = 3e9 * 8 / of.wan[0].a_to_b.rate_bps
    assert [flow.size_bytes * 8 / rate for flow, rate in rates.items()] == pytest.approx([longest_s] * 2)
    here = wiring(TransportSpec())
    planned = planned_rates(here, of, flows, 0)
    assert [entry[:4] for entry in planned] == [(0, 4, 0, 0), (1, 5, 0, 0)]


def test_mptcp_declares_its_ways_by_the_ports_where_they_arrive() -> None:
    spec = TransportSpec(kind="mptcp", subflows=3)
    hosts = topology().hosts
    multipath = multipath_of(spec, hosts[3:5])
    assert multipath == Multipath((SUBFLOW_PORT, SUBFLOW_PORT + 1), ("east4", "west1"))
    assert multipath_of(TransportSpec(), hosts) is None
    plan = Plan(topology(), "tbabcd", multipath=multipath)
    first, second = ([line for line in host_setup(plan, host).ip if "rule" in line] for host in hosts[3:5])
    assert first == [f"rule add to {hosts[4].ip}/32 ipproto tcp dport 29501-29502 prohibit"]
    assert second == []
    flows = flows_of(wiring(spec), {(4, 0): 9.0, (0, 4): 3.0})
    ports = {(flow.source, flow.channel): (flow.source_port, flow.destination_port) for flow in flows}
    assert ports["west1", 1] == (0, SUBFLOW_PORT)
    assert ports["east1", 2] == (SUBFLOW_PORT + 1, 0)
    dialled, listening = ports["west1", 0]
    assert (listening, ports["east1", 0]) == (LISTEN_PORT, (LISTEN_PORT, dialled))
    assert sum(flow.size_bytes for flow in flows) == 12.0


# ---- real sockets


@pytest.fixture
def pair() -> Iterator[tuple[TcpTransport, TcpTransport]]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    addresses = [listener.getsockname(), ("127.0.0.1", 0)]

    def socket_of(rank: int, peer: int, key: ConnectionKey, usual: SocketSettings) -> SocketSettings:
        return replace(
            usual, congestion_control="reno", send_buffer_bytes=300_000, pacing_bps=8e9 * (1 + rank)
        )

    settings = MeshSettings("token", "cubic", socket_of=socket_of, close_timeout_s=0.05)
    transports = (
        TcpTransport(0, addresses, settings, listener=listener),
        TcpTransport(1, addresses, settings),
    )
    yield transports
    for transport in transports:
        transport.close()


def exchange(pair: tuple[TcpTransport, TcpTransport], size: int) -> None:
    here, there = pair
    inbox = memoryview(bytearray(size))
    receive = here.irecv(1, 5, inbox)
    send = there.isend(0, 5, memoryview(bytes(size)))
    for _ in range(5000):
        there.progress(0.002)
        here.progress(0.002)
        if send.done and receive.done:
            break
    wait_all(here, [receive], 1.0)
    deadline_s = time.monotonic() + 2.0
    while _unacknowledged(there) and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _unacknowledged(transport: TcpTransport) -> int:
    (stream,) = transport._streams.values()
    assert stream.sock is not None
    (waiting,) = struct.unpack("=I", fcntl.ioctl(stream.sock, termios.TIOCOUTQ, bytes(4)))
    return int(waiting)


def test_both_ends_get_the_settings_of_their_connection(pair: tuple[TcpTransport, TcpTransport]) -> None:
    exchange(pair, 1000)
    for rank, transport in enumerate(pair):
        (info,) = transport.socket_info()
        assert info["congestion_control"] == "reno"
        assert info["send_buffer_bytes"] == 300_000
        assert info["pacing_bps"] == 8e9 * (1 + rank)


def test_a_buffer_that_is_set_on_an_accepted_connection_gives_it_a_window_of_that_size() -> None:
    with socket.socket() as listener, socket.socket() as near:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            SocketSettings(window_bytes=100_000).apply(accepted)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP) == 100_000
            assert describe_connection(accepted)["send_buffer_bytes"] == 200_000


def test_why_nothing_comes_is_told_in_words(pair: tuple[TcpTransport, TcpTransport]) -> None:
    here, there = pair
    exchange(pair, 1000)
    there.isend(0, 6, memoryview(bytes(5000)))
    deadline_s = time.monotonic() + 2.0
    while "0 bytes unread" in here.describe_state([1]) and time.monotonic() < deadline_s:
        time.sleep(0.001)
    words = here.describe_state([1, 7])
    assert re.fullmatch(
        r"connection with rank 1: [1-9]\d{3} bytes unread, 0 not acknowledged, last data came \d+ ms ago",
        words,
    ), words
    assert here.describe_state([]) == ""


def test_an_unpaced_socket_says_nothing_of_pacing() -> None:
    with socket.socket() as plain:
        USUAL.apply(plain)
        assert "pacing_bps" not in describe_connection(plain)
        assert congestion_control(plain) == "cubic"


def test_an_unknown_congestion_control_is_told_before_anything_is_dialled() -> None:
    rules = socket_rules_of(specs({"congestion_control": "fancy"}), UNSCALED, None, ())
    with pytest.raises(TransportError, match="congestion control: got fancy, expected one of"):
        rules.try_out(USUAL)


def test_readings_are_kept_when_something_has_happened(pair: tuple[TcpTransport, TcpTransport]) -> None:
    exchange(pair, 1000)
    sampler = SocketSampler(1, pair[1], 60.0)
    sampler.sample()
    sampler.sample()
    assert len(sampler.records) == 1
    exchange(pair, 100_000)
    sampler.sample()
    first, second = sampler.records
    assert second["bytes_acked"] >= first["bytes_acked"] + 100_000
    assert second["time_s"] > first["time_s"]
    assert {key: second[key] for key in ("rank", "peer", "dscp", "channel")} == {
        "rank": 1,
        "peer": 0,
        "dscp": 0,
        "channel": 0,
    }
    assert 0 < second["rtt_s"] < 1


def test_the_sampler_ends_with_a_last_reading(pair: tuple[TcpTransport, TcpTransport]) -> None:
    exchange(pair, 1000)
    with SocketSampler(1, pair[1], 0.005) as sampler:
        exchange(pair, 1_000_000)
    assert sampler.records[-1]["bytes_acked"] >= 1_000_000


# ---- figures


def reading(time_s: float, rtt_s: float, retransmits: int, rank: int = 0, peer: int = 1) -> dict[str, Any]:
    marks = {"rank": rank, "peer": peer, "dscp": 0, "channel": 0}
    return {"time_s": time_s, **marks, "rtt_s": rtt_s, "retransmits": retransmits}


def test_round_trips_and_retransmissions_count_within_steps() -> None:
    steps = [
        StepResult(n, "ring", n, start, start + 1.0, 0.0, {}, 0, 0) for n, start in enumerate((1.0, 3.0))
    ]
    readings = [
        reading(0.5, 9.0, 5),
        reading(1.5, 0.010, 6),
        reading(1.9, 0.030, 8),
        reading(2.5, 9.0, 20),
        reading(3.5, 0.020, 21),
        reading(3.6, 0.001, 4, rank=0, peer=2),
    ]
    (row,) = summarise_connections(readings, steps, ["east", "west", "east"], Scale(time_dilation=10))
    assert row["rtt_s"] == {"min": 0.001, "median": 0.002, "max": 0.003}
    assert {key: row[key] for key in ("from", "to", "connections", "retransmits")} == {
        "from": "east",
        "to": "west",
        "connections": 1,
        "retransmits": 3 + 1,
    }


def test_a_connection_of_another_part_of_the_run_begins_anew() -> None:
    steps = [
        StepResult(n, "ring", n, start, start + 1.0, 0.0, {}, 0, 0) for n, start in enumerate((1.0, 3.0))
    ]
    packets = [(1.1, 2, 4, 0), (1.9, 8, 40, 0), (3.1, 1, 9, 3), (3.9, 3, 30, 5)]
    readings = [
        {**reading(time_s, 0.01, resent), "bytes_acked": acked, "parity": parity}
        for time_s, resent, acked, parity in packets
    ]
    (row,) = summarise_connections(readings, steps, ["east", "west"], Scale())
    assert (row["retransmits"], row["parity"]) == (8 + 2, 0 + 2)
    assert "marked" not in row


def test_what_cards_sent_again_counts_once_for_all_their_connections() -> None:
    steps = [StepResult(0, "ring", 0, 1.0, 2.0, 0.0, {}, 0, 0)]
    told = [
        # rank, peer: the card's figures are the same whichever connection tells
        (0.9, 0, 1, 2, 0),
        (1.5, 0, 2, 5, 0),
        (1.9, 0, 1, 6, 0),
        (1.9, 2, 0, 1, 0),
        (0.9, 1, 0, 0, 10),
        (1.8, 1, 0, 0, 310),
    ]
    readings = [
        {**reading(time_s, 0.01, 0, rank=rank, peer=peer), "went_back": back, "out_of_sequence": holes}
        for time_s, rank, peer, back, holes in told
    ]
    away, home = summarise_connections(readings, steps, ["east", "west", "east"], Scale())
    assert (away["went_back"], away["out_of_sequence"]) == (4 + 1, 300)
    assert (home["went_back"], home["out_of_sequence"]) == (0, 0)


def test_pacing_and_small_windows_are_part_of_the_model() -> None:
    def seconds_a_byte(*entries: dict[str, Any]) -> float:
        of = topology()
        rules = socket_rules_of(specs(*entries), UNSCALED, of, of.hosts)
        spec = TransportSpec()
        alone = IsolatedBaseline(of, of.hosts, spec, wiring(spec, rules), UNSCALED, 1e9)
        found = alone.agreement(
            [{"attempt": 0, "again": False, "resent": 0, "start_s": 0.0, "end_s": 1.0}]
        ).sentence
        made = re.search(r"should take ([0-9.]+)(?: to ([0-9.]+))? ms", found)
        assert made, found
        return float(made[2] or made[1]) / alone.message_bytes

    free = seconds_a_byte()
    assert seconds_a_byte({"buffers": "1 MiB", "distance": "other_region"}) == free
    assert seconds_a_byte({"pacing": "1 Gbit/s"}) > 20 * free
    assert seconds_a_byte({"buffers": "1 MiB", "distance": "same_region"}) > 10 * free


def test_parity_and_grants_are_part_of_the_model() -> None:
    of = topology()

    def alone(**datagram: str) -> IsolatedBaseline:
        spec = TransportSpec.model_validate({"kind": "datagram", "datagram": datagram})
        return IsolatedBaseline(of, of.hosts, spec, wiring(spec, None), UNSCALED, 1e9)

    def made_s(baseline: IsolatedBaseline) -> float:
        said = baseline.agreement(
            [{"attempt": 0, "again": False, "resent": 0, "start_s": 0.0, "end_s": 1.0}]
        ).sentence
        made = re.search(r"should take ([0-9.]+)(?: to ([0-9.]+))? ms", said)
        assert made, said
        return float(made[2] or made[1]) / 1e3

    nack, erasure, credits = (
        alone(recovery="nack"),
        alone(recovery="erasure"),
        alone(recovery="nack", control="credits"),
    )
    # a quarter more packets: so fewer bytes, for as long
    assert erasure.message_bytes == pytest.approx(nack.message_bytes / 1.25, rel=1e-3)
    assert made_s(erasure) == pytest.approx(made_s(nack), rel=0.02)
    assert made_s(credits) > made_s(nack)


# ---- what people are told


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "paced.yaml"
    file.write_text(
        f"""\
name: paced
topology: {REPOSITORY}/topologies/two-buildings-4-planes.yaml
workload: {{collectives: [{{collective: all_to_all, size: 1 GiB}}]}}
transport:
  sockets:
    - {{pacing: planned}}
policy: te
"""
    )
    return file


def test_planned_pacing_belongs_to_te(scenario: Path) -> None:
    loaded: Scenario = load_scenario(scenario)
    assert loaded.transport.sockets[0].pacing == "planned"
    with pytest.raises(Exception, match="planned with policy ecmp, expected it only with policy te"):
        load_scenario(scenario, ["policy=ecmp"])


def test_an_entry_that_sets_nothing_and_pacing_of_mptcp_are_refused(scenario: Path) -> None:
    text = scenario.read_text()
    scenario.write_text(text.replace("{pacing: planned}", "{distance: far}"))
    with pytest.raises(Exception, match="expected a distance: ") as caught:
        load_scenario(scenario)
    scenario.write_text(text.replace("{pacing: planned}", "{distance: same_region}"))
    with pytest.raises(Exception, match="expected congestion_control, pacing or buffers") as caught:
        load_scenario(scenario)
    scenario.write_text(text.replace("sockets:", "kind: mptcp\n  sockets:"))
    with pytest.raises(Exception, match="pacing with mptcp, expected it only with striped or tcp") as caught:
        load_scenario(scenario)
    assert "transport.sockets.0.pacing" in str(caught.value)
