"""What is the striped transport's own: how segments are dealt out, put together, acknowledged; hostile peers; MPTCP."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from testbed.comm.transport import (
    MeshSettings,
    PeerCounters,
    PeerLost,
    Request,
    StripedTransport,
    StripeSettings,
    TcpTransport,
    TrafficClass,
    Transport,
    TransportError,
    TransportTimeout,
    wait_all,
)
from testbed.comm.transport.channels import FRAME, Channel
from testbed.comm.transport.onesided import ExposedWindows, PeerEnd
from testbed.comm.transport.striped import SharedWindow, StripedPair
from testbed.comm.transport.wire import HELLO_BYTES, ConnectionKey, make_hello
from tests.unit.measure.ranks import TOKEN, Places, over_channels, over_tcp

SEGMENT, ACK, NOTIFY, GOODBYE, LAST, FAST = 1, 2, 3, 4, 1, 2


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places(2)
    yield made
    made.close()


class Ends:
    """Two pairs whose channels are joined by sockets that the test carries, or holds back, one by one."""

    def __init__(self, window: SharedWindow | None = None, *, connect: bool = True, **options: Any) -> None:
        settings = StripeSettings(**{"connections": 3, "segment_bytes": 1000, "fast_bytes": 10, **options})
        self.pairs = [
            StripedPair(PeerEnd(rank, 1 - rank, PeerCounters(), ExposedWindows(), 1 << 20), settings, window)
            for rank in range(2)
        ]
        self.masks: list[dict[int, int]] = [{}, {}]
        for number in range(settings.connections):
            for pair in self.pairs:
                channel = pair.channels[number] = Channel(pair, number)
                channel.header_bytes = FRAME.size
                channel._set_low_water = lambda: None  # type: ignore[method-assign]
                channel.info = lambda: None  # type: ignore[method-assign]
            if connect:
                self.connect(number)

    def connect(self, number: int) -> None:
        """A channel."""
        for rank, sock in enumerate(socket.socketpair()):
            sock.setblocking(False)
            self.pairs[rank].channels[number].attach(
                sock, lambda mask, r=rank: self.masks[r].__setitem__(number, mask)
            )

    def carry(self, rank: int, *channels: int) -> None:
        """Let a rank read from these channels what has come."""
        for number in channels:
            self.pairs[rank].channels[number].on_event(1)

    def close(self) -> None:
        for pair in self.pairs:
            pair.fail("the test is over")


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def request(kind: str, peer: int, tag: int, data: bytes | bytearray) -> Request:
    return Request(kind, peer, tag, memoryview(data))  # type: ignore[arg-type]


# ---- dealing out


def test_segments_go_round_the_lanes_and_full_ones_are_passed_over() -> None:
    ends = Ends(outstanding=2)
    sender, receiver = ends.pairs
    sender.send(request("send", 1, 5, bytes(20_000)))
    assert [channel.outstanding for channel in sender.channels.values()] == [2, 2, 2]
    buffer = bytearray(20_000)
    receiver.receive(request("recv", 0, 5, buffer))
    # channel 1 does not move: the others carry all but the two segments that it has
    for _ in range(20):
        ends.carry(1, 0, 2)
        ends.carry(0, 0, 2)
    assert sender.channels[1].outstanding == 2
    assert receiver.counters.messages_received == 0
    assert sum(map(len, [sender._waiting])) == 0
    ends.carry(1, 1)
    assert receiver.counters.messages_received == 1
    assert receiver.counters.bytes_received == 20_000
    ends.close()


def test_segments_go_round_from_the_first_channel_on_whichever_is_connected_first() -> None:
    # else each of two ends would begin where it happened to, and their words of what has come go by other channels
    ends = Ends(connect=False)
    sender, receiver = ends.pairs
    receiver.receive(request("recv", 0, 5, bytearray(4_000)))
    sender.send(request("send", 1, 5, bytes(4_000)))
    for number in (2, 1):
        ends.connect(number)
        assert [channel.outstanding for channel in sender.channels.values()] == [0, 0, 0]
    ends.connect(0)
    assert [sender.channels[number].outstanding for number in range(3)] == [2, 1, 1]
    ends.close()


def test_no_more_is_under_way_than_the_settings_say() -> None:
    ends = Ends(connections=2, outstanding=3)
    sender, receiver = ends.pairs
    receiver.receive(request("recv", 0, 5, bytearray(50_000)))
    sender.send(request("send", 1, 5, bytes(50_000)))
    most = 0
    while receiver.counters.messages_received == 0:
        most = max(most, sum(channel.outstanding for channel in sender.channels.values()))
        ends.carry(1, 0, 1)
        ends.carry(0, 0, 1)
    assert most == 6
    ends.close()


def test_pairs_share_a_window_in_turn_and_the_last_one_has_all_of_it() -> None:
    """Four segments in all: of two pairs each has its part, what the first leaves goes to the second."""
    window = SharedWindow(4)
    near, far = (Ends(window, connections=1) for _ in range(2))
    messages = [bytearray(b"a" * 6000), bytearray(b"b" * 12000)]
    sends = [request("send", 1, 7, message) for message in messages]
    taken = [bytearray(len(message)) for message in messages]
    for pair, one in zip((near, far), sends, strict=True):
        pair.pairs[0].send(one)

    def under_way() -> list[int]:
        return [ends.pairs[0].channels[0].outstanding for ends in (near, far)]

    assert under_way() == [4, 0]
    receives = [request("recv", 0, 7, buffer) for buffer in taken]
    for pair, one in zip((near, far), receives, strict=True):
        pair.pairs[1].receive(one)
    most = [0, 0]
    for _ in range(60):
        for ends in (near, far):
            ends.carry(1, 0)
            ends.carry(0, 0)
            assert sum(under_way()) <= 4
            most = [max(pair) for pair in zip(most, under_way(), strict=True)]
    assert taken == messages
    assert all(one.done and one.error is None for one in (*sends, *receives))
    assert most == [2, 4]  # in turn, and then alone
    assert window.free == 4
    near.close()
    far.close()
    assert window.free == 4


def test_a_lost_pair_gives_its_part_of_a_window_back() -> None:
    window = SharedWindow(2)
    near, far = (Ends(window, connections=1) for _ in range(2))
    for ends in (near, far):
        ends.pairs[0].send(request("send", 1, 7, bytearray(5000)))
    assert [ends.pairs[0].channels[0].outstanding for ends in (near, far)] == [2, 0]
    near.close()
    assert far.pairs[0].channels[0].outstanding == 2
    far.close()
    assert window.free == 2


def test_small_messages_take_lane_0_at_once_however_full_it_is() -> None:
    ends = Ends(outstanding=1)
    sender, receiver = ends.pairs
    sender.send(request("send", 1, 5, bytes(9_000)))
    sender.send(request("send", 1, 6, b"small"))
    buffer = bytearray(5)
    small = request("recv", 0, 6, buffer)
    receiver.receive(small)
    ends.carry(1, 0)
    assert small.done
    assert bytes(buffer) == b"small"
    assert sender.channels[0].outstanding == 1
    ends.close()


# ---- putting together


@pytest.mark.parametrize("mode", ["dqplb", "spray"])
@pytest.mark.parametrize("seed", range(15))
def test_whatever_the_order_of_lanes_messages_come_whole_and_in_order(mode: str, seed: int) -> None:
    rng = random.Random(seed)
    ends = Ends(mode=mode, connections=rng.choice([1, 2, 5]), outstanding=rng.choice([1, 2, 9]))
    sender, receiver = ends.pairs
    plan = [
        (rng.choice([1, 1, 2, 3]), rng.choice([0, 3, 10, 11, 999, 1000, 5_001, 20_000])) for _ in range(20)
    ]
    sends = [request("send", 1, tag, bytes([number]) * size) for number, (tag, size) in enumerate(plan)]
    buffers = [bytearray(size) for _, size in plan]
    receives = [request("recv", 0, tag, buffer) for (tag, _), buffer in zip(plan, buffers, strict=True)]
    # receives are posted in the order of the sends within each tag, tags as they like
    order = sorted(
        range(len(plan)), key=lambda number: (rng.random() if plan[number][0] > 1 else 0.5, number)
    )
    per_tag = {tag: iter([n for n, (t, _) in enumerate(plan) if t == tag]) for tag in (1, 2, 3)}
    to_post = [next(per_tag[plan[number][0]]) for number in order]
    to_send = list(sends)
    while not all(item.done for item in (*sends, *receives)):
        if to_send and rng.random() < 0.5:
            sender.send(to_send.pop(0))
        if to_post and rng.random() < 0.5:
            receiver.receive(receives[to_post.pop(0)])
        channels = list(sender.channels)
        rng.shuffle(channels)
        ends.carry(1, *channels[: rng.randrange(len(channels) + 1)])
        ends.carry(0, *channels)
        for pair in ends.pairs:
            for channel in pair.channels.values():
                channel.on_event(4)
    assert [bytes(buffer) for buffer in buffers] == [bytes(send.view) for send in sends]
    assert not any(item.error for item in (*sends, *receives))
    counters = receiver.counters
    assert (counters.messages_received, counters.bytes_received) == (20, sum(size for _, size in plan))
    assert receiver._mailbox.staged_bytes == receiver._mailbox.staged_messages == 0
    assert not receiver._messages
    ends.close()


def test_a_receive_posted_in_time_is_filled_in_place_and_a_late_one_copied() -> None:
    def program(transport: Transport) -> int:
        peer, size = 1 - transport.rank, 300_000
        if transport.rank == 1:
            receive = transport.irecv(0, 1, memoryview(bytearray(size)))
            wait_all(transport, [transport.isend(0, 2, memoryview(b"go")), receive], 10)
            return transport.counters[0].bytes_copied
        wait_all(transport, [transport.irecv(1, 2, memoryview(bytearray(2)))], 10)
        wait_all(transport, [transport.isend(peer, 1, memoryview(bytes(size)))], 10)
        return 0

    for runner in (over_channels, over_tcp):
        assert runner(2, program)[1] == 0


def test_numbers_come_round() -> None:
    ends = Ends(connections=2, segment_bytes=256, fast_bytes=0)
    sender, receiver = ends.pairs
    for pair in ends.pairs:
        pair._next_sequence = pair._sequences.expected = (1 << 24) - 3
        pair._next_message = pair._next_match = (1 << 32) - 2
    for number in range(6):
        buffer = bytearray(700)
        receiver.receive(request("recv", 0, 1, buffer))
        sender.send(request("send", 1, 1, bytes([number]) * 700))
        ends.carry(1, 1, 0)
        ends.carry(0, 0, 1)
        assert bytes(buffer) == bytes([number]) * 700
    assert receiver.counters.messages_received == 6
    ends.close()


# ---- classes, channels and ends that do not agree


def test_every_class_has_lanes_of_its_own() -> None:
    def program(transport: StripedTransport) -> list[tuple[int, int]]:
        peer = 1 - transport.rank

        def exchange(tag: int, size: int, traffic: TrafficClass) -> None:
            send = transport.isend(peer, tag, memoryview(bytes(size)), traffic)
            wait_all(transport, [send, transport.irecv(peer, tag, memoryview(bytearray(size)), traffic)], 10)

        for traffic in (TrafficClass(), TrafficClass(8, 2)):
            exchange(1, 100_000, traffic)
        end_s = time.monotonic() + 10
        while len(transport.socket_info()) < 6 and time.monotonic() < end_s:
            transport.progress(0.01)  # channels that came late were not needed
        exchange(2, 1, TrafficClass())  # nobody leaves before both have looked
        return sorted((entry.get("dscp", 0), entry.get("channel", 0)) for entry in transport.socket_info())

    expected = [(dscp, channel) for dscp in (0, 8) for channel in range(3)]
    assert over_channels(2, program) == [expected, expected]


def test_ends_that_disagree_on_the_lanes_do_not_meet(places: Places) -> None:
    def program(rank: int) -> StripedTransport:
        return places.striped(rank, connections=2 + rank, bootstrap_timeout_s=0.3)

    zero, one = program(0), program(1)
    send = one.isend(0, 1, memoryview(b""))
    end_s = time.monotonic() + 5
    while not send.done and time.monotonic() < end_s:
        zero.progress(0.01)
        one.progress(0.01)
    assert isinstance(send.error, TransportTimeout)
    assert zero.refused > 0
    zero.close()
    one.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"connections": 0}, "connections: got 0, expected 1 to 255"),
        ({"segment_bytes": 255}, "segment_bytes: got 255, expected 256 to"),
        ({"outstanding": 0}, "outstanding: got 0, expected 1 to 65536"),
        ({"mode": "fountain"}, "mode: got 'fountain', expected dqplb or spray"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StripeSettings(**options)  # type: ignore[arg-type]


# ---- hostile peers


def pose_as_rank_1(places: Places, transport: StripedTransport, channels: int = 2) -> list[socket.socket]:
    """Channels of an impostor who knows the token."""
    found = []
    for channel in range(channels):
        impostor = socket.create_connection(places.addresses[0], timeout=5)
        impostor.sendall(make_hello(1, 0, 2, TOKEN, ConnectionKey(TrafficClass(), channel, channels)))
        while True:
            transport.progress(0.01)
            impostor.setblocking(False)
            with suppress(BlockingIOError):
                assert len(impostor.recv(HELLO_BYTES)) == HELLO_BYTES
                break
        impostor.settimeout(5)
        found.append(impostor)
    return found


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ((9, 0, 0, 0, 0, 0, 0, 0, 0), "it sent a frame of kind 9"),
        ((SEGMENT, LAST, 0, 0, 0, 11, 7, 0, 10), "it sent 11 bytes at 0 of a message of 10"),
        (
            (SEGMENT, LAST, 0, 0, 0, 5, 7, 2**63, 10),
            "it sent 5 bytes at 9223372036854775808 of a message of 10",
        ),
        ((SEGMENT, LAST, 0, 0, 0, 0, 7, 0, 10), "it sent 0 bytes at 0 of a message of 10"),
        ((SEGMENT, LAST, 0, 0, 2**31, 10, 7, 0, 10), "it sent message 2147483648 when 0 was next"),
        ((ACK, 0, 1, 0, 0, 0, 0, 0, 0), "it acknowledged 1 segments of 0"),
        ((GOODBYE, 0, 0, 0, 0, 2**31, 0, 0, 0), "its goodbye announces 2147483648 bytes"),
    ],
)
def test_frames_that_make_no_sense_end_in_an_error(
    places: Places, frame: tuple[int, ...], words: str
) -> None:
    transport = places.striped(0, connections=2, max_staged_bytes=5000)
    channels = pose_as_rank_1(places, transport)
    receive = transport.irecv(1, 7, memoryview(bytearray(10)))
    channels[0].sendall(struct.pack("<BBHIIIQQQ", *frame) + b"x" * 20)
    with pytest.raises(PeerLost, match=f"rank 0: lost peer 1: {words}"):
        wait_all(transport, [receive], 5)
    transport.close()
    for channel in channels:
        channel.close()


def test_a_segment_that_comes_twice_is_noticed(places: Places) -> None:
    transport = places.striped(0, connections=2)
    channels = pose_as_rank_1(places, transport)
    receive = transport.irecv(1, 7, memoryview(bytearray(2000)))
    segment = FRAME.pack(SEGMENT, 0, 0, 5, 0, 5, 7, 0, 2000) + b"12345"
    channels[0].sendall(segment)
    channels[1].sendall(segment)
    with pytest.raises(PeerLost, match="it sent segment 5 twice"):
        wait_all(transport, [receive], 5)
    transport.close()
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_ends_in_errors_and_nothing_else(places: Places, seed: int) -> None:
    rng = random.Random(seed)
    transport = places.striped(0, connections=2, max_staged_bytes=5000)
    channels = pose_as_rank_1(places, transport)
    requests = [transport.irecv(1, 7, memoryview(bytearray(4))) for _ in range(3)]
    for _ in range(rng.randrange(1, 12)):
        length = rng.choice([0, 3, 4, 4, 100, rng.getrandbits(32)])
        total = rng.choice([length, 4, 4900, rng.getrandbits(64)])
        kind = rng.choice([SEGMENT, SEGMENT, SEGMENT, NOTIFY, ACK, GOODBYE, rng.getrandbits(8)])
        numbers = (rng.randrange(4), rng.choice([0, 1, 2, rng.getrandbits(32)]))
        frame = FRAME.pack(
            kind, rng.randrange(4), rng.randrange(3), *numbers, length, rng.choice([7, 8]),
            rng.choice([0, 1, rng.getrandbits(64)]), total,
        )  # fmt: skip
        with suppress(ConnectionResetError, BrokenPipeError):
            rng.choice(channels).sendall(frame + rng.randbytes(min(length, 6000)))
        transport.progress(rng.choice([0.0, 0.001]))
    for channel in channels:
        channel.close()
    begun_s = time.monotonic()
    with suppress(TransportError):
        wait_all(transport, requests, 5)
    assert time.monotonic() - begun_s < 2
    transport.close()


def test_a_lane_that_breaks_ends_the_whole_pair(places: Places) -> None:
    transport = places.striped(0, connections=2)
    channels = pose_as_rank_1(places, transport)
    receive = transport.irecv(1, 7, memoryview(bytearray(4)))
    channels[1].close()
    with pytest.raises(PeerLost, match="its end closed without a goodbye"):
        wait_all(transport, [receive], 5)
    assert isinstance(transport.isend(1, 1, memoryview(b"")).error, PeerLost)
    transport.close()
    channels[0].close()


def test_what_was_sent_before_closing_arrives(places: Places) -> None:
    size = 5_000_000

    def program() -> None:
        transport = places.striped(1, segment_bytes=10_000, outstanding=2)
        transport.isend(0, 1, memoryview(b"x" * size))
        transport.close()

    sender = threading.Thread(target=program)
    sender.start()
    transport = places.striped(0, segment_bytes=10_000, outstanding=2)
    buffer = bytearray(size)
    wait_all(transport, [transport.irecv(1, 1, memoryview(buffer))], 10)
    assert buffer == b"x" * size
    sender.join()
    transport.close()


# ---- MPTCP


def test_mptcp_is_what_it_says() -> None:
    def program(transport: TcpTransport) -> list[int]:
        peer = 1 - transport.rank
        for _ in range(2):
            send = transport.isend(peer, 1, memoryview(bytes(100_000)))
            wait_all(transport, [send, transport.irecv(peer, 1, memoryview(bytearray(100_000)))], 10)
        found = [entry["subflows"] for entry in transport.socket_info()]
        wait_all(
            transport,
            [transport.isend(peer, 2, memoryview(b"")), transport.irecv(peer, 2, memoryview(b""))],
            10,
        )
        return found

    assert over_tcp(2, program, multipath=True) == [[1], [1]]


def test_an_end_that_speaks_plain_tcp_is_not_taken_for_mptcp(places: Places) -> None:
    settings = MeshSettings(TOKEN, multipath=True, bootstrap_timeout_s=0.3)
    dialler = TcpTransport(1, places.addresses, settings, listener=places.sockets[1])
    listener = places.transport(0)
    send = dialler.isend(0, 1, memoryview(b""))
    end_s = time.monotonic() + 5
    while not send.done and time.monotonic() < end_s:
        listener.progress(0.01)
        dialler.progress(0.01)
    assert "supports only plain TCP" in str(send.error)
    dialler.close()
    listener.close()
