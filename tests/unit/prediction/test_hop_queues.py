"""Messages that are sent at once over several slow links, against a replay of every packet through every queue."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.paths import Network, Path
from testbed.net.paths.hops import serialisation_of
from testbed.prediction.channels import split_by_hop
from testbed.prediction.simulation import simulate
from testbed.workload.plan import Computing, JobPlan, Message, Operation

PACKET = 1000
CARD, LINK = 4000.0, 1000.0  # payload bytes per second
Sent = tuple[float, int, tuple[str, ...]]
"""From when on, how many packets, through which links behind its own card."""


def replayed(messages: Sequence[Sent], delay_s: float) -> list[float]:
    """When the last packet of each is there: links are first come, first served, and hold a packet whole."""
    agenda = [
        (begun_s + (packet + 1) * PACKET / CARD, number, packet, 0)
        for number, (begun_s, packets, _) in enumerate(messages)
        for packet in range(packets)
    ]
    heapq.heapify(agenda)
    free: dict[object, float] = {}
    there = [0.0] * len(messages)
    while agenda:
        now_s, number, packet, hop = heapq.heappop(agenda)
        way = messages[number][2]
        if hop == len(way):
            there[number] = max(there[number], now_s + PACKET / CARD)  # the receiver's card
            continue
        free[way[hop]] = max(now_s, free.get(way[hop], 0.0)) + PACKET / LINK
        heapq.heappush(agenda, (free[way[hop]] + delay_s, number, packet, hop + 1))
    return there


def played(messages: Sequence[Sent], delay_s: float) -> list[float]:
    """The same by the model."""
    count = len(messages)
    capacities = {"back": 1e12, "a": LINK, "b": LINK, "c": LINK}
    paths, plan = {}, list[tuple[Operation, ...]]()
    for number, (begun_s, packets, way) in enumerate(messages):
        capacities |= {f"card {number}": CARD, f"receiving {number}": CARD}
        parts = (f"card {number}", *way, f"receiving {number}")
        wire = (PACKET + PACKET_HEADERS_BYTES) / PACKET * 8
        held = serialisation_of(
            tuple(capacities[part] * wire for part in parts), (True,) * len(parts), PACKET
        )
        paths[number, count + number] = Path(delay_s * len(way), parts, serialisation=held)
        paths[count + number, number] = Path(0.0, ("back",))
        wait = Computing("wait", "wait", "test", duration_s=begun_s)
        plan.append(
            (wait, Message("to", "to", "test", (0,), count + number, packets * PACKET, 0, sends=True))
        )
    plan += [(Message("from", "from", "test", (), n, messages[n][1] * PACKET, 0),) for n in range(count)]
    network = Network(
        capacities, paths, queues=dict.fromkeys(capacities, 1e9), send_buffer_bytes=1e9, routed=True
    )
    return [rank[0][1] for rank in simulate(JobPlan(tuple(plan)), network, 1).spans[count:]]


@pytest.mark.parametrize("delay_s", [0.0, 2.0])
@pytest.mark.parametrize(
    "messages",
    [
        [(0.0, 20, ("a", "b"))],
        [(0.0, 20, ("a", "b", "c"))],
        # the second has left a before it waits in front of b, and the third comes behind it
        [(0.0, 40, ("b",)), (10.0, 20, ("a", "b")), (15.5, 20, ("a",))],
        # who began later is before b sooner
        [(0.0, 30, ("a",)), (8.0, 20, ("a", "b")), (15.0, 30, ("b",))],
        [(0.0, 10, ("a", "b")), (0.5, 10, ("b", "c")), (1.0, 10, ("c", "a")), (1.5, 10, ("a", "b", "c"))],
    ],
)
def test_messages_are_there_when_their_packets_are(messages: list[Sent], delay_s: float) -> None:
    packets_s = replayed(messages, delay_s)
    # several cards' packets take turns before a queue where they come at the same time, by the model whole messages do
    mixed = len(messages) > 3
    assert played(messages, delay_s) == pytest.approx(
        packets_s, abs=(0.1 if mixed else 0.05) * max(packets_s)
    )
    if len(messages) == 1:
        assert played(messages, delay_s) == pytest.approx(packets_s, rel=1e-3)


def test_a_way_has_a_leg_for_each_slow_link() -> None:
    capacities = {"card": 4.0, "a": 1.0, "core": 8.0, "b": 2.0, "in": 4.0}
    legs = split_by_hop("key", Path(6.0, tuple(capacities)), capacities)
    assert [tuple(leg.shares) for leg in legs] == [("card", "a"), ("core", "b", "in")]
    assert [leg.delay_s for leg in legs] == [3.0, 3.0]
    assert (
        len(split_by_hop("key", Path(1.0, ("card", "core", "in")), {"card": 1.0, "core": 8.0, "in": 8.0}))
        == 1
    )
