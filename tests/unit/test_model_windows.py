"""Windows that queues cut: what queues lose against a replay of every packet, what windows do against RFCs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest

from testbed.model import simulate
from testbed.model.connections import Before
from testbed.model.pacing import Opening, Startup
from testbed.model.windows import Opened, Queue, Way, Window
from testbed.paths import Network, Path
from testbed.paths.congestion import CONGESTION_CONTROLS
from testbed.paths.serialisation import Serialisation
from testbed.workload.plan import JobPlan, Message

PACKET = 100


def dropped(bursts: Sequence[int], card: float, link: float, holds: int) -> int:
    """Packet by packet: so many of each burst come at a card's rate into one queue, which leaves at the link's."""
    times = sorted(number / card for burst in bursts for number in range(burst))
    standing: deque[float] = deque()  # when each packet has left
    lost, free = 0, 0.0
    for time in times:
        while standing and standing[0] <= time:
            standing.popleft()
        if len(standing) > holds:
            lost += 1
            continue
        free = max(free, time) + 1 / link
        standing.append(free)
    return lost


@pytest.mark.parametrize(
    ("bursts", "card", "link", "holds"),
    [
        ([60] * 4, 8.0, 3.0, 139),
        ([50, 50], 4.0, 1.0, 40),
        ([30] * 6, 2.0, 1.0, 64),
        ([60, 60], 3.0, 1.0, 139),
    ],
)
def test_a_queue_loses_what_packets_lose(bursts: list[int], card: float, link: float, holds: int) -> None:
    queue = Queue(link * PACKET, holds * PACKET, PACKET)
    come = [queue.put(0.0, str(number), card * PACKET, burst * PACKET) for number, burst in enumerate(bursts)]
    queue.advance(1000.0)
    lost = sum(arrival.lost_bytes for arrival in come) / PACKET
    assert lost == pytest.approx(dropped(bursts, card, link, holds), abs=2)
    assert queue.standing_bytes == 0.0


def test_what_comes_when_a_queue_is_empty_again_finds_room() -> None:
    queue = Queue(100.0, 1000.0, PACKET)
    first = queue.put(0.0, "a", 400.0, 1200.0)
    queue.advance(9.0)
    assert queue.standing_bytes == pytest.approx(300.0)  # 1200 have come, 900 have left
    second = queue.put(20.0, "a", 400.0, 1200.0)
    queue.advance(40.0)
    assert first.lost_bytes == second.lost_bytes == 0.0


class Timer:
    """Time, and what is to happen."""

    def __init__(self) -> None:
        self.now_s, self.agenda = 0.0, list[tuple[float, int, object]]()

    def later(self, seconds: float, action: object) -> None:
        self.agenda.append((self.now_s + seconds, len(self.agenda), action))

    def run(self) -> None:
        while self.agenda:
            first = min(self.agenda, key=lambda one: one[:2])
            self.agenda.remove(first)
            self.now_s = first[0]
            first[2]()  # type: ignore[operator]


def sent_s(window_packets: float, message_packets: int, growth: float = 0.0) -> tuple[float, Window]:
    """When a message is there, over a link with all the room there is: a round trip of 10 s, 1 s for a packet."""
    timer = Timer()
    way = Way(Queue(PACKET, 1e9, PACKET), "card", 10.0 * PACKET, PACKET, 5.0, 0.5, growth)
    window = Window(way, timer.later, lambda: timer.now_s, Opened(window_packets * PACKET, 0.0))
    there, free = [], [0.0]

    def send(size_bytes: float, gone: object) -> None:
        free[0] = max(free[0], timer.now_s) + size_bytes / PACKET
        timer.later(free[0] - timer.now_s, lambda: gone(5.0))  # type: ignore[operator]

    window.send(message_packets * PACKET, send, lambda: None, lambda: there.append(timer.now_s))
    timer.run()
    return there[0], window


def test_a_message_within_its_window_leaves_at_once_and_a_larger_one_waits_for_acknowledgements() -> None:
    assert sent_s(math.inf, 40)[0] == pytest.approx(45.0)
    assert sent_s(40, 40)[0] == pytest.approx(45.0)
    # a window of 4 packets in a round trip of 10 s and a packet's second: what TCP gets at most
    assert sent_s(4, 400)[0] == pytest.approx(400 / 4 * 11.0, rel=0.03)
    assert sent_s(20, 400)[0] == pytest.approx(
        405.0, rel=0.03
    )  # more than a round trip holds: the link is never idle


def test_a_window_grows_by_a_packet_in_a_round_trip_that_it_was_too_small_for() -> None:
    _, window = sent_s(4, 200, growth=1.0)
    last = (math.sqrt(1 + 8 * (200 + 6)) - 1) / 2  # 4, 5, 6, ... packets, one window after the other
    assert window.size_bytes / PACKET == pytest.approx(last, rel=0.1)
    assert sent_s(40, 40, growth=1.0)[1].size_bytes == 40 * PACKET  # what is not full does not grow


@pytest.mark.parametrize(("control", "kept", "growth"), [("reno", 0.5, 1.0), ("cubic", 0.7, 0.529)])
def test_what_a_window_keeps_is_its_congestion_controls(control: str, kept: float, growth: float) -> None:
    """RFC 5681, and RFC 9438, sections 4.3 and 4.6."""
    found = CONGESTION_CONTROLS.find(control)
    assert found.kept == kept
    assert found.growth == pytest.approx(growth, abs=1e-3)


def meeting(senders: int, packets: int, queue_packets: int, **more: object) -> tuple[JobPlan, Network]:
    """As many ranks send one message each to as many others, over a link that is four times as slow as their cards."""
    capacities = {"link": 100.0 * PACKET, "back": 1e9}
    paths = {}
    plan = []
    held = Serialisation((), PACKET)
    for rank in range(senders):
        capacities[f"card {rank}"] = 400.0 * PACKET
        paths[rank, senders + rank] = Path(0.05, (f"card {rank}", "link"), serialisation=held)
        paths[senders + rank, rank] = Path(0.05, ("back",), serialisation=held)
        plan.append((Message("to", "to", "test", (), senders + rank, packets * PACKET, 0, sends=True),))
    plan += [(Message("from", "from", "test", (), rank, packets * PACKET, 0),) for rank in range(senders)]
    queues = {name: queue_packets * PACKET * (100 if "card" in name else 1.0) for name in capacities}
    network = Network(capacities, paths, queues=queues, send_buffer_bytes=1e9, routed=True, **more)  # type: ignore[arg-type]
    return JobPlan(tuple(plan)), network


def test_messages_that_overflow_a_queue_together_are_there_a_round_trip_later_and_have_windows_from_then_on() -> (
    None
):
    plan, fits = meeting(4, 60, 1000, overflow=(0.5, 1.0))
    whole_s = simulate(plan, fits, 1).step_time_s
    assert whole_s == pytest.approx(240 / 100 + 0.05, rel=0.01)
    _, small = meeting(4, 60, 139, overflow=(0.5, 1.0))
    lost = dropped([60] * 4, 400.0, 100.0, 139)
    assert lost > 20
    took_s = simulate(plan, small, 1).step_time_s
    # what is lost leaves again when its sender has heard of it, behind nothing else
    assert whole_s < took_s < whole_s + 0.1 + lost / 100
    # with windows of half of what was under way all of it finds room, as some leaves when others have come
    assert simulate(plan, small, 1, before=Before(steps=3)).step_time_s == pytest.approx(whole_s, rel=0.05)
    assert simulate(plan, replace(small, overflow=None), 1).step_time_s == pytest.approx(whole_s)


def test_a_queue_that_holds_less_than_a_round_trip_is_left_alone() -> None:
    plan, small = meeting(2, 8, 9, overflow=(0.5, 1.0))  # a round trip are ten packets
    assert (
        simulate(plan, small, 1).step_time_s == simulate(plan, replace(small, overflow=None), 1).step_time_s
    )


def test_a_connection_that_always_runs_out_stays_in_startup() -> None:
    startup = Startup(pace=28.85 * PACKET, round_trip_s=1.0)
    for number in range(20):
        startup.send(number * 1.0, 20 * PACKET)  # less than the pace of a round trip
    assert not startup.over
    startup.send(100.0, 100 * PACKET)  # 3.5 round trips without a pause
    assert startup.over


def test_what_stays_in_startup_sends_at_once_and_what_has_left_it_takes_turns() -> None:
    plan, network = meeting(2, 20, 1000, sends_at_once=False)
    ends_s = [max(end for _, end in rank) for rank in simulate(plan, network, 1).spans[2:]]
    assert ends_s == pytest.approx([0.45, 0.45], rel=0.01)
    begins = replace(network, startup=28.85)  # 288 packets a second, and 2 round trips of 0.1 s to send 20
    ends_s = [max(end for _, end in rank) for rank in simulate(plan, begins, 1).spans[2:]]
    assert ends_s == pytest.approx([0.25, 0.45], rel=0.01)
    slow = replace(network, startup=10.0)  # no quicker than the link
    assert simulate(plan, slow, 1) == simulate(plan, network, 1)


def test_a_message_of_a_paced_connection_that_has_had_little_to_send_takes_a_third_of_a_round_trip() -> None:
    # BBR: 2.885 times what was delivered in a round trip, which for the first message is ten packets (tcp_bbr.c)
    gain = 2 / math.log(2)
    opening = Opening(gain, round_trip_s=0.04, rate=100_000.0)
    assert opening.left_s(10, 0.0) == pytest.approx(0.04 / gain)
    assert opening.left_s(10, 1.0) == pytest.approx(1 + 0.04 / gain)
    # of a long one each round trip takes as many times more, until the path's rate
    long = Opening(gain, round_trip_s=0.04, rate=100_000.0)
    first, second = 10 * gain, 10 * gain**2
    assert long.left_s(first + second, 0.0) == pytest.approx(0.08)
    assert long.left_s(100_000, 1.0) < 1 + 0.04 * 4 + 1
    assert long.left_s(1_000, 9.0) == pytest.approx(9 + 1_000 / 100_000)


def test_messages_of_one_round_trip_are_measured_together() -> None:
    gain = 2 / math.log(2)
    opening = Opening(gain, round_trip_s=0.04, rate=100_000.0)
    for number in range(5):
        opening.left_s(5, number * 0.001)
    assert opening.packets == pytest.approx(25)
