"""The fluid flow model: connections share the parts of a network max-min fairly.

A message's bytes flow at its connection's rate and arrive one latency later. Rates are max-min fair (Bertsekas and
Gallager, "Data Networks", section 6.5.2), to which TCP converges where queues do not overflow. Among messages that are
sent at once and fit entirely into queues, the first one takes all the bandwidth it can use, since a FIFO queue serves
it first.

The flows themselves are implemented in C, in `compiled/fluid.h`.
"""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, count
from typing import Any, NamedTuple

from testbed.net.paths.network import PartShares
from testbed.prediction.compiled.library import load_library
from testbed.prediction.events import EventQueue
from testbed.spec.link_direction import QueueClass

AT_ONCE = (
    2.25  # rate relative to the slowest part; above it, that part's queue has a message before most has left
)
NO_TURN = -1


class _Connection(NamedTuple):
    """A connection of the compiled flows, and the bytes of a message that its queues hold."""

    number: int
    queue_bytes: float


def held_bytes(rates: Sequence[float], queues: Sequence[float], parts: Iterable[int]) -> float:
    """Return the bytes of a message that its path's queues hold if it reaches the slowest part at once; 0 if none."""
    held = {part: queues[part] for part in parts if queues[part]}
    if not held:
        return 0.0
    slowest, *others = sorted(rates[part] for part in held)
    return float(min(held.values())) if not others or others[-1] >= AT_ONCE * slowest else 0.0


class Fluid:
    """The flows at the current time; `send` and `leave` are the events of the model.

    Args:
        events: The clock.
        capacities: Capacity of each part in bytes per second.
        queues: Queue limit of each part in bytes; 0 by default.
        classes: For each part with several traffic classes, the parts that model the queues of the classes.

    Attributes:
        busy: Number of connections that are sending.

    Raises:
        NoCompilerError: On first use, if the flows cannot be compiled on this machine.
    """

    def __init__(
        self,
        events: EventQueue,
        capacities: Mapping[str, float],
        queues: Mapping[str, float] | None = None,
        classes: Mapping[str, Sequence[tuple[str, QueueClass]]] | None = None,
    ) -> None:
        queues = queues or {}
        self._events = events
        self._part = {name: number for number, name in enumerate(capacities)}
        self._rates = list(capacities.values())
        self._queues = [queues.get(name, 0.0) for name in capacities]
        self._classes = classes or {}
        self._connections: dict[object, _Connection] = {}
        self._sent: dict[int, Callable[[], None]] = {}  # callbacks of messages, by tag
        self._tags, self._turns = count(), count()
        self.busy = 0

    @cached_property
    def _flows(self) -> int:
        """The address of the compiled flows."""
        classes = [
            (self._part[link], self._part[part], entry.share, entry.limit)
            for link, entries in self._classes.items()
            for part, entry in sorted(entries, key=lambda one: one[1].priority)
        ]
        columns = [array(kind, [own[place] for own in classes]) for place, kind in enumerate("iidd")]
        arrays: list[array[Any]] = [array("d", self._rates), array("d", self._queues), *columns]
        rates, queues, *shares = map(_address, arrays)
        flows: int = load_library().fluid_new(len(self._part), rates, queues, len(classes), *shares)
        weakref.finalize(self, _free, flows, arrays).atexit = False
        return flows

    def continue_on(self, events: EventQueue) -> None:
        """Continue on another event queue, from its start, with nothing in flight."""
        self._events = events
        if self._connections:
            load_library().fluid_update(self._flows, events.now_s)

    def send(
        self,
        key: object,
        paths: Sequence[PartShares],
        size_bytes: float,
        sent: Callable[[], None],
        burst_bytes: float = math.inf,
        *,
        turn: int | None = None,
    ) -> None:
        """Queue a message on a connection.

        Args:
            key: Identifies the connection.
            paths: The connection's parallel paths; the same in every call.
            size_bytes: Bytes to send.
            sent: Called when the last byte has left.
            burst_bytes: Bytes of the message that are in flight or in queues at once; the same in every call.
            turn: Priority: lower turns are served first, messages without a turn last, and equal turns share. This
                models TCP data that is sent at once, reaches the slowest part much faster than it leaves, and fits into
                the queues. In other cases the packets of several messages interleave.
        """
        connection = self._connections.get(key) or self._connect(key, paths, burst_bytes)
        tag = next(self._tags)
        self._sent[tag] = sent
        self.busy = load_library().fluid_send(
            self._flows,
            connection.number,
            size_bytes,
            NO_TURN if turn is None else turn,
            tag,
            self._events.now_s,
        )

    def next_turn(self) -> int:
        """Return a new turn for `send`."""
        return next(self._turns)

    def _connect(
        self, key: object, paths: Sequence[PartShares], burst_bytes: float = math.inf
    ) -> _Connection:
        parts = [self._part[name] for path in paths for name in path]
        queue_bytes = held_bytes(self._rates, self._queues, parts)
        arrays: tuple[array[Any], ...] = (
            array("i", [0, *accumulate(map(len, paths))]),
            array("i", parts),
            array("d", [load for path in paths for load in path.values()]),
        )
        number = load_library().fluid_connect(
            self._flows, queue_bytes, burst_bytes, len(paths), *map(_address, arrays)
        )
        connection = self._connections[key] = _Connection(number, queue_bytes)
        return connection

    def holds_bytes(self, key: object, paths: Sequence[PartShares]) -> float:
        """Return the bytes of a message sent at once that the queues on a connection's path hold; 0 if none."""
        return (self._connections.get(key) or self._connect(key, paths)).queue_bytes

    def ahead_s(self, key: object, paths: Sequence[PartShares], size_bytes: float) -> float:
        """Return the seconds until a message has left if everything that is in queues now leaves before it.

        TCP's data in flight is in FIFO queues. A long message eventually gets its fair share; a short one waits for the
        data that was queued before it.
        """
        connection = self._connections.get(key) or self._connect(key, paths)
        ahead_s: float = load_library().fluid_ahead_s(
            self._flows, connection.number, size_bytes, self._events.now_s
        )
        return ahead_s

    def leaves_s(self) -> float:
        """Return the time when the next message has left; infinity if nothing flows."""
        leaves_s: float = load_library().fluid_leaves_s(self._flows)
        return leaves_s

    def leave(self) -> None:
        """Complete the messages that have left."""
        flows = self._flows
        for which in range(load_library().fluid_find_gone(flows, self._events.now_s)):
            self._sent.pop(load_library().fluid_complete(flows, which))()
        self.busy = load_library().fluid_busy(flows)

    def fair_rates(self, paths: Sequence[PartShares]) -> list[float]:
        """Return the max-min fair rates of these paths alone, in bytes per second, on a so far unused network."""
        self._connect(None, paths)
        rates = array("d", bytes(8 * len(paths)))
        load_library().fluid_fair_rates(self._flows, _address(rates))
        return rates.tolist()


def _free(flows: int, _arrays: object) -> None:
    load_library().fluid_free(flows)


def _address(values: array[Any]) -> int:
    return values.buffer_info()[0]


def fair_rates(capacities: Mapping[str, float], paths: Sequence[PartShares]) -> list[float]:
    """Return the max-min fair rates of all paths at once, in bytes per second."""
    return Fluid(EventQueue(), capacities).fair_rates(paths)
