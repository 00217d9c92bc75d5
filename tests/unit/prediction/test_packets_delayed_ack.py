"""When the end of a connection acknowledges what comes: the kernel's rules (`tcp_input.c`), one by one.

How each shows was seen on Linux 7.3: in captures of 56,593 packets of a step's connections.
"""

from __future__ import annotations

import math

import pytest

from testbed.prediction.packets.receiver import Receiver
from testbed.prediction.packets.send_queue import Packet
from tests.unit.net.packet_path import PAYLOAD, Clock

FULL, SHORT = PAYLOAD, 2000
STEP_S = 1e-4


class End:
    """Of a connection whose packets come in order. told: which were told of as the last one that is there."""

    def __init__(self, window_bytes: float = math.inf, *, answers: bool = False) -> None:
        self.clock = Clock()
        self.told = list[int]()
        self.receiver = Receiver(self.clock, [], self._hear, 0.002, window_bytes, answers)
        self._next = 0
        self.ends = list[int]()

    def _hear(self, told: object) -> None:
        self.told.append(self.receiver.next)

    def come(self, at_s: float, *sizes: int) -> None:
        """One after the other."""
        for place, size in enumerate(sizes):
            self.clock.call_at(at_s + place * STEP_S, lambda size=size: self._take(size))  # type: ignore[misc]

    def _take(self, size: int) -> None:
        packet = Packet(self._next, size)
        packet.short = size < FULL
        self._next += size
        self.ends.append(self._next)
        self.receiver.take(packet)

    def answer(self, at_s: float) -> None:
        """Data goes the other way."""

        def piggyback_ack() -> None:
            news = bool(self.receiver.unreported)
            self.receiver.piggyback_ack(None)
            if news:
                self.told.append(self.receiver.next)

        self.clock.call_at(at_s, piggyback_ack)

    def each(self) -> str:
        """Of each packet, whether it was the last one that an acknowledgement told of: 1 or 0."""
        self.clock.run()
        return "".join("1" if end in self.told else "0" for end in self.ends)


def test_the_first_sixteen_are_acknowledged_each_then_every_second_one() -> None:
    end = End()
    end.come(0.01, *[FULL] * 24)
    assert end.each() == "1" * 16 + "01" * 4


def test_whoever_answers_acknowledges_every_second_one() -> None:
    end = End()
    end.come(0.0, SHORT)
    end.answer(0.01)
    end.come(0.02, *[FULL] * 8)
    assert end.each() == "1" + "01" * 4


@pytest.mark.parametrize("late_s", [0.039, 0.041])
def test_what_goes_forty_milliseconds_later_is_no_answer(late_s: float) -> None:
    end = End()
    end.come(0.0, FULL)
    end.answer(late_s)
    end.come(late_s + 0.01, *[FULL] * 4)
    assert end.each() == ("10101" if late_s < 0.04 else "11111")


def test_a_short_packet_waits_for_an_answer_and_the_next_ones_do_not() -> None:
    # the answer has not come in time: nobody counts on one any more (`inet_csk_exit_pingpong_mode`)
    end = End(answers=True)
    end.come(0.0, SHORT)
    end.clock.call_at(0.02, lambda: end.told.append(-1))
    end.come(0.1, *[FULL] * 4)
    assert end.each() == "11111"
    assert end.told[:2] == [-1, SHORT]


def test_a_short_packet_behind_a_full_one_is_more_than_may_wait() -> None:
    end = End(answers=True)
    end.come(0.0, FULL, SHORT, FULL, SHORT, SHORT)
    end.clock.call_at(0.03, lambda: end.told.append(-1))
    assert end.each() == "01011"
    assert end.told[-1] > 0 > end.told[-2]  # the last one waited


def test_after_a_pause_longer_than_a_timeout_sixteen_are_acknowledged_each() -> None:
    for pause_s, then in ((0.19, "0101"), (0.21, "1111")):
        end = End()
        end.come(0.0, *[FULL] * 20)
        end.come(20 * STEP_S + pause_s, *[FULL] * 4)
        assert end.each()[20:] == then


def test_packets_that_the_window_grows_by_are_acknowledged_each() -> None:
    # by two full packets for each one, from 65,535 bytes on (`tcp_grow_window`)
    end = End(65_535 + 100 * 2 * FULL)
    end.come(0.0, *[FULL] * 130)
    # each of them gives back what it takes of the sixteen
    assert end.each() == "1" * 116 + "01" * 7


def test_a_packet_that_comes_twice_has_the_next_ones_acknowledged_each() -> None:
    end = End(answers=True)
    end.come(0.0, *[FULL] * 4)
    first = Packet(0, FULL)
    first.has_arrived, first.short = True, False
    end.clock.call_at(0.01, lambda: end.receiver.take(first))
    end.come(0.02, *[FULL] * 4)
    assert end.each() == "01011111"
