"""Switches that pause who sends to them: when they do, what it costs; against closed forms and a published table."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from testbed.net.links.class_scheduler import PauseIngress
from testbed.net.links.pause import FrameOrigins, PauseGate
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES, Direction, Pause
from testbed.spec.links import PauseSpec, turnaround_bytes
from testbed.spec.scale import UNSCALED, Scale
from tests.unit.net.paused_world import FRAME_BYTES, World, direction, frame, link

MS = 1_000_000
LINE_BPS = 100e6
FRAME_NS = 80_000  # of FRAME_BYTES at LINE_BPS
AMPLE = 1 << 30


def test_a_gate_closes_and_opens_when_it_was_told() -> None:
    gate = PauseGate()
    assert gate.next_open_ns(5) == 5
    gate.schedule(10, closed=True)
    assert (gate.next_open_ns(9), gate.next_open_ns(10), gate.next_open_ns(50)) == (9, None, None)
    assert gate.paused_ns(25) == 15
    gate.schedule(30, closed=False)
    gate.schedule(40, closed=True)
    assert (gate.next_open_ns(12), gate.next_open_ns(35), gate.next_open_ns(40)) == (30, 35, None)
    gate.discard_until(35)
    assert (gate.next_open_ns(36), gate.next_open_ns(45)) == (36, None)
    assert gate.paused_ns(50) == 30
    gate.schedule(20, closed=False)  # no word overtakes another
    assert gate.next_open_ns(36) == 36
    assert gate.next_open_ns(40) == 40


def test_a_switch_pauses_above_xoff_and_resumes_at_xon() -> None:
    said: list[tuple[float, bool]] = []
    ingress = PauseIngress(Pause(3000, 1000, 1000), lambda at_ns, pause: said.append((at_ns, pause)))
    for moment in (1, 2, 3):
        assert ingress.admit(1000)
        ingress.on_enqueue(1000, moment)
    assert said == []
    ingress.on_enqueue(1000, 4)
    assert not ingress.admit(1)
    for moment in (5, 6):
        ingress.on_dequeue(1000, moment)
    assert said == [(4, True)]
    ingress.on_dequeue(1000, 7)
    assert said == [(4, True), (7, False)]
    assert (ingress.pauses, ingress.peak_bytes, ingress.held_bytes) == (1, 4000, 1000)


def test_a_trail_knows_frames_again_whatever_the_switch_wrote_into_their_headers() -> None:
    trail, one, two = (
        FrameOrigins(),
        *(PauseIngress(Pause(0, 0, 0), lambda at_ns, pause: None) for _ in range(2)),
    )
    trail.record(frame(1, 7), one, 0)
    trail.record(frame(2, 7), two, 0)
    trail.record(frame(2, 7), one, 0)  # alike: known in their order
    rewritten = bytearray(frame(1, 7))
    rewritten[:12] = b"\1" * 12  # addresses of the next hop
    rewritten[15], rewritten[22:26] = 46 << 2, b"\1\2\3\4"  # class, time to live, checksum
    found = [trail.take(each) for each in (bytes(rewritten), frame(2, 7), frame(2, 7), frame(2, 7))]
    assert found == [one, two, one, None]
    trail.record(frame(3, 7), one, 0)
    trail.record(frame(4, 7), one, 2_000 * MS)
    assert trail.take(frame(3, 7)) is None  # it ended in the switch long ago
    assert trail.take(frame(4, 7)) is one


def bottleneck(pause: Pause | None, delay_s: float, out_bps: float) -> World:
    """A host, a link that takes `delay_s`, a switch, a slower link to another host."""
    line = direction(LINE_BPS, delay_s, pause, queue_bytes=AMPLE)
    links = [link("a", "S", line), link("S", "b", direction(out_bps, queue_bytes=50_000))]
    return World(links, {("S", 0): ("S-b", "a_to_b")})


@pytest.mark.parametrize("short", [0, 4])
def test_the_headroom_asked_for_holds_what_still_comes_and_less_does_not(short: int) -> None:
    line = direction(LINE_BPS, 0.01)
    headroom = turnaround_bytes(line, line, FRAME_BYTES - ETHERNET_HEADER_BYTES)
    assert headroom == pytest.approx(250_000 + 3 * FRAME_BYTES, abs=200)
    world = bottleneck(Pause(20_000, 10_000, headroom - short * FRAME_BYTES), 0.01, 1e3)
    world.send(("a-S", "a_to_b"), [0] * 600)
    world.run(100 * MS)
    assert (world.dropped > 0) == (short > 0)
    if not short:  # and no more than it needs
        assert 0 <= 20_000 + headroom - world.books(("a-S", "a_to_b")).buffer_peak_bytes <= 2 * FRAME_BYTES


def test_a_link_that_was_cut_is_paused_again_when_it_is_mended_and_its_switch_still_full() -> None:
    world = bottleneck(Pause(20_000, 10_000, AMPLE), 0.001, LINE_BPS / 100)
    key = "a-S", "a_to_b"
    world.send(key, [0] * 100)
    world.run(20 * MS)
    assert world.is_pausing(key)
    waits = world.books(key).queue_bytes
    assert waits > 0
    world.carriers[key].cut(world.now_ns)  # what waits at the sender is lost as well
    world.run(30 * MS)
    assert world.books(key).cut == waits / FRAME_BYTES
    world.carriers[key].restore(world.now_ns)
    stood_s = world.books(key).paused_s
    world.run(35 * MS)
    world.send(key, [0] * 10)
    world.run(50 * MS)
    assert world.books(key).queue_bytes == 10 * FRAME_BYTES  # none has gone
    assert world.books(key).paused_s - stood_s == pytest.approx(0.019, abs=0.0002)
    world.run(2000 * MS)
    assert world.came[0] == 100 * FRAME_BYTES - waits + 10 * FRAME_BYTES
    assert world.dropped == 0


def on_and_off_bps(pause: Pause, delay_s: float, out_bps: float) -> float:
    """What passes, as a fluid: it comes at the line's rate from a resume to a pause, each a way there and back late."""
    turn_s, rate, out = 2 * delay_s, LINE_BPS / 8, out_bps / 8
    lowest = max(0.0, pause.xon_bytes - turn_s * out)
    rising_s = (pause.xoff_bytes - lowest) / (rate - out) + turn_s
    peak = pause.xoff_bytes + turn_s * (rate - out)
    return 8 * rate * rising_s / (rising_s + (peak - pause.xon_bytes) / out + turn_s)


@pytest.mark.parametrize("xon", [5_000, 60_000, 125_000, 200_000])
def test_a_long_link_runs_dry_below_what_its_resumes_take(xon: int) -> None:
    out_bps = LINE_BPS / 2
    pause = Pause(xon + 2 * FRAME_BYTES, xon, AMPLE)
    world = bottleneck(pause, 0.01, out_bps)
    world.send(("a-S", "a_to_b"), [0] * 6500)
    world.run(100 * MS)
    before = world.came[0]
    world.run(900 * MS)
    expected_bps = on_and_off_bps(pause, 0.01, out_bps)
    assert (expected_bps == pytest.approx(out_bps)) == (xon >= 125_000)  # out_bps times 20 ms
    assert (world.came[0] - before) * 8 / 0.8 == pytest.approx(expected_bps, rel=0.03)
    assert world.dropped == 0


def incast(pause: Pause | None) -> World:
    """Eight hosts send to one; the first of them to another one as well, in turns. All have the same line."""
    line = direction(LINE_BPS, 0.0, pause, queue_bytes=AMPLE)
    links = [link(f"h{n}", "S", line) for n in range(8)]
    links += [link("S", end, direction(LINE_BPS, queue_bytes=50_000)) for end in ("r", "v")]
    world = World(links, {("S", 0): ("S-r", "a_to_b"), ("S", 1): ("S-v", "a_to_b")})
    for n in range(8):
        world.send((f"h{n}-S", "a_to_b"), [0, 1] * 1000 if n == 0 else [0] * 2000)
    return world


def test_incast_drops_nothing_and_stops_a_victim_that_shares_a_port() -> None:
    world = incast(Pause(40 * FRAME_BYTES, 10 * FRAME_BYTES, 4 * FRAME_BYTES))
    world.run(20 * MS)
    before, paused_s = world.came.copy(), world.books(("h3-S", "a_to_b")).paused_s
    world.run(180 * MS)
    assert world.dropped == 0
    line_bytes = LINE_BPS / 8 * 0.16
    assert world.came[0] - before[0] == pytest.approx(line_bytes, rel=0.02)
    # an eighth of the busy line is the first host's, and the victim goes in turns with it
    assert world.came[1] - before[1] == pytest.approx(line_bytes / 8, rel=0.05)
    books = world.books(("h3-S", "a_to_b"))
    assert books.pauses > 3
    assert books.paused_s - paused_s == pytest.approx(0.16 * 7 / 8, rel=0.05)


def test_incast_without_pauses_drops_most_and_leaves_the_victim_alone() -> None:
    world = incast(None)
    world.run(60 * MS)
    sent = 7.5 * 0.06 / (FRAME_NS / 1e9)
    room = 50_000 / FRAME_BYTES
    assert world.dropped == pytest.approx(sent - 0.06 / (FRAME_NS / 1e9) - room, rel=0.02)
    assert world.came[1] == pytest.approx(LINE_BPS / 8 * 0.06 / 2, rel=0.02)


# Karol, Hluchyj and Morgan 1987, "Input Versus Output Queueing on a Space-Division Packet Switch", table I: what passes
# a switch of so many ports where only the head of each input's line may go, to outputs drawn at random.
HEAD_OF_LINE = {2: 0.75, 3: 0.6825, 4: 0.6553, 8: 0.6184}


@pytest.mark.parametrize("ports", [2, 4, 8])
def test_head_of_line_blocking_is_that_of_the_published_table(ports: int) -> None:
    """A switch that pauses after each frame lets each input have one in it, which takes its turn for its output."""
    quick = direction(LINE_BPS * 1e6, 0.0, Pause(0, 0, AMPLE))
    names = range(ports)
    links = [link(f"i{n}", "S", quick) for n in names] + [
        link("S", f"o{n}", direction(LINE_BPS)) for n in names
    ]
    world = World(links, {("S", n): (f"S-o{n}", "a_to_b") for n in names})
    draw = random.Random(7)

    def one_each(world: World) -> None:
        """A next frame as soon as the one before it has left the switch."""
        for n in names:
            if not world.is_pausing((f"i{n}-S", "a_to_b")):
                world.send((f"i{n}-S", "a_to_b"), [draw.randrange(ports)])

    slots = 5000 // ports
    one_each(world)
    world.run(slots * FRAME_NS, one_each)
    share = sum(world.came.values()) / FRAME_BYTES / ports / slots
    assert share == pytest.approx(HEAD_OF_LINE[ports], rel=0.02)


def test_links_in_a_circle_that_all_wait_for_the_next_stand_for_ever() -> None:
    """Four switches in a ring, each one's host sends to the switch opposite."""
    pause = Pause(4 * FRAME_BYTES, 2 * FRAME_BYTES, 8 * FRAME_BYTES)
    ring = "ABCD"
    host = direction(LINE_BPS, 0.0, pause)
    links = [link(ring[n], ring[(n + 1) % 4], host) for n in range(4)]
    links += [link(letter.lower(), letter, host) for letter in ring]
    routes = {}
    for flow, letter in enumerate(ring):
        there, opposite = ring[(flow + 1) % 4], ring[(flow + 2) % 4]
        routes[letter, flow] = f"{letter}-{there}", "a_to_b"
        routes[there, flow] = f"{there}-{opposite}", "a_to_b"
        routes[opposite, flow] = f"{opposite.lower()}-{opposite}", "b_to_a"
    world = World(links, routes)
    for flow, letter in enumerate(ring):
        world.send((f"{letter.lower()}-{letter}", "a_to_b"), [flow] * 500)
    world.run(50 * MS)
    came = world.came.total()
    world.run(500 * MS)
    assert world.came.total() == came < 4 * 500 * FRAME_BYTES / 2
    assert world.dropped == 0


def pauses(spec: PauseSpec, scale: Scale = UNSCALED) -> Pause:
    """On 1 Gbit/s, 10 ms, with frames of 9014 bytes."""
    link = gigabit(scale)
    return spec.resolve(link, link, 9000, scale)


def gigabit(scale: Scale = UNSCALED) -> Direction:
    return Direction(scale.emulated_bps(1e9), 0.01, 0.0, 0.0, 1_000_000)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, lambda needed: Pause(needed + 18_028, needed, needed)),
        ({"xoff": "100 kB"}, lambda needed: Pause(100_000, 81_972, needed)),
        ({"xon": "100 kB"}, lambda needed: Pause(118_028, 100_000, needed)),
        (
            {"xoff": "4 MB", "xon": "1 MB", "headroom": "5 MB"},
            lambda _: Pause(4_000_000, 1_000_000, 5_000_000),
        ),
        ({"xoff": "10 kB"}, lambda needed: Pause(10_000, 0, needed)),
    ],
)
def test_what_is_left_out_follows_from_the_link(
    asked: dict[str, str], expected: Callable[[int], Pause]
) -> None:
    needed = turnaround_bytes(gigabit(), gigabit(), 9000)
    assert needed == 2_527_356
    assert pauses(PauseSpec.model_validate(asked)) == expected(needed)


def test_a_scale_divides_buffers_but_not_frames() -> None:
    scale = Scale(size_scale=1000)
    found = pauses(PauseSpec.model_validate({"xoff": "4 MB", "headroom": "3 MB"}), scale)
    assert found.xoff_bytes == 4000
    assert found.headroom_bytes == turnaround_bytes(gigabit(scale), gigabit(scale), 9000) > 3000 + 2 * 9014
