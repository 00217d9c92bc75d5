"""What hops that store and forward cost a message, against packets that are sent through them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.paths.hops import Serialisation, serialisation_of

PAYLOAD = 8948


@dataclass(frozen=True)
class Wire:
    """A hop for the replay: seconds per byte, delay, whether the frame is handed over whole."""

    byte_s: float
    delay_s: float = 0.0
    held: bool = True


def replay(wires: Sequence[Wire], size_bytes: int) -> float:
    """When the last byte of a message is there: every packet through every hop, each a queue of its own."""
    sizes = [min(PAYLOAD, size_bytes - sent) for sent in range(0, max(1, size_bytes), PAYLOAD)]
    come = [0.0] * len(sizes)
    for wire in wires:
        free_s = 0.0
        for number, size in enumerate(sizes):
            start_s = max(come[number], free_s)
            free_s = start_s + (size + PACKET_HEADERS_BYTES) * wire.byte_s
            come[number] = (free_s if wire.held else start_s) + wire.delay_s
    return come[-1]


RATES = st.sampled_from([1e6, 7e6, 71.4e6, 100e6, 400e6, 1e9, 400e9])
SIZES = st.one_of(st.integers(0, 3 * PAYLOAD), st.integers(0, 200_000))


@given(st.lists(RATES, min_size=1, max_size=7), SIZES)
@example([100e6, 71.4e6, 100e6], PAYLOAD)
@example([100e6, 1e6, 400e9], 2 * PAYLOAD + 1)
def test_a_message_takes_what_its_packets_take_one_by_one(rates: list[float], size_bytes: int) -> None:
    way = serialisation_of(tuple(rates), (True,) * len(rates), PAYLOAD)
    wires = [Wire(8 / rate) for rate in rates]
    assert way.whole_s(size_bytes) == pytest.approx(replay(wires, size_bytes), rel=1e-9)


@given(st.lists(st.tuples(RATES, st.booleans(), st.floats(0, 0.01)), min_size=1, max_size=6), SIZES)
def test_a_switch_that_cuts_through_leaves_its_cable_s_hold_out(
    hops: list[tuple[float, bool, float]], size_bytes: int
) -> None:
    # a switch sends a frame on while it comes in only to cables no quicker, and hosts have all of it first
    after = [rate for rate, _, _ in hops[1:]] + [0.0]
    wires = [
        Wire(8 / rate, delay_s, held or not 0 < following <= rate)
        for (rate, held, delay_s), following in zip(hops, after, strict=True)
    ]
    way = serialisation_of(tuple(rate for rate, *_ in hops), tuple(wire.held for wire in wires), PAYLOAD)
    delay_s = sum(wire.delay_s for wire in wires)
    assert delay_s + way.whole_s(size_bytes) == pytest.approx(replay(wires, size_bytes), rel=1e-9)


@given(st.lists(RATES, min_size=1, max_size=7), SIZES)
def test_what_is_beyond_the_bytes_is_a_frame_a_hop_at_most(rates: list[float], size_bytes: int) -> None:
    way = serialisation_of(tuple(rates), (True,) * len(rates), PAYLOAD)
    frame_s = [(PAYLOAD + PACKET_HEADERS_BYTES) * 8 / rate for rate in rates]
    assert 0 <= way.beyond_s(size_bytes) <= sum(frame_s) * (1 + 1e-9)


def test_of_whole_frames_it_is_one_at_each_hop_but_the_slowest() -> None:
    way = serialisation_of((100e6, 50e6, 100e6), (True,) * 3, PAYLOAD)
    frame_s = (PAYLOAD + PACKET_HEADERS_BYTES) * 8 / 100e6
    assert way.beyond_s(100 * PAYLOAD) == pytest.approx(2 * frame_s)
    assert way.whole_s(PAYLOAD) == pytest.approx(4 * frame_s)
    assert way.whole_s(0) == pytest.approx(66 * 8 / 100e6 * 4)


def test_a_message_shorter_than_a_frame_is_held_for_its_own_size_at_every_hop() -> None:
    way = serialisation_of((1e6, 1e6), (True,) * 2, PAYLOAD)
    byte_s = 8e-6
    assert way.whole_s(4) == pytest.approx(2 * 70 * byte_s)
    assert way.beyond_s(4) == pytest.approx((2 * 70 - 4 * 9014 / 8948) * byte_s)


def test_the_slowest_hop_takes_its_time_though_it_holds_nothing() -> None:
    # cards of the userspace link engine let a frame pass at once and then make the next one wait
    assert serialisation_of((1e6, 10e6), (False, True), PAYLOAD).byte_s == (8e-6, 8e-7)
    assert serialisation_of((10e6, 1e6), (False, True), PAYLOAD).byte_s == (8e-6,)
    assert Serialisation().beyond_s(1e6) == 0.0
