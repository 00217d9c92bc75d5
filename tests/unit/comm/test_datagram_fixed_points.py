"""Controls settle where published theory has them: for given marks or losses, and where several share one queue."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

import pytest

from testbed.comm.transport.datagram.controls import CONTROLS, Limits
from testbed.comm.transport.datagram.controls.aimd import Aimd
from testbed.comm.transport.datagram.controls.dcqcn import (
    COUNTER_BYTES,
    FAST_STEPS,
    NOTICE_S,
    STEP_BPS,
    TIMER_S,
    Dcqcn,
)
from testbed.comm.transport.datagram.controls.swift import Swift
from testbed.comm.transport.datagram.recoveries import Feedback, Item
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator
from tests.datagram_channel import Channel

PACKET_BYTES = 1000
RATE_BPS, DELAY_S = 40e9, 5e-6  # as in DCQCN's paper
LIMITS = Limits(9014, line_bps=RATE_BPS, round_trip_s=2 * DELAY_S + 9014 * 8 / RATE_BPS)
MARK_FROM = 22  # 200 kB
SETTLE_S, MEASURE_S = 0.02, 0.02


def dcqcn_residual(rate_bps: float, marked: float) -> float:
    """Of the fluid model's rate at its fixed point (after Zhu et al., "ECN or Delay", CoNEXT 2016).

    marked: the share of packets. Below 0 the rate would grow. In packets and seconds.
    """
    bits = PACKET_BYTES * 8
    rate, step, counter = rate_bps / bits, STEP_BPS / bits, COUNTER_BYTES / PACKET_BYTES
    kept = 1 - marked
    noticed = 1 - kept ** (NOTICE_S * rate)
    alpha = 1 - kept ** (TIMER_S * rate)
    by_counter = marked / (kept**-counter - 1)
    by_timer = marked / (kept ** -(TIMER_S * rate) - 1)
    grows = kept ** (FAST_STEPS * counter) * by_counter + kept ** (FAST_STEPS * TIMER_S * rate) * by_timer
    above = step * rate * grows * NOTICE_S / noticed  # of the target above the rate
    found: float = rate * alpha * noticed / (2 * NOTICE_S) - above / 2 * rate * (by_counter + by_timer)
    return found


def dcqcn_fixed_point_bps(marked: float) -> float:
    low, high = 1e6, 400e9
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if dcqcn_residual(middle, marked) < 0 else (low, middle)
    return low


def dcqcn_mean_bps(marked: float, seconds: float = 4.0) -> float:
    """What the control sends at, on average, when so many of its packets come back marked."""
    chance, now_s, step_s = random.Random(1), 0.0, NOTICE_S * 1.0001
    control = Dcqcn(Limits(PACKET_BYTES, line_bps=400e9), RttEstimator(1e-5))
    packets = sent = 0.0
    while now_s < seconds:
        now_s += step_s
        packets += control.rate_bps * step_s / 8 / PACKET_BYTES
        whole = int(packets)
        packets -= whole
        control.on_sent(whole, now_s)
        control.on_feedback(Feedback(marked=chance.random() < 1 - (1 - marked) ** whole), now_s)
        if now_s > seconds / 4:
            sent += control.rate_bps * step_s
    return sent / (0.75 * seconds)


@pytest.mark.parametrize("marked", [0.001, 0.01])
def test_dcqcn_settles_at_the_fixed_point_of_its_fluid_model(marked: float) -> None:
    assert dcqcn_mean_bps(marked) == pytest.approx(dcqcn_fixed_point_bps(marked), rel=0.1)


@pytest.mark.parametrize("every", [500, 5000])
def test_aimd_has_the_window_of_mathis(every: int) -> None:
    """A packet lost of so many: sqrt(3/2) over the root of the loss (Mathis et al., CCR 1997), window by window."""
    round_trips = RttEstimator(0.01)
    round_trips.add(0.01)
    control = Aimd(LIMITS, round_trips)
    now_s, passed, windows = 0.0, 0, []
    for turn in range(4000):
        now_s += 0.0101
        packets = int(control.window_packets)
        lost = (passed + packets) // every - passed // every > 0
        passed += packets
        control.on_feedback(Feedback(acked=packets - lost, lost=lost), now_s)
        if turn > 400:
            windows.append(packets)
    assert sum(windows) / len(windows) == pytest.approx(math.sqrt(1.5 * every), rel=0.06)


@dataclass
class Port:
    """Flows that share one queue, drop-tail of `room` packets, marked from `mark_from` on."""

    flows: list[Flow]
    mark_from: float
    room: float
    free_s: float = 0.0
    queued: float = 0.0  # packets times seconds
    seen_s: float = 0.0

    def enter(self, now_s: float, packet_s: float) -> tuple[float | None, bool]:
        """When a packet has left, None where there is no room for it; whether it is marked."""
        queue = max(0.0, self.free_s - now_s) / packet_s
        if now_s > self.seen_s:
            self.queued += queue * (now_s - self.seen_s)
            self.seen_s = now_s
        if queue >= self.room:
            return None, False
        self.free_s = max(self.free_s, now_s) + packet_s
        return self.free_s, queue >= self.mark_from

    def run(self, until_s: float) -> None:
        """Carry packets until then."""
        events = self.flows[0]._events
        now_s = self.flows[0].now_s
        while now_s < until_s:
            for flow in self.flows:
                flow.now_s = now_s
                flow._pump()
            due_s = min(flow.sender.due_s for flow in self.flows)
            now_s = max(now_s, min(due_s, events[0][0] if events else math.inf))
            for flow in self.flows:
                flow.now_s = now_s
            while events and events[0][0] <= now_s:
                heapq.heappop(events)[-1]()
            for flow in self.flows:
                if flow.sender.recovery.due_s <= now_s:
                    flow.sender.on_timer(now_s)


class Flow(Channel):
    """A channel whose queue is a port's."""

    port: Port

    def _send(self, item: Item, path: int, serial: int, asks: bool) -> None:
        left_s, marked = self.port.enter(self.now_s, self.packet_s)
        if left_s is not None:
            self._schedule(left_s + self.delays_s[0], lambda: self._arrive(item, path, serial, marked, asks))


def shared(control: str, count: int, mark_from: float, room: float) -> Port:
    """So many flows without end, which begin within a tenth of a millisecond."""
    flows = [
        Flow(
            "nack",
            control=CONTROLS[control],
            limits=LIMITS,
            rate_bps=RATE_BPS * 1000 / 9014,
            delays_s=(DELAY_S,),
        )
        for _ in range(count)
    ]
    port = Port(flows, mark_from, room)
    for flow in flows:
        flow.port, flow._events, flow._number = port, flows[0]._events, flows[0]._number
        flow.sender.extend(10**6)
    return port


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("control", ["dcqcn", "swift"])
def test_flows_share_a_queue(control: str, count: int) -> None:
    port = shared(control, count, mark_from=MARK_FROM, room=1000)
    port.run(SETTLE_S)
    before = [len(flow.received) for flow in port.flows]
    queued = port.queued
    port.run(SETTLE_S + MEASURE_S)
    carried = [float(len(flow.received) - had) for flow, had in zip(port.flows, before, strict=True)]
    packet_s = port.flows[0].packet_s
    assert sum(carried) * packet_s / MEASURE_S > (0.99 if control == "swift" else 0.9)
    assert jain(carried) > 0.98
    queue = (port.queued - queued) / MEASURE_S
    if control == "dcqcn":
        assert queue < MARK_FROM
        return
    controls = [flow.sender.control for flow in port.flows]
    targets = [own.target_s for own in controls if isinstance(own, Swift)]
    assert len(targets) == count
    target = (sum(targets) / count - LIMITS.round_trip_s) / packet_s
    assert 0 <= queue - target <= count / 2  # each adds a packet in each round trip below it
