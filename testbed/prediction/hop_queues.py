"""What is sent at once goes from one slow link's queue to the next: each link serves who comes there first.

A message that waits in the queue before a link farther on has left those before it to others. So it flows over its way
leg by leg, each up to a slow link and through it: a leg begins when the first packet has come through the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from testbed.net.paths.network import PartShares, Path
from testbed.prediction.compute_clock import Clock
from testbed.prediction.fluid import AT_ONCE, Fluid


class Leg(NamedTuple):
    """As a connection of its own. packet_s: what a packet takes in its slowest part; delay_s: on to the next queue."""

    key: object
    shares: PartShares
    packet_s: float
    delay_s: float


def legs_of(key: object, path: Path, capacities: Mapping[str, float]) -> tuple[Leg, ...]:
    """One for each link that is not much quicker than the slowest; delays are taken for alike."""
    rates = [capacities[name] for name in path.parts]
    slow = [place for place, rate in enumerate(rates) if place and rate < AT_ONCE * min(rates)]
    ends = [0, *(place + 1 for place in slow[:-1]), len(rates)]
    packet_bytes, delay_s = path.serialisation.packet_bytes, path.delay_s / max(1, len(slow))
    return tuple(
        Leg(
            (key, "leg", start),
            dict.fromkeys(path.parts[start:end], 1.0),
            packet_bytes / min(rates[start:end]),
            delay_s,
        )
        for start, end in pairwise(ends)
    )


@dataclass(eq=False)
class Hopping:
    """A message, or a piece of one. packet_bytes: of a full packet; rest_s: from leaving the last leg to being there.

    turn: in the first queue. follows: its connection has its share already. gone: called when it has left the last leg,
    with the seconds until it is there.
    """

    clock: Clock
    fluid: Fluid
    legs: Sequence[Leg]
    size_bytes: float
    packet_bytes: float
    rest_s: float
    turn: int | None
    follows: bool
    gone: Callable[[float], None]
    until_s: float = 0.0
    over: int = 0

    def begin(self, number: int = 0) -> None:
        """The leg of this number, and those behind it."""
        leg, fluid, last = self.legs[number], self.fluid, number + 1 == len(self.legs)
        shares = [leg.shares]
        ahead_s = 0.0 if self.follows else fluid.ahead_s(leg.key, shares, self.size_bytes)
        before_s = self.until_s + self.legs[number - 1].delay_s if number else 0.0
        self.until_s = max(before_s, self.clock.now_s + ahead_s)
        turn = fluid.next_turn() if number else self.turn
        if last:
            fluid.send(leg.key, shares, self.size_bytes, self._through, turn=turn)
            return
        first_bytes = min(self.size_bytes, self.packet_bytes)
        self.rest_s -= leg.packet_s * first_bytes / self.packet_bytes + leg.delay_s

        def first() -> None:
            self.clock.later(leg.delay_s, lambda: self.begin(number + 1))
            if first_bytes == self.size_bytes:
                self._through()

        fluid.send(leg.key, shares, first_bytes, first, turn=turn)
        if first_bytes < self.size_bytes:
            fluid.send(leg.key, shares, self.size_bytes - first_bytes, self._through, turn=turn)

    def _through(self) -> None:
        """One of the legs."""
        self.over += 1
        if self.over == len(self.legs):
            self.gone(max(0.0, self.rest_s) + max(0.0, self.until_s - self.clock.now_s))
