"""What any transport must do; run on all of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from testbed.transport import PeerLostError, Request, TcpTransport, Transport, TransportError
from tests.unit.ranks import addresses, forked, in_memory, over_tcp

Runner = Callable[..., list[Any]]


@pytest.fixture(params=[in_memory, over_tcp], ids=["memory", "tcp"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param  # type: ignore[no-any-return]


def finish(transport: Transport, *requests: Request, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not all(request.done for request in requests):
        assert time.monotonic() < deadline, "no end"
        transport.progress(0.1)
    for request in requests:
        if request.error is not None:
            raise request.error


def test_messages_arrive_whole_and_in_order_per_tag(run: Runner) -> None:
    sizes = [0, 1, 7, 65_536, 3_000_000, 0, 5]

    def program(transport: Transport) -> bool:
        peer = 1 - transport.rank
        outgoing = [bytes([number + transport.rank]) * size for number, size in enumerate(sizes)]
        incoming = [bytearray(size) for size in sizes]
        requests = [transport.isend(peer, 9, memoryview(data)) for data in outgoing]
        requests += [transport.irecv(peer, 9, memoryview(data)) for data in incoming]
        finish(transport, *requests)
        return [bytes(data) for data in incoming] == [
            bytes([number + peer]) * size for number, size in enumerate(sizes)
        ]

    assert run(2, program) == [True, True]


def test_tags_pick_messages_whatever_their_order(run: Runner) -> None:
    def program(transport: Transport) -> list[bytes]:
        peer = 1 - transport.rank
        sends = [transport.isend(peer, tag, memoryview(b"tag%d" % tag)) for tag in (3, 1, 2)]
        finish(transport, *sends)
        late = time.monotonic() + 0.05  # let the messages come before their receives are posted
        while time.monotonic() < late:
            transport.progress(0.01)
        buffers = [bytearray(4) for _ in range(3)]
        finish(transport, *(transport.irecv(peer, tag, memoryview(buffers[tag - 1])) for tag in (1, 2, 3)))
        return [bytes(buffer) for buffer in buffers]

    assert run(2, program) == [[b"tag1", b"tag2", b"tag3"]] * 2


@pytest.mark.parametrize("early", [True, False])
def test_a_message_of_another_length_is_an_error_that_names_both_ranks(run: Runner, early: bool) -> None:
    def program(transport: Transport) -> str:
        if transport.rank == 0:
            if early:
                time.sleep(0.1)
            finish(transport, transport.isend(1, 5, memoryview(b"four")))
            return ""
        if not early:
            time.sleep(0.1)
            transport.progress(0.1)
        request = transport.irecv(0, 5, memoryview(bytearray(3)))
        with pytest.raises(TransportError) as caught:
            finish(transport, request)
        return str(caught.value)

    words = run(2, program)[1]
    assert "rank 1: message of 4 bytes from rank 0" in words
    assert "receive of 3 bytes" in words


def test_counters_count_payload(run: Runner) -> None:
    def program(transport: Transport) -> tuple[int, int, int, int]:
        peer = 1 - transport.rank
        buffer = bytearray(1000)
        for _ in range(3):
            finish(
                transport,
                transport.isend(peer, 1, memoryview(b"x" * 1000)),
                transport.irecv(peer, 1, memoryview(buffer)),
            )
        mine = transport.counters[peer]
        return mine.bytes_sent, mine.bytes_received, mine.messages_sent, mine.messages_received

    assert run(2, program) == [(3000, 3000, 3, 3)] * 2


def test_a_peer_that_leaves_fails_what_waits_for_it_at_once(run: Runner) -> None:
    def program(transport: Transport) -> float:
        if transport.rank == 1:
            return 0.0
        request = transport.irecv(1, 1, memoryview(bytearray(4)))
        start = time.monotonic()
        with pytest.raises(PeerLostError, match="rank 0: .*rank 1"):
            finish(transport, request)
        with pytest.raises(PeerLostError):
            finish(transport, transport.irecv(1, 2, memoryview(bytearray(4))))
        return time.monotonic() - start

    assert run(2, program)[0] < 5


def test_tcp_congestion_control_is_set_on_both_ends_and_read_back() -> None:
    def exchange(transport: Transport) -> None:
        finish(
            transport,
            transport.isend(1 - transport.rank, 1, memoryview(b"x" * 500)),
            transport.irecv(1 - transport.rank, 1, memoryview(bytearray(500))),
        )

    def program(transport: Transport) -> set[str]:
        exchange(transport)
        (entry,) = transport.socket_info()
        exchange(transport)  # nobody leaves before both have looked
        assert entry["rtt_s"] > 0
        return {entry["congestion_control"]}

    assert over_tcp(2, program, congestion_control="reno") == [{"reno"}, {"reno"}]
    with pytest.raises(TransportError, match="'nosuch': this kernel does not have it"):
        over_tcp(2, program, congestion_control="nosuch")


def test_tcp_source_ports_are_as_told() -> None:
    def program(transport: Transport) -> list[tuple[int, int]]:
        return [(entry["peer"], entry["local_port"]) for entry in transport.socket_info()]

    found = over_tcp(3, program, source_port=lambda rank, peer: 41_000 + 10 * rank + peer)
    assert (0, 41_010) in found[1]
    assert found[2] == [(0, 41_020), (1, 41_021)]


def test_tcp_turns_strangers_away() -> None:
    where = addresses(2)

    made = forked(1, lambda transport: "never", where)  # rank 0 alone: waits for rank 1
    process, pipe = made[0]
    try:
        deadline = time.monotonic() + 10
        answers = []
        for greeting in (
            b"GET / HTTP/1.0\r\n\r\n" + b"x" * 60,
            b"testbed1" + b"wrong token".ljust(32, b"\0") + b"\0" * 8,
        ):
            while True:
                try:
                    with socket.create_connection(where[0], timeout=5) as stranger:
                        stranger.sendall(greeting)
                        answers.append(stranger.recv(100))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                except ConnectionResetError:
                    answers.append(b"")
                    break
        assert answers == [b"", b""]
        rank1 = TcpTransport(1, where, token="test")
        assert pipe.poll(10)
        rank1.close()
    finally:
        process.kill()
        process.join()


def test_tcp_says_who_cannot_be_reached() -> None:
    where = addresses(2)
    with pytest.raises(TransportError, match="rank 1: cannot reach rank 0 at 127.77.0.1:"):
        TcpTransport(1, where, token="test", bootstrap_timeout_s=0.2)
    with pytest.raises(TransportError, match="rank 0: no connection from rank 1 within 0.2 s"):
        TcpTransport(0, where, token="test", bootstrap_timeout_s=0.2)


def test_a_killed_process_is_noticed() -> None:
    where = addresses(2)

    def stay(transport: Transport) -> None:
        while True:
            transport.progress(1.0)

    (process, _pipe), *_ = forked(1, stay, where)
    transport = TcpTransport(1, where, token="test")
    try:
        request = transport.irecv(0, 1, memoryview(bytearray(4)))
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PeerLostError, match="rank 1: connection to rank 0 lost"):
            finish(transport, request)
    finally:
        transport.close()
        process.join()
