"""The link engines carry real frames between real namespaces; what arrives is what was asked.

The same tests run on every engine that this kernel has; under the virtual clock, on netem.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.net.links import LinkError, LinkWire
from testbed.net.links.ingress import IngressDelay, add_ingress_delays
from testbed.net.links.netns import command_in_namespace
from testbed.net.links.packet_sockets import udp_pair
from testbed.net.links.setup import Setup
from testbed.net.links.userspace import UserspaceEngine
from testbed.spec.link_direction import LossBursts, QueueClass
from tests.net.iperf import iperf_server
from tests.net.line import (
    BACK,
    FORTH,
    LEFT,
    MTU,
    RIGHT,
    Line,
    balanced,
    direction,
    fastest_ping_s,
    running,
    stream,
    two_hosts,
)
from tests.net.namespaces import namespaces
from tests.net.patience import assert_within

pytestmark = [pytest.mark.net, pytest.mark.quiet]


def test_round_trip_is_the_sum_of_both_delays(engine_kind: str, line: Line, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(delay_s=0.004), direction(delay_s=0.007)) as engine:
        assert_within(lambda: fastest_ping_s(line), 0.0109, 0.0116)
        books = engine.stats().directions
        assert books[FORTH].out_packets >= 30
        assert books[BACK].out_packets >= 30
        assert balanced(engine)


@pytest.mark.parametrize(
    ("settings", "streams", "low", "high"),
    [
        ({"loss": 0.1}, 1, 420, 580),  # 500 of 5000 expected, standard deviation 21
        # 1818 of 20000 expected; bursts last five packets in the mean, so the standard deviation is 105 (of 5000: 52)
        ({"loss_bursts": LossBursts(0.02, 0.2, 0.9, 0.01)}, 4, 1400, 2240),
    ],
    ids=["each by itself", "in bursts"],
)
def test_loss_is_as_asked_and_in_the_books(
    engine_kind: str, line: Line, tmp_path: Path, settings: dict[str, Any], streams: int, low: int, high: int
) -> None:
    with running(engine_kind, line, tmp_path, direction(**settings)) as engine:
        before = engine.stats().directions[FORTH].lost
        arrived = [{arrival.number for arrival in stream(line, 5000)} for _ in range(streams)]
        lost = sum(5000 - len(numbers) for numbers in arrived)
        assert low <= lost <= high
        assert engine.stats().directions[FORTH].lost - before == lost
        assert balanced(engine)
    gaps = [
        number + 1 not in numbers for numbers in arrived for number in range(5000) if number not in numbers
    ]
    in_a_row = sum(gaps) / len(gaps)
    if "loss_bursts" in settings:
        assert 0.6 < in_a_row < 0.85  # the channel stays bad with 80 %, and nine of ten are lost then
    else:
        assert 0.04 < in_a_row < 0.16


def test_the_same_seed_loses_the_same_packets(engine_kind: str, tmp_path: Path) -> None:
    arrived = []
    for seed in (7, 7, 8):
        with (
            two_hosts() as line,
            running(engine_kind, line, tmp_path, direction(loss=0.2), seed=seed) as engine,
        ):
            if not engine.is_seeded():
                pytest.skip("this kernel's netem takes no seed (Linux 6.6 does)")
            arrived.append([arrival.number for arrival in stream(line, 500)])
    assert len(arrived[0]) < 500
    assert arrived[0] == arrived[1] != arrived[2]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto"])
def test_jitter_has_its_size(engine_kind: str, line: Line, tmp_path: Path, distribution: str) -> None:
    settings = direction(delay_s=0.03, jitter_s=0.006, jitter_distribution=distribution)
    with running(engine_kind, line, tmp_path, settings):
        took = sorted(arrival.took_s for arrival in stream(line, 400, pause_s=0.02))
    assert len(took) == 400
    assert 0.0275 < statistics.mean(took) < 0.0325
    middle_s = took[300] - took[99]  # half of all packets
    expected_s = {"uniform": 0.006, "normal": 0.0081, "pareto": 0.0034}[distribution]
    assert 0.7 * expected_s < middle_s < 1.4 * expected_s


def test_duplicates_come_as_often_as_asked(engine_kind: str, line: Line, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(duplicate=0.1)) as engine:
        before = engine.stats().directions[FORTH].duplicated
        arrived = [arrival.number for arrival in stream(line, 3000)]
        twice = len(arrived) - 3000
        assert set(arrived) == set(range(3000))
        assert 220 < twice < 380
        assert engine.stats().directions[FORTH].duplicated - before == twice
        assert balanced(engine)


def test_who_overtakes_does_so_as_often_as_asked_and_nobody_else(
    engine_kind: str, line: Line, tmp_path: Path
) -> None:
    with running(engine_kind, line, tmp_path, direction(delay_s=0.05, reorder=0.1)):
        arrived = stream(line, 1000, pause_s=0.001)
    early = {arrival.number for arrival in arrived if arrival.took_s < 0.025}
    assert 60 < len(early) < 140
    others = [arrival.number for arrival in arrived if arrival.number not in early]
    assert others == sorted(others)
    assert len(early) + len(others) == 1000


def test_corrupted_packets_do_not_pass_checksums(engine_kind: str, line: Line, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(corrupt=0.1)):
        assert 220 < 3000 - len(stream(line, 3000)) < 380


@pytest.mark.parametrize("queue", [{"queue_bytes": 100_000}, {"queue_packets": 70}], ids=["bytes", "packets"])
def test_the_queue_holds_what_it_should_and_drops_the_rest(
    engine_kind: str, line: Line, tmp_path: Path, queue: dict[str, int]
) -> None:
    size = 1400  # 1442 bytes as a frame: 69 fit into 100 kB
    with running(engine_kind, line, tmp_path, direction(rate_bps=5e6, **queue)) as engine:
        time.sleep(0.1)
        before = engine.stats().directions[FORTH].dropped
        arrived = stream(line, 200, size=size, settle_s=1.0)
        # in the queue, on the wire, and the two frames or 2 ms that an idle HTB lets through by the real clock
        assert 68 <= len(arrived) <= 88
        assert [arrival.number for arrival in arrived[:68]] == list(range(68))
        assert engine.stats().directions[FORTH].dropped - before == 200 - len(arrived)
        assert balanced(engine)
        assert arrived[67].at_s == pytest.approx(68 * 1442 * 8 / 5e6, rel=0.2)


def test_what_finds_a_long_queue_is_marked_if_it_can_be(engine_kind: str, line: Line, tmp_path: Path) -> None:
    size = 1400
    with running(engine_kind, line, tmp_path, direction(rate_bps=5e6, ecn_bytes=40_000)) as engine:
        time.sleep(0.1)
        marks = {tos: burst_marks(line, tos, size) for tos in (2, 0)}
        assert engine.stats().directions[FORTH].marked == sum(marks[2])
    assert not any(marks[0])
    # the first 40 kB are 28 frames, and what an idle HTB lets through goes ahead of them
    assert 100 - 28 - 20 <= sum(marks[2]) <= 100 - 28
    assert not any(marks[2][:25])
    assert all(marks[2][50:])


def burst_marks(line: Line, tos: int, size: int, count: int = 100) -> list[bool]:
    """Whether each of `count` datagrams with this TOS byte, sent at once, arrives with Congestion Experienced."""
    with udp_pair((line.left.pid, LEFT), (line.right.pid, RIGHT)) as (sender, receiver):
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(1.0)
        for _ in range(count):
            sender.send(bytes(size))
        found = []
        for _ in range(count):
            _, ancillary, _, _ = receiver.recvmsg(65_536, 256)
            tos_bytes = [
                data for level, kind, data in ancillary if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)
            ]
            found.append(tos_bytes[0][0] & 3 == 3)
        return found


CLASSES = (
    QueueClass("first", (46,), priority=0),
    QueueClass("small", (26,), priority=1, share=0.2),
    QueueClass("big", (10, 12), priority=1, share=0.6),
    QueueClass("slow", (8,), priority=1, limit=0.5),
    QueueClass("rest", priority=2),
)


def arrivals_of(line: Line, dscps: Sequence[int], size: int = 1400) -> list[tuple[float, int]]:
    """(seconds since the first was sent, DSCP) of datagrams sent at once, as they arrive; all must."""
    with udp_pair((line.left.pid, LEFT), (line.right.pid, RIGHT)) as (sender, receiver):
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(5.0)
        begun_s = time.monotonic()
        for dscp in dscps:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            sender.send(bytes(size))
        found = []
        for _ in dscps:
            _, ancillary, _, _ = receiver.recvmsg(65_536, 256)
            tos = next(data[0] for level, kind, data in ancillary if (level, kind) == (0, socket.IP_TOS))
            found.append((time.monotonic() - begun_s, tos >> 2))
        return found


def test_classes_go_by_priority_by_share_and_no_faster_than_their_limit(
    engine_kind: str, line: Line, tmp_path: Path
) -> None:
    plain = direction(rate_bps=5e6, queue_bytes=400_000)
    frame_s = 1442 * 8 / 5e6
    with running(engine_kind, line, tmp_path, plain) as engine:
        queued = replace(plain, classes=CLASSES)
        engine.change({FORTH: queued})
        assert engine.settings()[FORTH] == queued
        # what the shaper lets through at once is over when the urgent ones come, which pass all that wait
        order = [dscp for _, dscp in arrivals_of(line, [0] * 60 + [46] * 5)]
        assert order.index(46) <= 25
        assert order[order.index(46) :][:5] == [46] * 5
        # three times as much is guaranteed to one as to the other, while both wait
        order = [dscp for _, dscp in arrivals_of(line, [26, 10] * 60)]
        assert order[30:70].count(26) / 40 == pytest.approx(0.25, abs=0.1)
        # half of the rate takes twice as long, and nothing is lost
        times = [when for when, _ in arrivals_of(line, [8] * 60)]
        assert times[-1] - times[19] == pytest.approx(40 * 2 * frame_s, rel=0.15)
        times = [when for when, _ in arrivals_of(line, [0] * 60)]
        assert times[-1] - times[19] == pytest.approx(40 * frame_s, rel=0.15)
        assert engine.stats().directions[FORTH].dropped == 0
        engine.change({FORTH: plain})
        assert engine.settings()[FORTH].classes == ()
        order = [dscp for _, dscp in arrivals_of(line, [0] * 30 + [46] * 5)]
        assert order[-5:] == [46] * 5
        assert balanced(engine)


def test_settings_change_in_place_also_back_to_zero(engine_kind: str, line: Line, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(delay_s=0.01)) as engine:
        for asked, low, high in (
            (direction(delay_s=0.04, loss=0.2, duplicate=0.1, ecn_bytes=40_000), 0.0399, 0.0415),
            (direction(queue_packets=100), 0.0, 0.0015),
            (direction(delay_s=0.005, rate_bps=1e8, queue_bytes=500_000), 0.0049, 0.0065),
        ):
            engine.change({FORTH: asked})
            assert engine.settings()[FORTH].loss == pytest.approx(asked.loss, abs=1e-6)
            assert_within(lambda: fastest_ping_s(line), low, high)
        engine.change({FORTH: direction(loss=1.0)})
        assert stream(line, 10) == []
        engine.change({FORTH: direction()})
        assert len(stream(line, 10)) == 10
        assert balanced(engine)


def test_tcp_gets_the_goodput_that_rate_and_headers_allow(
    engine_kind: str, line: Line, tmp_path: Path
) -> None:
    forth = direction(rate_bps=50e6, delay_s=0.002, queue_bytes=300_000)
    with running(engine_kind, line, tmp_path, forth, replace(forth, rate_bps=20e6)) as engine:
        expected_bps = 50e6 * (MTU - 52) / (MTU + 14)
        assert_within(lambda: goodput_bps(line), 0.97 * expected_bps, 1.02 * expected_bps)
        books = engine.stats().directions[FORTH]
        assert books.sent_bytes > 3 * 0.97 * expected_bps / 8
        assert balanced(engine) or books.held


def test_a_frame_takes_its_own_time_before_the_delay(engine_kind: str, line: Line, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(rate_bps=1e6, delay_s=0.0025)):
        own_s = 1442 * 8 / 1e6

        def fastest_s() -> float:
            return min(arrival.took_s for arrival in stream(line, 20, pause_s=0.02, size=1400))

        assert_within(fastest_s, 0.0025 + own_s - 0.00001, 0.0025 + own_s + 0.0005)


def test_one_flow_fills_a_queue_that_is_not_its_hosts(engine_kind: str, line: Line, tmp_path: Path) -> None:
    """Else TCP takes the link's queue for its own card's, and holds back (small queues)."""
    if engine_kind == "netem":  # as at the end of every host's cable in a network
        setup = Setup()
        add_ingress_delays(setup, {"ha": IngressDelay(1e9)})
        setup.apply(line.edges.pid)
    forth = direction(rate_bps=50e6, delay_s=0.01, queue_bytes=500_000)  # four bandwidth-delay products
    with (
        running(engine_kind, line, tmp_path, forth, direction(delay_s=0.01)) as engine,
        bulk_flow(line, "cubic"),
    ):
        peak, end_s = 0, time.monotonic() + 6
        while time.monotonic() < end_s:
            time.sleep(0.02)
            peak = max(peak, engine.stats().directions[FORTH].queue_bytes)
    assert 0.9 * forth.queue_bytes <= peak <= forth.queue_bytes


@contextlib.contextmanager
def bulk_flow(line: Line, congestion_control: str) -> Iterator[None]:
    """One TCP connection from left to right that always has something to send."""
    with iperf_server(line.right.pid):
        command = command_in_namespace(
            line.left.pid, ["iperf3", "-c", RIGHT, "-t", "60", "-C", congestion_control]
        )
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
            try:
                yield
            finally:
                client.terminate()


def goodput_bps(line: Line) -> float:
    """What iperf3 receives, of 3 seconds after one."""
    with iperf_server(line.right.pid):
        command = command_in_namespace(line.left.pid, ["iperf3", "-c", RIGHT, "-t", "3", "-O", "1", "-J"])
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return float(said["end"]["sum_received"]["bits_per_second"])


def test_a_killed_engine_is_noticed_and_named(line: Line, tmp_path: Path) -> None:
    wire = LinkWire("l", "wa", "wb", "pa", "pb", direction(), direction())
    engine = UserspaceEngine(line.middle.pid, [wire], tmp_path / "links.sock", seed=1)
    engine.start()
    try:
        assert engine.failure() is None
        subprocess.run(["kill", "-9", str(engine.process_id)], check=True)
        for _ in range(100):
            if failure := engine.failure():
                break
            subprocess.run(["sleep", "0.02"], check=True)
        assert failure is not None
        assert "was killed by signal 9" in failure
        with pytest.raises(LinkError, match="does not answer"):
            engine.stats()
    finally:
        engine.stop()
    assert not (tmp_path / "links.sock").exists()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with namespaces(1) as (empty,):
        engine = UserspaceEngine(
            empty.pid,
            [LinkWire("l", "nowhere", "wb", "pa", "pb", direction(), direction())],
            tmp_path / "s",
            seed=1,
        )
        try:
            with pytest.raises(LinkError, match="No such device"):
                engine.start()
        finally:
            engine.stop()
