"""The link engines carry real frames between real namespaces; independent tools agree with what was asked.

The same tests run on every engine that this kernel has.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.links import LinkEngine, LinkError, LinkWire
from testbed.links.command import inside, run_script
from testbed.links.netem import NetemEngine
from testbed.links.setup import Setup
from testbed.links.shaping import Shape, read_counters, shape_commands, verify_shape
from testbed.links.userspace import UserspaceEngine
from testbed.links.wire import Impairment
from tests.net.namespaces import Namespace, namespaces
from tests.net.patience import assert_within

pytestmark = pytest.mark.net

MTU = 9000


@pytest.fixture
def line() -> Iterator[tuple[Namespace, Namespace, Namespace]]:
    """Two hosts, 10.99.0.1 and 10.99.0.2, each with a veth `eth0` into a third namespace as `wa` and `wb`."""
    with namespaces(3) as (left, right, middle):
        for host, inner, address in ((left, "wa", "10.99.0.1"), (right, "wb", "10.99.0.2")):
            run_script(
                host.pid,
                [
                    "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
                    f"ip link add eth0 mtu {MTU} type veth peer name {inner} mtu {MTU} netns {middle.pid}",
                    "ethtool -K eth0 tx off tso off gso off gro off",
                    f"ip address add {address}/24 dev eth0",
                    "ip link set eth0 up",
                ],
            )
        run_script(
            middle.pid,
            [
                "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
                *(f"ethtool -K {name} tx off tso off gso off gro off" for name in ("wa", "wb")),
                *(f"ip link set {name} up" for name in ("wa", "wb")),
            ],
        )
        yield left, right, middle


@pytest.fixture(params=["userspace", "netem"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    kind = str(request.param)
    if kind == "netem":
        with namespaces(1) as (place,):
            try:
                run_script(
                    place.pid,
                    ["ip link add dummy0 type veth", "tc qdisc add dev dummy0 root netem delay 1ms"],
                )
            except LinkError as error:
                pytest.skip(f"this kernel has no netem: {str(error).splitlines()[0]}")
    return kind


def make_engine(kind: str, middle: Namespace, wire: LinkWire, folder: Path) -> LinkEngine:
    if kind == "netem":
        return NetemEngine(middle.pid, [wire], {wire.name: 1e9})
    return UserspaceEngine(middle.pid, [wire], folder / "links.sock", seed=1)


def ping(host: Namespace, count: int, interval_s: float) -> tuple[int, float]:
    """(replies, median round trip in seconds) of `ping` to the other host, the address resolution left out."""
    command = inside(host.pid, ["ping", "-c", str(count), "-i", str(interval_s), "-W", "1", "10.99.0.2"])
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    times = sorted(float(time) for time in re.findall(r"time=([\d.]+) ms", said))
    return len(times), times[len(times) // 2] / 1000 if times else float("nan")


def test_round_trip_is_the_sum_of_both_delays(
    engine_kind: str, line: tuple[Namespace, Namespace, Namespace], tmp_path: Path
) -> None:
    left, _right, middle = line
    wire = LinkWire("l", "wa", "wb", Impairment(0.004), Impairment(0.007))
    engine = make_engine(engine_kind, middle, wire, tmp_path)
    engine.start()
    try:
        assert_within(lambda: ping(left, 30, 0.02)[1], 0.0104, 0.0116)
        books = engine.account().directions
        assert books["l", "a_to_b"].out_packets >= 30
        assert books["l", "b_to_a"].out_packets >= 30
    finally:
        engine.stop()


def test_loss_is_as_asked_and_in_the_books(
    engine_kind: str, line: tuple[Namespace, Namespace, Namespace], tmp_path: Path
) -> None:
    left, _right, middle = line
    wire = LinkWire("l", "wa", "wb", Impairment(0.0, loss=0.1), Impairment(0.0))
    engine = make_engine(engine_kind, middle, wire, tmp_path)
    engine.start()
    try:
        replies, _ = ping(left, 1000, 0.002)
        assert 850 <= replies <= 950  # 900 expected, standard deviation 9.5
        books = engine.account().directions["l", "a_to_b"]
        assert books.lost >= 1000 - replies
        assert books.in_packets == books.out_packets + books.lost + books.overrun + books.held
    finally:
        engine.stop()


def test_tcp_through_a_shaped_and_delayed_link_gets_the_goodput_that_headers_allow(
    engine_kind: str, line: tuple[Namespace, Namespace, Namespace], tmp_path: Path
) -> None:
    left, right, middle = line
    shape = Shape(rate_bps=50e6, queue_bytes=300_000)
    Setup(tc=shape_commands("eth0", shape, MTU)).apply(left.pid)
    wire = LinkWire("l", "wa", "wb", Impairment(0.002), Impairment(0.002))
    engine = make_engine(engine_kind, middle, wire, tmp_path)
    engine.start()
    try:
        expected_bps = shape.rate_bps * (MTU - 52) / (MTU + 14)
        assert_within(lambda: goodput_bps(left, right), 0.97 * expected_bps, 1.03 * expected_bps)
        with left.netlink() as ipr:
            assert verify_shape(ipr, "eth0", shape) == shape
            assert read_counters(ipr, "eth0").sent_bytes > 3 * 0.97 * expected_bps / 8
    finally:
        engine.stop()


def goodput_bps(left: Namespace, right: Namespace) -> float:
    """What iperf3 receives, of 3 seconds after one."""
    server = subprocess.Popen(
        inside(right.pid, ["iperf3", "-s", "-1", "--forceflush"]), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        command = inside(left.pid, ["iperf3", "-c", "10.99.0.2", "-t", "3", "-O", "1", "-J"])
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return float(said["end"]["sum_received"]["bits_per_second"])
    finally:
        server.kill()
        server.communicate()


def test_a_killed_engine_is_noticed_and_named(
    line: tuple[Namespace, Namespace, Namespace], tmp_path: Path
) -> None:
    _left, _right, middle = line
    engine = UserspaceEngine(
        middle.pid,
        [LinkWire("l", "wa", "wb", Impairment(0.0), Impairment(0.0))],
        tmp_path / "links.sock",
        seed=1,
    )
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
            engine.account()
    finally:
        engine.stop()
    assert not (tmp_path / "links.sock").exists()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with namespaces(1) as (empty,):
        engine = UserspaceEngine(
            empty.pid,
            [LinkWire("l", "nowhere", "wb", Impairment(0.0), Impairment(0.0))],
            tmp_path / "s",
            seed=1,
        )
        try:
            with pytest.raises(LinkError, match="No such device"):
                engine.start()
        finally:
            engine.stop()
