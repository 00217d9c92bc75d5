"""A link that is cut: its ends see it, what was on its way is lost, and it works again afterwards; on every engine."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from testbed.net.links.netns import run_script
from testbed.net.links.packet_sockets import udp_pair
from tests.net.line import LEFT, RIGHT, Line, direction, running, stream

pytestmark = [pytest.mark.net, pytest.mark.quiet]


def carrier(line: Line, port: str) -> bool:
    return "NO-CARRIER" not in run_script(line.edges.pid, [f"ip link show dev {port}"])


def test_both_ends_see_a_cut_and_frames_pass_again_after_it(
    line: Line, engine_kind: str, tmp_path: Path
) -> None:
    with running(engine_kind, line, tmp_path, direction(delay_s=0.01), direction(delay_s=0.01)) as engine:
        assert carrier(line, "pa")
        assert carrier(line, "pb")
        engine.set_carrier("l", up=False)
        assert not carrier(line, "pa")
        assert not carrier(line, "pb")
        assert stream(line, 20, pause_s=0.002) == []
        engine.set_carrier("l", up=True)
        assert carrier(line, "pa")
        assert carrier(line, "pb")
        assert [arrival.number for arrival in stream(line, 20, pause_s=0.002)] == list(range(20))
        assert engine.failure() is None


def test_what_is_on_its_way_when_a_link_is_cut_does_not_arrive(
    line: Line, engine_kind: str, tmp_path: Path
) -> None:
    with (
        running(engine_kind, line, tmp_path, direction(delay_s=0.5)) as engine,
        udp_pair((line.left.pid, LEFT), (line.right.pid, RIGHT)) as (sender, receiver),
    ):
        for number in range(10):
            sender.send(b"early %d" % number)
        time.sleep(0.2)
        engine.set_carrier("l", up=False)
        engine.set_carrier("l", up=True)
        # the ends see their carrier again a moment later; meanwhile they send nothing
        receiver.settimeout(0.6)
        arrived = []
        for _ in range(5):
            sender.send(b"late")
            with contextlib.suppress(TimeoutError):
                arrived.append(receiver.recv(100))
        assert arrived
        assert set(arrived) == {b"late"}
        forth = engine.stats().directions["l", "a_to_b"]
        assert forth.cut >= 10
        assert forth.lost == 0


def test_a_dark_link_carries_nothing_and_nobody_sees_it(line: Line, engine_kind: str, tmp_path: Path) -> None:
    with (
        running(engine_kind, line, tmp_path, direction(delay_s=0.5), direction(delay_s=0.5)) as engine,
        udp_pair((line.left.pid, LEFT), (line.right.pid, RIGHT)) as (sender, receiver),
    ):
        sender.send(b"arrives")
        assert receiver.recv(100) == b"arrives"
        sender.send(b"on its way")
        time.sleep(0.2)
        engine.blackhole(["l"])
        assert carrier(line, "pa")
        assert carrier(line, "pb")
        sender.send(b"into the dark")
        time.sleep(0.1)
        engine.set_carrier("l", up=True)
        sender.send(b"after it")
        assert receiver.recv(100) == b"after it"
        forth = engine.stats().directions["l", "a_to_b"]
        assert forth.out_packets >= 2  # what was counted before the cut still is
        assert (forth.cut, forth.lost) == (2, 0)
        assert engine.settings()["l", "a_to_b"].delay_s == 0.5


def test_a_dark_link_may_be_seen_to_be_cut_and_mended(line: Line, engine_kind: str, tmp_path: Path) -> None:
    with running(engine_kind, line, tmp_path, direction(delay_s=0.01), direction(delay_s=0.01)) as engine:
        engine.blackhole(["l"])
        engine.set_carrier("l", up=False)
        assert not carrier(line, "pa")
        engine.set_carrier("l", up=True)
        assert carrier(line, "pa")
        assert [arrival.number for arrival in stream(line, 20, pause_s=0.002)] == list(range(20))
