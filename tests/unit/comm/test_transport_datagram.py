"""Datagrams over loopback whose packets get lost: what comes, what is sent again, what is told of it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed.comm.transport import PeerLost, Transport
from testbed.comm.transport.datagram.controls import CONTROLS
from testbed.comm.transport.datagram.packets import DATA, DATA_KIND, PARITY, PARITY_KIND, Data
from testbed.comm.transport.datagram.recoveries import RECOVERIES
from testbed.comm.transport.datagram.sender import DatagramSettings
from testbed.comm.transport.datagram.transport import DatagramTransport
from testbed.comm.transport.datagram.udp import HEADER_STRIDE, PerPacket, SegmentationOffload, SendBatch
from testbed.contrib.conformance.harness import in_threads, raises, wait_requests
from testbed.documents import rebuild
from testbed.net.controller import View
from testbed.net.controller.policies.multipath import QpAware
from testbed.net.paths.alpha_beta import bdp_bytes, frame_per_payload
from testbed.net.paths.hops import Paths
from testbed.spec import transport as datagrams
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import endpoints_on, flows_of, resolve_endpoints
from testbed.workload.job.endpoints import JobEndpoints
from tests.unit.measure.ranks import Places

PAYLOAD_BYTES = 9000 - 28 - DATA.size - PARITY.size
Loses = Callable[[Data, int], bool]
"""Whether a packet is lost: its header, and which of its group's parity packets it is, -1 for data."""


class LossyOutbox(SendBatch):
    """Packets that are to be lost leave with a secret that the peer does not know, and are dropped there."""

    def __init__(self, loses: Loses) -> None:
        super().__init__()
        self._loses = loses

    def send(self, sock: Any, headers: PerPacket, payloads: PerPacket, sizes: PerPacket) -> int:
        self._spoil(len(headers))
        return super().send(sock, headers, payloads, sizes)

    def send_trains(self, sock: Any, trains: SegmentationOffload, *told: PerPacket) -> int:
        count = len(told[0])
        if trains.packets > 1 and count > 1:  # else it is `send` that is called
            self._spoil(count)
        return super().send_trains(sock, trains, *told)

    def _spoil(self, count: int) -> None:
        for position in range(count):
            at = position * HEADER_STRIDE
            header = Data._make(DATA.unpack_from(self.headers, at))
            parity = header.kind == PARITY_KIND
            number = PARITY.unpack_from(self.headers, at + DATA.size)[2] if parity else -1
            if header.kind in {DATA_KIND, PARITY_KIND} and self._loses(header, number):
                self.headers[at + 4] ^= 0xFF


def over_datagrams(
    size: int,
    program: Callable[[Transport], Any],
    loses: Callable[[], Loses] | None = None,
    **options: Any,
) -> list[Any]:
    """Run a program on each of so many ranks; loses: makes one rank's losses."""
    places = Places(size)

    def make(rank: int) -> DatagramTransport:
        transport = places.datagram(rank, **options)
        if loses is not None:
            transport._shared = transport._shared._replace(send_batch=LossyOutbox(loses()))
        return transport

    try:
        return in_threads(size, make, program)
    finally:
        places.close()


def sends(size_bytes: int) -> Callable[[Transport], dict[str, Any]]:
    """Rank 0 sends one message to rank 1, which looks at it; what rank 0's pair tells."""
    data = random.Random(size_bytes).randbytes(size_bytes)

    def program(transport: Transport) -> dict[str, Any]:
        assert isinstance(transport, DatagramTransport)
        if transport.rank == 0:
            wait_requests(transport, transport.isend(1, 1, memoryview(data)))
            wait_requests(transport, transport.irecv(1, 2, memoryview(bytearray(1))))
        else:
            buffer = bytearray(size_bytes)
            wait_requests(transport, transport.irecv(0, 1, memoryview(buffer)))
            assert buffer == data
            wait_requests(transport, transport.isend(0, 2, memoryview(b"x")))
        return transport.socket_info()[0]

    return program


@pytest.mark.parametrize(
    ("recovery", "paths"),
    [(name, paths) for name in RECOVERIES for paths in ((1,) if name == "go_back_n" else (1, 3))],
)
def test_messages_survive_losses(recovery: str, paths: int) -> None:
    sizes = random.Random(7).choices([0, 1, 500, 9_000, 60_000, 400_000], k=30)

    def program(transport: Transport) -> int:
        peer = 1 - transport.rank
        outgoing = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        incoming = [bytearray(size) for size in sizes]
        requests = [transport.isend(peer, number, memoryview(data)) for number, data in enumerate(outgoing)]
        requests += [transport.irecv(peer, number, memoryview(data)) for number, data in enumerate(incoming)]
        wait_requests(transport, *requests)
        return sum(one != other for one, other in zip(outgoing, incoming, strict=True))

    def losses() -> Loses:
        chance = random.Random(3)
        return lambda header, parity: chance.random() < 0.03

    assert over_datagrams(2, program, losses, recovery=recovery, paths=paths) == [0, 0]


def losing(*numbers: int) -> Callable[[], Loses]:
    """The first sending of these packets of data."""

    def make() -> Loses:
        left = set(numbers)

        def loses(header: Data, parity: int) -> bool:
            if parity < 0 and header.total > 1 and header.number in left:
                left.remove(header.number)
                return True
            return False

        return loses

    return make


def test_go_back_n_sends_again_what_is_behind_a_hole() -> None:
    packets = 100
    window = 20 * (PAYLOAD_BYTES + 100)
    told = over_datagrams(
        2, sends(packets * PAYLOAD_BYTES), losing(50), recovery="go_back_n", window_bytes=window
    )[0]
    assert 2 <= told["packets_resent"] <= 20
    assert told["packets_sent"] == packets + told["packets_resent"]


@pytest.mark.parametrize("recovery", ["selective_repeat", "nack"])
def test_selective_repeat_sends_the_hole_again_and_nothing_else(recovery: str) -> None:
    told = over_datagrams(2, sends(100 * PAYLOAD_BYTES), losing(50, 51, 70), recovery=recovery)[0]
    assert (told["packets_resent"], told["packets_sent"]) == (3, 103)


def test_erasure_sends_a_quarter_more_and_nothing_again_for_eight_of_forty() -> None:
    lost = [0, 3, 4, 5, 17, 28, 30, 31]
    told, other = over_datagrams(2, sends(96 * PAYLOAD_BYTES), losing(*lost), recovery="erasure")
    assert (told["packets_resent"], told["parity_sent"], told["packets_sent"]) == (0, 24, 120)
    assert other["packets_mended"] == 8


def test_erasure_sends_again_where_nine_of_forty_are_lost() -> None:
    told, _ = over_datagrams(2, sends(96 * PAYLOAD_BYTES), losing(*range(40, 49)), recovery="erasure")
    assert 1 <= told["packets_resent"] <= 9


def test_a_path_that_loses_all_is_left_alone() -> None:
    def losses() -> Loses:
        return lambda header, parity: header.path == 2

    window = 60 * (PAYLOAD_BYTES + 100)
    told = over_datagrams(
        2, sends(400 * PAYLOAD_BYTES), losses, recovery="nack", paths=4, window_bytes=window
    )[0]
    assert told["paths"][2] == "denied"
    assert told["paths_denied"] >= 1
    assert told["packets_lost"] < 100  # a quarter, if it went on


def test_who_breaks_the_rules_is_lost() -> None:
    def program(transport: Transport) -> str:
        assert isinstance(transport, DatagramTransport)
        wait_requests(
            transport,
            transport.isend(1 - transport.rank, 1, memoryview(b"x")),
            transport.irecv(1 - transport.rank, 1, memoryview(bytearray(1))),
        )
        pair = next(iter(transport._best_effort.values()))
        pending = transport.irecv(1 - transport.rank, 2, memoryview(bytearray(1)))
        if transport.rank == 0:
            header = DATA.pack(DATA_KIND, 0, 0, pair.secret, 5, 1, 1, 2, 7, 4)
            pair.sockets[0].send(header + b"beyond")
        with raises(PeerLost) as caught:
            wait_requests(transport, pending)
        return str(caught.exception)

    assert "it sent 6 bytes at 7 of a message of 4" in over_datagrams(2, program)[1]


def test_settings_have_defaults_that_scenarios_have_too() -> None:
    assert set(datagrams.CONTROLS) == set(CONTROLS)
    assert set(datagrams.RECOVERIES) == set(RECOVERIES)
    spec, usual = datagrams.DatagramSpec(), DatagramSettings()
    assert (spec.recovery, spec.control) == (usual.recovery, usual.control)
    assert (spec.erasure.data, spec.erasure.parity) == (usual.data, usual.parity)


def test_marks_of_links_reach_the_sender() -> None:
    """As if a link had marked them: packets leave with what it would write."""
    data = bytes(50 * PAYLOAD_BYTES)

    def program(transport: Transport) -> dict[str, Any]:
        assert isinstance(transport, DatagramTransport)
        transport.connect()
        pair = transport._best_effort[1 - transport.rank]
        while not pair.is_connected:
            transport.progress(0.01)
        if transport.rank == 0:
            pair.sockets[0].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3)
            wait_requests(transport, transport.isend(1, 1, memoryview(data)))
            wait_requests(transport, transport.irecv(1, 2, memoryview(bytearray(1))))
        else:
            wait_requests(transport, transport.irecv(0, 1, memoryview(bytearray(len(data)))))
            wait_requests(transport, transport.isend(0, 2, memoryview(b"x")))
        return transport.socket_info()[0]

    told, other = over_datagrams(2, program, control="dcqcn", port_bps=1e9)
    assert told["packets_marked"] == 50
    assert other["packets_marked"] == 0


def test_how_a_pair_stands_is_told_in_words() -> None:
    def program(transport: Transport) -> str:
        assert isinstance(transport, DatagramTransport)
        peer = 1 - transport.rank
        wait_requests(
            transport,
            transport.isend(peer, 1, memoryview(b"x")),
            transport.irecv(peer, 1, memoryview(bytearray(1))),
        )
        return transport.describe_state([peer])

    assert "datagrams with rank 1: " in over_datagrams(2, program)[0]
    assert "0 missing before later received ones" in over_datagrams(2, program)[0]


def test_paths_are_declared_by_udp_port_and_get_planes_of_their_own() -> None:
    topology = load_topology(
        Path(__file__).parents[3] / "topologies" / "two-buildings-4-planes.yaml"
    ).resolve(Scale())
    spec = TransportSpec.model_validate({"kind": "datagram", "datagram": {"spray": "packet", "paths": 4}})
    hosts = [topology.hosts[0], topology.hosts[-1]]
    wiring = resolve_endpoints(
        spec, Scale(), topology, endpoints_on(topology, hosts, {host.name: 1 for host in hosts}), 1
    )
    flows = flows_of(wiring, {(0, 1): 1e6})
    assert {flow.protocol for flow in flows} == {"udp"}
    assert len({flow.destination_port for flow in flows}) == 4
    view = View(topology, flows)
    routes = [route for route in QpAware().routes(view) if route.match.ip_proto == 17 and route.at == "east"]
    assert len({route.links for route in routes if route.match.udp_dst is not None}) == 4
    # what a window is made of, and the rate that receivers grant at
    assert wiring.bdp_bytes[0][1] == round(bdp_bytes(Paths(topology), hosts)[0][1])
    assert wiring.path_bps[0][1] == min(topology.wan[0].a_to_b.rate_bps, hosts[0].nic.rate_bps)
    product = wiring.round_trips_s[0][1] * wiring.path_bps[0][1] / 8 / frame_per_payload(topology)
    assert wiring.bdp_bytes[0][1] == pytest.approx(product, abs=1)
    assert wiring.port_bps == tuple(host.nic.rate_bps for host in hosts)
    assert rebuild(JobEndpoints, json.loads(json.dumps(asdict(wiring)))) == wiring


@pytest.mark.parametrize(
    ("datagram", "words"),
    [
        (
            {"recovery": "fec"},
            "got 'fec', expected a recovery: go_back_n, selective_repeat, nack, erasure, xor",
        ),
        ({"recovery": "go_back_n", "spray": "packet"}, "got packet with recovery go_back_n, expected none"),
        ({"erasure": {"data": 250, "parity": 8}}, "got 250 \\+ 8, expected at most 256 packets in a group"),
        ({"window": "big"}, "expected bdp, or a size with its unit"),
        ({"paths": 1}, "expected a whole number from 2 to 64"),
    ],
)
def test_what_scenarios_say_is_looked_at(datagram: dict[str, Any], words: str) -> None:
    workload = {"collectives": [{"collective": "all_reduce", "size": "1 MB"}]}
    topology = {
        "name": "pair",
        "buildings": {name: {"hosts": 1, "nic": {"rate": "1 Gbit/s"}} for name in ("east", "west")},
        "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
    }
    transport = {"kind": "datagram", "datagram": datagram}
    asked = {"name": "pair", "ranks": 2, "topology": topology, "workload": workload, "transport": transport}
    with pytest.raises(ConfigError, match=rf"transport\.datagram.*{words}"):
        testbed.load(asked)
