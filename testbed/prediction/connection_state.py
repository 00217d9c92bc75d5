"""What connections keep from one step to the next, and what ranks do on them before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from testbed.net.paths.losses import LossyWindow
from testbed.net.paths.network import Ends
from testbed.prediction.event_queue import Action, Agenda
from testbed.prediction.events import Event
from testbed.prediction.fluid import Fluid


class Lasting(Protocol):
    """Connections that are the same ones in the next step."""

    @property
    def kept(self) -> Kept:
        """Themselves."""

    @property
    def overflowed(self) -> bool:
        """Whether queues have had no room."""

    def go_on(self, agenda: Agenda) -> None:
        """By another's time, from its beginning."""

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, taken: Event, left: Action, come: Action
    ) -> None:
        """A message."""

    def open(self, ranks: int, before: Before) -> None:
        """Go round once."""

    def shift(self, seconds: float) -> None:
        """So much has gone by."""


class Kept(NamedTuple):
    """What connections, by their keys, keep from one step to the next.

    lossy: windows over paths that lose packets, which are the same ones later on. paces: packets that were
    delivered in a round trip, of those whose first pace is less than the path's rate. fluid: empty between steps, it
    remembers rates. packets: of a step that is played packet by packet, all of them.
    """

    lossy: Mapping[object, LossyWindow]
    paces: Mapping[object, float]
    fluid: Fluid | None = None
    packets: Lasting | None = None

    @property
    def matters(self) -> bool:
        """Whether a step is another one with it."""
        return bool(self.lossy or self.paces or self.packets)


NOTHING_KEPT = Kept({}, {})


class Before(NamedTuple):
    """What ranks do on the same connections before: go round a ring so many times, then so many steps.

    messages: of each rank to the next each time, in so many pieces, which follow on those of the rank before. told:
    steps after all that, at the most, of which the median is told, until one takes what the one before it took. trials:
    that the run measures in one network, as many as are told where nothing but opening windows makes steps differ.
    """

    message_bytes: float = 0.0
    pieces: int = 1
    messages: int = 0
    times: int = 0
    steps: int = 0
    told: int = 1
    trials: int = 1


NOTHING_BEFORE = Before()
