"""What is TCP's own: settings, getting connected, strangers and hostile peers, lost and closed connections."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from testbed.comm.transport import (
    PeerLost,
    TcpTransport,
    Transport,
    TransportError,
    TransportTimeout,
    wait_all,
)
from testbed.comm.transport.event_loop import StallDetector
from testbed.comm.transport.sockets import WireCounts
from testbed.comm.transport.wire import HEADER, HELLO_BYTES, ConnectionKey, Hello, make_hello, read_hello
from tests.unit.measure.ranks import TOKEN, Places, forked, over_tcp


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places(2)
    yield made
    made.close()


def exchange(transport: Transport, size_bytes: int = 500) -> None:
    """One message each way with the other of two ranks."""
    peer = 1 - transport.rank
    send = transport.isend(peer, 1, memoryview(bytes(size_bytes)))
    wait_all(transport, [send, transport.irecv(peer, 1, memoryview(bytearray(size_bytes)))], 10)


def serve(transport: Transport) -> None:
    """Progress until killed."""
    while True:
        transport.progress(1.0)


def call(places: Places) -> socket.socket:
    """A connection to rank 0, as soon as it listens."""
    deadline_s = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(places.addresses[0], timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


# ---- settings


def test_congestion_control_is_set_on_both_ends_and_read_back() -> None:
    def program(transport: TcpTransport) -> str:
        exchange(transport)
        (entry,) = transport.socket_info()
        assert json.loads(json.dumps(entry)) == entry
        assert entry["peer"] == 1 - transport.rank
        assert entry["remote"][0] == f"127.77.0.{2 - transport.rank}"
        assert entry["rtt_s"] > 0
        assert entry["bytes_acked"] > 0
        exchange(transport)  # nobody leaves before both have looked
        return str(entry["congestion_control"])

    assert over_tcp(2, program, congestion_control="reno") == ["reno", "reno"]


def test_settings_that_the_kernel_does_not_take_are_refused(places: Places) -> None:
    with pytest.raises(TransportError, match=r"congestion control: got nosuch, expected one of .*reno"):
        places.transport(1, congestion_control="nosuch")
    with pytest.raises(
        TransportError, match=r"send buffer: asked for \d+ bytes, the kernel gives \d+; see net"
    ):
        places.transport(0, send_buffer_bytes=1 << 30)


def test_source_ports_are_as_told_and_can_be_used_again_at_once() -> None:
    def program(transport: TcpTransport) -> list[int]:
        for peer in range(transport.rank):
            wait_all(transport, [transport.irecv(peer, 1, memoryview(bytearray(1)))], 10)
        for peer in range(transport.rank + 1, transport.size):
            wait_all(transport, [transport.isend(peer, 1, memoryview(b"x"))], 10)
        return [entry["local"][1] for entry in transport.socket_info()]

    places = Places(3)
    for _ in range(3):  # no connection stays behind in TIME_WAIT, whoever closes first
        options = {
            "source_port": lambda rank, peer, number: 21_000 + 10 * rank + peer,
            "bootstrap_timeout_s": 5,
        }
        with forked(program, places, [0, 1, 2], **options) as running:
            found = running.results()
        assert found[1][0] == 21_010
        assert found[2] == [21_020, 21_021]
    places.close()


# ---- getting connected


def test_ranks_may_start_in_any_order_and_connect_at_once() -> None:
    def program(transport: TcpTransport) -> list[int]:
        for peer in (0, 1, 2):  # all are there before anybody leaves
            if peer != transport.rank:
                send = transport.isend(peer, 1, memoryview(b""))
                wait_all(transport, [send, transport.irecv(peer, 1, memoryview(b""))], 10)
        return [entry["peer"] for entry in transport.socket_info()]

    places = Places(3)
    with forked(program, places, [2, 1], eager=True) as early:
        time.sleep(0.2)
        with forked(program, places, [0], eager=True) as late:
            assert early.results() == [[0, 1], [0, 2]]
            assert late.results() == [[1, 2]]
    places.close()


def test_a_peer_that_is_not_there_yet_is_waited_for() -> None:
    """Without `eager`: dialling goes on behind whatever the rank does."""
    places = Places(2)
    port = places.addresses[0][1]
    places.sockets[0].close()
    with forked(exchange, places, [1]) as running:
        time.sleep(0.1)
        places.sockets[0] = socket.socket()
        places.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        places.sockets[0].bind(("127.77.0.1", port))
        with places.transport_closing(0) as transport:
            exchange(transport)
        assert running.results() == [None]
    places.close()


def test_a_peer_is_dialled_once_however_much_is_sent_meanwhile(places: Places) -> None:
    def program(transport: TcpTransport) -> int:
        time.sleep(0.1)  # no hello comes back for a while
        for _ in range(5):
            wait_all(transport, [transport.irecv(1, 1, memoryview(b""))], 10)
        return transport.refused

    def peer(transport: TcpTransport) -> None:
        for _ in range(5):
            transport.isend(0, 1, memoryview(b""))
            transport.progress(0.01)

    with forked(program, places, [0]) as zero, forked(peer, places, [1]):
        assert zero.results() == [0]


def test_who_does_not_appear_is_named() -> None:
    places = Places(3)
    places.sockets[0].close()  # nobody listens there
    with places.transport_closing(2, bootstrap_timeout_s=0.2) as transport:
        request = transport.irecv(0, 1, memoryview(bytearray(1)))
        with pytest.raises(TransportTimeout) as caught:
            wait_all(transport, [request], 10)
    assert str(caught.value).startswith("rank 2: no connection (127.77.0.1:")
    assert str(caught.value).endswith("Connection refused) with peer 0: nothing within 0.2 s")
    with pytest.raises(
        TransportTimeout, match=r"rank 1: waiting to connect with peer .*2: nothing within 0.2 s"
    ):
        places.transport(1, bootstrap_timeout_s=0.2, eager=True)
    places.close()


def test_hellos_from_elsewhere_are_told_apart() -> None:
    good = make_hello(1, 0, 2, "mine", ConnectionKey())
    assert len(good) == HELLO_BYTES
    assert read_hello(good, 0, 2, "mine") == Hello(1, ConnectionKey(), incarnation=0)
    for field, data in {
        "magic": b"GET / HT" + good[8:],
        "protocol version": good[:8] + b"\x63" + good[9:],
        "token": make_hello(1, 0, 2, "yours", ConnectionKey()),
        "number of ranks": make_hello(1, 0, 3, "mine", ConnectionKey()),
        "addressee": make_hello(1, 1, 2, "mine", ConnectionKey()),
        "sender": make_hello(2, 0, 2, "mine", ConnectionKey()),
    }.items():
        with pytest.raises(ValueError, match=field):
            read_hello(data, 0, 2, "mine")


def test_strangers_are_turned_away_and_the_peer_is_not(places: Places) -> None:
    greetings = [
        b"GET / HTTP/1.0\r\n\r\n" + b"x" * 600,
        make_hello(1, 0, 2, "another job", ConnectionKey()),
        make_hello(0, 0, 2, TOKEN, ConnectionKey()),
        make_hello(1, 0, 2, TOKEN, ConnectionKey())[:20],
        b"",
    ]

    def program(transport: TcpTransport) -> int:
        exchange(transport)
        return transport.refused

    with forked(program, places, [0]) as running:
        silent = call(places)
        for greeting in greetings:
            with call(places) as stranger, suppress(ConnectionResetError, BrokenPipeError):
                stranger.sendall(greeting)
                if len(greeting) < HELLO_BYTES:
                    stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
        with forked(exchange, places, [1]) as peer:
            assert peer.results() == [None]
        assert running.results() == [len(greetings)]
        silent.close()


def test_a_second_connection_in_the_name_of_a_peer_is_turned_away(places: Places) -> None:
    def program(transport: TcpTransport) -> int:
        exchange(transport)
        while not transport.refused:
            transport.progress(1.0)
        exchange(transport)
        return transport.refused

    def peer(transport: TcpTransport) -> bytes:
        exchange(transport)
        with call(places) as second:
            second.sendall(make_hello(1, 0, 2, TOKEN, ConnectionKey()))
            answer = second.recv(100)
        exchange(transport)
        return answer

    with forked(program, places, [0]) as zero, forked(peer, places, [1]) as one:
        assert one.results() == [b""]
        assert zero.results() == [1]


# ---- hostile peers: rank 1 is played by a socket that knows the token


def pose_as_rank_1(places: Places) -> socket.socket:
    impostor = call(places)
    impostor.sendall(make_hello(1, 0, 2, TOKEN, ConnectionKey()))
    return impostor


def test_lengths_are_not_believed(places: Places) -> None:
    """Neither for a posted receive nor for one that is not: no memory is set aside, nothing hangs."""
    with places.transport_closing(0, max_staged_bytes=1000) as transport:
        impostor = pose_as_rank_1(places)
        request = transport.irecv(1, 7, memoryview(bytearray(10)))
        impostor.sendall(HEADER.pack(7, 2**63) + b"x" * 100)
        with pytest.raises(TransportError, match=f"tag 7: got {2**63} bytes, expected 10"):
            wait_all(transport, [request], 5)
        assert isinstance(transport.isend(1, 1, memoryview(b"")).error, TransportError)
        impostor.close()


def test_a_peer_that_sends_too_much_has_to_wait_until_it_is_asked_for(places: Places) -> None:
    sizes = [400, 500, 600, 70_000, 5]

    def program(transport: Transport) -> None:
        sends = [transport.isend(0, tag, memoryview(bytes([tag]) * size)) for tag, size in enumerate(sizes)]
        wait_all(transport, sends, 10)
        wait_all(transport, [transport.irecv(0, 9, memoryview(bytearray(0)))], 10)

    with forked(program, places, [1]) as running:
        with places.transport_closing(0, max_staged_bytes=1000) as transport:
            transport.connect()
            end_s = time.monotonic() + 0.1
            while time.monotonic() < end_s:
                transport.progress(0.01)
            assert transport.counters[1].messages_received == 2
            for tag, size in enumerate(sizes):
                buffer = bytearray(size)
                wait_all(transport, [transport.irecv(1, tag, memoryview(buffer))], 10)
                assert buffer == bytes([tag]) * size
            wait_all(transport, [transport.isend(1, 9, memoryview(b""))], 10)
        assert running.results() == [None]


def test_a_peer_that_dies_while_it_has_to_wait_is_noticed(places: Places) -> None:
    with places.transport_closing(0, max_staged_bytes=10) as transport:
        impostor = pose_as_rank_1(places)
        transport.connect()
        assert len(impostor.recv(HELLO_BYTES)) == HELLO_BYTES
        impostor.sendall(HEADER.pack(7, 11) + b"x" * 11)
        transport.progress(0.1)
        request = transport.irecv(1, 8, memoryview(bytearray(1)))
        impostor.close()
        with pytest.raises(PeerLost, match="lost peer 1: its end closed"):
            wait_all(transport, [request], 5)


def test_closing_does_not_wait_for_a_peer_that_has_to_wait(places: Places) -> None:
    with places.transport_closing(0, max_staged_bytes=10) as transport:
        impostor = pose_as_rank_1(places)
        transport.connect()
        impostor.sendall(HEADER.pack(7, 11) + b"x" * 11 + HEADER.pack(2**64 - 1, 0))
        transport.progress(0.1)
        begun_s = time.monotonic()
        transport.close()
        assert time.monotonic() - begun_s < 0.5
        impostor.close()


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_ends_in_errors_and_nothing_else(places: Places, seed: int) -> None:
    rng = random.Random(seed)
    with places.transport_closing(0, max_staged_bytes=5000) as transport:
        impostor = pose_as_rank_1(places)
        requests = [transport.irecv(1, 7, memoryview(bytearray(4))) for _ in range(3)]
        for _ in range(rng.randrange(1, 12)):
            tag = rng.choice([7, 8, rng.getrandbits(64), 2**64 - 1])
            length = rng.choice([0, 3, 4, 4, 4, 100, 4900, rng.getrandbits(64)])
            said = HEADER.pack(tag, length) + rng.randbytes(rng.choice([0, 4, min(length, 6000)]))
            with suppress(ConnectionResetError, BrokenPipeError):
                impostor.sendall(said)
            transport.progress(rng.choice([0.0, 0.001]))
        impostor.close()
        begun_s = time.monotonic()
        with suppress(TransportError):
            wait_all(transport, requests, 5)
        assert time.monotonic() - begun_s < 2
        assert transport.counters[1].bytes_received < 100_000


@pytest.mark.parametrize("part", [8, 40, 30_000])
def test_a_peer_that_breaks_off_within_a_message(places: Places, part: int) -> None:
    with places.transport_closing(0) as transport:
        impostor = pose_as_rank_1(places)
        request = transport.irecv(1, 7, memoryview(bytearray(60_000)))
        impostor.sendall((HEADER.pack(7, 60_000) + b"x" * 60_000)[:part])
        time.sleep(0.02)
        transport.progress(0.0)
        impostor.close()
        with pytest.raises(PeerLost, match="rank 0: lost peer 1: its end closed without a goodbye"):
            wait_all(transport, [request], 5)


def test_what_was_staged_in_part_is_not_handed_out(places: Places) -> None:
    with places.transport_closing(0) as transport:
        impostor = pose_as_rank_1(places)
        transport.connect()
        impostor.sendall(HEADER.pack(7, 4) + b"good" + HEADER.pack(7, 60_000) + b"x" * 1000)
        time.sleep(0.02)
        transport.progress(0.1)
        impostor.close()
        first, second = bytearray(4), bytearray(60_000)
        wait_all(transport, [transport.irecv(1, 7, memoryview(first))], 5)
        assert first == b"good"
        with pytest.raises(PeerLost):
            wait_all(transport, [transport.irecv(1, 7, memoryview(second))], 5)


def test_a_reset_is_noticed(places: Places) -> None:
    with places.transport_closing(0) as transport:
        impostor = pose_as_rank_1(places)
        transport.connect()
        request = transport.irecv(1, 7, memoryview(bytearray(4)))
        impostor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        impostor.close()
        with pytest.raises(PeerLost, match=r"lost peer 1: .*reset by peer"):
            wait_all(transport, [request], 5)


def test_a_killed_process_is_noticed(places: Places) -> None:
    with forked(serve, places, [1], eager=True) as running, places.transport_closing(0) as transport:
        transport.connect()
        request = transport.irecv(1, 1, memoryview(bytearray(4)))
        pid = running.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerLost, match="rank 0: lost peer 1"):
            wait_all(transport, [request], 5)


# ---- closing


def test_what_was_sent_before_closing_arrives(places: Places) -> None:
    size = 5_000_000

    def program(transport: Transport) -> None:
        transport.isend(0, 1, memoryview(b"x" * size))

    with forked(program, places, [1]) as running, places.transport_closing(0) as transport:
        buffer = bytearray(size)
        wait_all(transport, [transport.irecv(1, 1, memoryview(buffer))], 10)
        assert buffer == b"x" * size
        with pytest.raises(PeerLost, match="closed its end"):
            wait_all(transport, [transport.irecv(1, 1, memoryview(buffer))], 10)
        assert running.results() == [None]


def test_closing_is_bounded_when_the_peer_hangs(places: Places) -> None:
    transport = places.transport(0, close_timeout_s=0.2)
    impostor = pose_as_rank_1(places)
    transport.connect()
    request = transport.isend(1, 1, memoryview(bytes(50_000_000)))
    begun_s = time.monotonic()
    transport.close()
    assert 0.15 < time.monotonic() - begun_s < 2
    assert isinstance(request.error, PeerLost)
    impostor.close()


# ---- what a transport tells of itself


def counted(transport: TcpTransport) -> WireCounts:
    """What the kernel has carried for all connections of a transport."""
    peers = transport.peer_counts()
    assert peers is not None
    found = transport.wire_counts(peers)
    assert found is not None
    return found


def test_what_the_kernel_carried_is_told_in_segments_and_bytes() -> None:
    def program(transport: TcpTransport) -> tuple[int, int, int]:
        exchange(transport)
        before = counted(transport)
        exchange(transport, 100_000)
        exchange(transport)  # whose answer follows all of that
        after = counted(transport)
        exchange(transport)  # nobody leaves before both have looked
        assert after.segments_out > before.segments_out
        assert after.segments_in >= before.segments_in
        return after.subflows, after.bytes_out - before.bytes_out, after.bytes_in

    for subflows, sent, received in over_tcp(2, program):
        assert subflows == 1
        assert sent >= 100_000 + HEADER.size  # more where anything was sent again
        assert received >= 100_000 + 500 + 2 * HEADER.size


def test_mptcp_tells_it_too() -> None:
    def program(transport: TcpTransport) -> int:
        exchange(transport, 100_000)
        exchange(transport)
        found = counted(transport)
        exchange(transport)
        return found.bytes_out

    assert all(sent >= 100_000 for sent in over_tcp(2, program, multipath=True))


def test_a_rank_notices_that_it_stood_still() -> None:
    def program(transport: TcpTransport) -> list[float]:
        exchange(transport)
        stall_detector = transport.stall_detector = StallDetector(wait_s=0.01, gap_s=0.15)
        transport.progress(None)  # nothing comes, and it looks round all the same
        if transport.rank == 1:
            transport.progress(0.0)
            time.sleep(0.3)
        transport.progress(0.0)
        exchange(transport)
        return [until_s - since_s for since_s, until_s in stall_detector.gaps]

    quiet, stopped = over_tcp(2, program)
    assert max(stopped) > 0.29
    assert max(stopped) > max(quiet, default=0.0) or len(quiet) <= 1
