"""Packets one by one where classes have queues of their own, against queueing theory and the emulator's scheduler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import mean

import pytest
import yaml

from testbed.net.paths.congestion.cubic import CubicGrowth
from testbed.net.paths.hops import PacketHop, PacketPath
from testbed.prediction.calibration import find_calibration
from testbed.prediction.events import Event
from testbed.prediction.packets.links import ClassfulLinkQueue, LinkQueue, Place
from testbed.prediction.packets.sender import Sender
from testbed.prediction.step_prediction import prepare_step
from testbed.spec.link_direction import QueueClass
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of
from tests.unit.net.packet_path import FRAME, PACKET_S, PAYLOAD, RATE_BPS, Clock, Never

STRICT = (QueueClass("first", (46,), 0), QueueClass("rest", (), 1))
FIRST, REST = range(2)
Leaves = Callable[[float | None], None]


def classed(
    classes: tuple[QueueClass, ...] = STRICT,
    delay_s: float = 0.0,
    queue_packets: float = math.inf,
    draw: Random | None = None,
) -> ClassfulLinkQueue:
    loss = 0.5 if draw else 0.0
    hop = PacketHop("link", RATE_BPS, delay_s, queue_packets * FRAME, loss, classes=classes)
    return ClassfulLinkQueue(hop, draw, FRAME)


class Arrivals:
    """Which frames leave a line, as they do: (number, when at the far end)."""

    def __init__(self, line: ClassfulLinkQueue) -> None:
        self.clock, self.line = Clock(), line
        self.left: list[tuple[int, float | None]] = []
        self.refused: list[int] = []

    def come(self, number: int, queue: int, size_bytes: int = FRAME) -> None:
        def leave(there_s: float | None) -> None:
            self.left.append((number, there_s))

        if not self.line.take(self.clock, queue, size_bytes, leave):
            self.refused.append(number)


def test_an_urgent_packet_passes_those_that_wait_but_not_the_one_on_the_wire() -> None:
    own = Arrivals(classed(delay_s=0.003))
    for number in range(4):
        own.clock.call_at(0.0, partial(own.come, number, REST))
    own.clock.call_at(0.1 * PACKET_S, partial(own.come, 4, FIRST))
    own.clock.run()
    assert [number for number, _ in own.left] == [0, 4, 1, 2, 3]
    assert [there_s for _, there_s in own.left] == [
        pytest.approx(0.003 + (place + 1) * PACKET_S) for place in range(5)
    ]


def test_each_class_drops_what_its_own_queue_has_no_room_for() -> None:
    own = Arrivals(classed(queue_packets=2))
    for number in range(5):  # one is being sent, two wait
        own.come(number, REST)
    for number in range(5, 8):
        own.come(number, FIRST)
    own.clock.run()
    assert own.refused == [3, 4, 7]
    assert own.line.dropped == 3
    assert [number for number, _ in own.left] == [0, 5, 6, 1, 2]


def test_a_packet_that_the_fibre_loses_takes_its_time_on_the_wire() -> None:
    own = Arrivals(classed(draw=Never(1)))
    for number in range(3):
        own.come(number, REST)
    own.clock.run()
    assert own.left == [(0, pytest.approx(PACKET_S)), (1, None), (2, pytest.approx(3 * PACKET_S))]


def test_a_limit_holds_while_others_go_by() -> None:
    own = Arrivals(classed((QueueClass("slow", (8,), limit=0.25), QueueClass("rest"))))
    for number in range(100):
        own.come(number, 0)
    for number in range(100, 200):
        own.clock.call_at((number - 100) * 1.5 * PACKET_S, partial(own.come, number, 1))
    own.clock.run()
    slow_s = [there_s for number, there_s in own.left if number < 100 and there_s is not None]
    fast = [(number, there_s) for number, there_s in own.left if number >= 100 and there_s is not None]
    assert slow_s[-1] == pytest.approx(100 * 4 * PACKET_S, rel=0.05)
    took = [there_s / PACKET_S - 1.5 * (number - 100) for number, there_s in fast]
    # behind one of the limited class; before that it has what may go at once
    assert max(took[20:]) == pytest.approx(2)


@pytest.mark.parametrize("shares", [(0.3, 0.6), (0.1, 0.2), (0.25, 0.25)])
def test_those_that_always_wait_have_what_is_guaranteed_and_the_rest_by_priority(
    shares: tuple[float, float],
) -> None:
    classes = (
        QueueClass("tokens", (46,), 0, share=shares[0]),
        QueueClass("bulk", (26,), 1, share=shares[1]),
        QueueClass("rest", (), 2),
    )
    own = Arrivals(classed(classes))
    for number in range(8000):
        own.come(number, number % 2)
    own.clock.run()
    counts = Counter(number % 2 for number, _ in own.left[:4000])
    assert counts[1] == pytest.approx(4000 * shares[1], rel=0.03)
    assert counts[0] == pytest.approx(4000 * (1 - shares[1]), rel=0.03)


def test_waits_by_priority_are_cobhams() -> None:
    # A. Cobham, Priority assignment in waiting line problems, 1954: not preemptive, W = R / ((1 - before) (1 - with))
    own, draw, loads = Arrivals(classed()), Random(5), (0.3, 0.5)
    came_s, now_s = list[tuple[int, float]](), 0.0
    while len(came_s) < 60_000:
        now_s += draw.expovariate(sum(loads) / PACKET_S)
        queue = FIRST if draw.random() < loads[0] / sum(loads) else REST
        own.clock.call_at(now_s, partial(own.come, len(came_s), queue))
        came_s.append((queue, now_s))
    own.clock.run()
    waits_s: list[list[float]] = [[], []]
    for number, there_s in own.left:
        queue, at_s = came_s[number]
        assert there_s is not None
        waits_s[queue].append(there_s - PACKET_S - at_s)
    residual_s = sum(loads) * PACKET_S / 2
    assert mean(waits_s[FIRST]) == pytest.approx(residual_s / (1 - loads[0]), rel=0.05)
    assert mean(waits_s[REST]) == pytest.approx(residual_s / (1 - loads[0]) / (1 - sum(loads)), rel=0.1)


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_a_class_alone_has_the_line_as_if_there_were_no_classes(loss: float) -> None:
    card = PacketHop("card", 10 * RATE_BPS, 0.0, math.inf)
    hop = PacketHop("there", RATE_BPS, 0.002, 20 * FRAME, loss, classes=STRICT)
    back = PacketHop("back", RATE_BPS, 0.002, math.inf)
    path = PacketPath((card, hop), (back,), CubicGrowth, PAYLOAD)

    def took_s(link: LinkQueue | Place, clock: Clock) -> list[float]:
        come: list[float] = []
        sender = Sender(
            clock, path, [LinkQueue(card, None), link], [LinkQueue(back, None)], math.inf, Random(1)
        )
        for packets in (40, 300):
            sender.send(packets * PAYLOAD, Event(), lambda: None, lambda: come.append(clock.now_s))
        clock.run()
        assert sender.retransmitted > 0  # the queue is short
        return come

    alone = took_s(Place(ClassfulLinkQueue(hop, Random(2), FRAME), REST), Clock())
    assert alone == pytest.approx(took_s(LinkQueue(hop, Random(2)), Clock()), rel=1e-9)


def test_time_goes_on_from_another_beginning() -> None:
    classes = (QueueClass("slow", (8,), limit=0.5), QueueClass("rest"))
    line = classed(classes)
    own = Arrivals(line)
    for number in range(8):
        own.come(number, 0)
    own.clock.run()
    later = Arrivals(line)
    line.shift(own.clock.now_s)
    for number in range(8):
        later.come(number, 0)
    later.clock.run()
    first_s, last_s = later.left[0][1], later.left[-1][1]
    assert first_s is not None
    assert last_s is not None
    assert last_s - first_s == pytest.approx(7 * 2 * PACKET_S, rel=0.3)
    assert 0 < first_s <= 3 * PACKET_S  # of what it had the time before


SCENARIO = """
name: classes
topology:
  name: two
  mtu: 9000
  buildings:
    east: {hosts: 2, nic: {rate: 10 Gbit/s, queue: 64 MB}}
    west: {hosts: 2, nic: {rate: 10 Gbit/s, queue: 64 MB}}
  wan: [{a: east, b: west, planes: 1, rate: 1 Gbit/s, delay: 1 ms, queue: 20 MB, loss: 0.01 %}]
workload:
  model:
    {dim: 64, n_layers: 2, n_heads: 8, n_kv_heads: 8, ffn_dim: 128, vocab_size: 400, experts: 4, experts_per_token: 2}
  peak_flops: 2 Tflop/s
  sequence_length: 256
  parallelism:
    data_parallel_shard_degree: 4
    expert_parallel_degree: 4
    dscp: {expert_parallel: 46, data_parallel_shard: 26}
  schedule: {name: 1F1B, microbatches: 2}
policy: priority
"""


def test_a_step_by_priority_goes_packet_by_packet_each_class_in_its_queue() -> None:
    job = job_of(load_scenario(yaml.safe_load(SCENARIO)), Scale())
    paths = prepare_step(job, "training", find_calibration("virtual")).network.packets
    numbers = {
        dscp: {(hop.classes[hop.number].name) for path in own for hop in path.hops if hop.classes}
        for (_, dscp), own in paths.items()
    }
    assert numbers[46] == {"pipeline"}
    assert numbers[26] == {"gradients"}
