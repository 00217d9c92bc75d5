"""Fluid flow model: connections share the parts of a network max-min fairly.

A message's bytes flow at its connection's rate and arrive one latency later. Rates are max-min fair (Bertsekas and
Gallager, "Data Networks", section 6.5.2), to which TCP converges where queues do not overflow. Of messages that are
sent at once and fit into queues whole, the first one takes all it can use, as a FIFO queue serves it.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np

from testbed.net.paths.network import PartShares
from testbed.prediction.events import EventQueue
from testbed.prediction.max_min import ALIKE, FEW, Floats, Paths, PathTable, Steps, fair, fair_few
from testbed.spec.link_direction import QueueClass

INSTANT_S = 1e-12  # remaining time that counts as none: the clock's precision
MOST_ULPS = 4  # the clock's precision late in a simulation
TRICKLE = 1.0  # bytes per second of flows that have to wait for all others, so that they complete eventually
AT_ONCE = (
    2.25  # rate relative to the slowest part from which a message is in its queue before most has left it
)
MOST_SHARES = 20_000  # cached rate allocations: symmetric jobs return to the same few hundred
MOST_RATES = 10_000_000  # rates in all of those

Order = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection that sends messages one after the other, on all of its paths at once.

    Attributes:
        paths: Per path, its parts and their load per byte of that path.
        parts: Parts of all paths, and their load per byte of a message.
        queued: Parts with queues.
        queue_bytes: The shortest queue among those.
        messages: Per message, its bytes, its turn and its callback.
    """

    number: int
    mark: int
    paths: tuple[Steps, ...]
    parts: Steps
    queued: tuple[int, ...]
    queue_bytes: float
    messages: deque[tuple[float, int | None, Callable[[], None]]] = field(default_factory=deque)
    burst_bytes: float = math.inf


def held_bytes(rates: Sequence[float], queues: Sequence[float], parts: Iterable[int]) -> float:
    """Return how much of a message the queues of its path hold if it reaches the slowest part at once; 0 if none do."""
    held = {part: queues[part] for part in parts if queues[part]}
    if not held:
        return 0.0
    slowest, *others = sorted(rates[part] for part in held)
    return float(min(held.values())) if not others or others[-1] >= AT_ONCE * slowest else 0.0


class Fluid:
    """The flows at the current time; `send` and `leave` are the events of the model.

    Args:
        events: The clock.
        capacities: Bytes per second of each part.
        queues: Queue limit of each part in bytes; 0 by default.
        classes: Per part with several traffic classes, the parts that model their queues.
    """

    def __init__(
        self,
        events: EventQueue,
        capacities: Mapping[str, float],
        queues: Mapping[str, float] | None = None,
        classes: Mapping[str, Sequence[tuple[str, QueueClass]]] | None = None,
    ) -> None:
        queues, classes = queues or {}, classes or {}
        self._events = events
        self._queues = [queues.get(name, 0.0) for name in capacities]
        self._crossing: list[dict[int, float]] = [
            {} for _ in capacities
        ]  # per part: load of busy connections, by number
        self._part = {name: number for number, name in enumerate(capacities)}
        self._capacities = np.array(list(capacities.values()), dtype=float)
        self._rates: list[float] = self._capacities.tolist()
        self._classes = {
            self._part[name]: [(self._part[part], entry) for part, entry in entries]
            for name, entries in classes.items()
        }
        self._connections: list[_Connection] = []
        self._path_table = PathTable()
        self._by_key: dict[object, _Connection] = {}
        self.busy: dict[int, _Connection] = {}  # sending connections, by number
        self._unsent: list[float] = []  # unsent bytes of each connection's current message
        # exclusive or of the busy connections' random marks: identifies the set of them
        self._busy_mark = 0
        self._random = random.Random(0)
        self._cache: dict[tuple[int, Order], Mapping[int, float]] = {}
        # turns of connections whose current message has one
        self._turns: dict[int, int] = {}
        self._turn = count()
        # rate of each busy connection in bytes per second, by number; None if it has to be computed
        self._shares: Mapping[int, float] | None = None
        # when `_unsent` was last updated; when the next message will have left, None if unknown
        self._updated_s = 0.0
        self._leaves_s: float | None = None

    def continue_on(self, events: EventQueue) -> None:
        """Continue on another event queue, from its start, with nothing in flight."""
        self._events, self._updated_s = events, events.now_s

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
            burst_bytes: How much of the message is in flight, or in queues, at once.
            turn: Priority: lower turns go first, messages without one last, equal turns share. This models TCP data
                sent at once that reaches the slowest part much faster than it leaves and fits into the queues.
                Elsewhere packets of several messages interleave.
        """
        connection = self._by_key.get(key) or self._add_connection(key, paths)
        fits = size_bytes <= connection.queue_bytes
        connection.messages.append((size_bytes, turn if fits else None, sent))
        if len(connection.messages) == 1:
            self._update()
            connection.burst_bytes = burst_bytes
            self.busy[connection.number] = connection
            for part, load in connection.parts:
                self._crossing[part][connection.number] = load
            self._busy_mark ^= connection.mark
            self._shares = None
            self._start_next(connection)

    def next_turn(self) -> int:
        """Return a new turn for `send`."""
        return next(self._turn)

    def _start_next(self, connection: _Connection) -> None:
        """Start the connection's next message."""
        self._unsent[connection.number], turn, _ = connection.messages[0]
        self._leaves_s = None
        if self._turns.pop(connection.number, None) != turn:
            self._shares = None
        if turn is not None:
            self._turns[connection.number] = turn

    def _add_connection(self, key: object, paths: Sequence[PartShares]) -> _Connection:
        numbered = [{self._part[name]: load for name, load in path.items()} for path in paths]
        through: dict[int, float] = {}
        for path in numbered:
            for part, load in path.items():
                through[part] = through.get(part, 0.0) + load / len(paths)
        connection = _Connection(
            len(self._connections),
            self._random.getrandbits(128),
            tuple(tuple(path.items()) for path in numbered),
            tuple(through.items()),
            tuple(part for part in through if self._queues[part]),
            held_bytes(self._rates, self._queues, through),
        )
        self._connections.append(connection)
        self._path_table.add(numbered)
        self._by_key[key] = connection
        self._unsent.append(0.0)
        return connection

    def holds_bytes(self, key: object, paths: Sequence[PartShares]) -> float:
        """Return how much of a message sent at once the queues on a connection's path hold; 0 if they do not."""
        return (self._by_key.get(key) or self._add_connection(key, paths)).queue_bytes

    def ahead_s(self, key: object, paths: Sequence[PartShares], size_bytes: float) -> float:
        """Return how long until a message has left if everything in queues now goes before it, in seconds.

        TCP's data in flight is in queues, first come, first served. A long message gets its fair share in the end; a
        short one waits for what was there before it.
        """
        connection = self._by_key.get(key) or self._add_connection(key, paths)
        queues, rates, through = self._queues, self._rates, self._crossing
        for part in connection.queued:
            if len(through[part]) > (connection.number in through[part]):
                break
        else:
            return 0.0
        self._update()
        latest_s = 0.0
        slowest_s = max([load * size_bytes / rates[part] for part, load in connection.parts])
        before = True  # it reaches the slowest part later by its waiting time
        for part, load in connection.parts:
            waiting = 0.0
            own_s = load * size_bytes / rates[part]
            before = before and own_s < slowest_s
            if queue := queues[part]:
                for number, other_load in through[part].items():
                    if number != connection.number:
                        other = self._connections[number]
                        waiting += other_load * min(self._unsent[number], other.burst_bytes)
                waiting = min(waiting, queue)
            if waiting:
                after_s = slowest_s if before else own_s
                latest_s = max(latest_s, waiting / rates[part] + after_s)
        return latest_s

    def leaves_s(self) -> float:
        """Return when the next message will have left; infinity if nothing flows."""
        if self._leaves_s is None:
            left = self._unsent
            soonest_s = min(
                [left[number] / rate for number, rate in self._current_rates().items()], default=math.inf
            )
            self._leaves_s = self._updated_s + soonest_s
        return self._leaves_s

    def leave(self) -> None:
        """Complete messages that have left."""
        now_s = self._events.now_s
        over_s = max(INSTANT_S, MOST_ULPS * math.ulp(now_s))
        if self.leaves_s() - now_s > over_s:
            return
        self._update()
        left = self._unsent
        rates = self._current_rates()
        for number in [busy for busy in self.busy if left[busy] <= rates[busy] * over_s]:
            connection = self.busy[number]
            *_, sent = connection.messages.popleft()
            if connection.messages:
                self._start_next(connection)
            else:
                del self.busy[number]
                self._turns.pop(number, None)
                for part, _ in connection.parts:
                    del self._crossing[part][number]
                self._busy_mark ^= connection.mark
                self._shares = self._leaves_s = None
            sent()

    def _update(self) -> None:
        """Update the busy connections' unsent bytes to the current time."""
        now_s = self._events.now_s
        if (passed_s := now_s - self._updated_s) and self.busy:
            left = self._unsent
            for number, rate in self._current_rates().items():
                left[number] -= rate * passed_s
        self._updated_s = now_s

    def _current_rates(self) -> Mapping[int, float]:
        """Return the busy connections' rates, cached per set of connections and order."""
        if self._shares is None:
            key = self._busy_mark, self._turn_order()
            found = self._cache.get(key)
            if found is None:
                if len(self._cache) >= min(MOST_SHARES, MOST_RATES // len(self.busy)):
                    self._cache.clear()
                found = self._cache[key] = self._allocate(key[1])
            self._shares = found
        return self._shares

    def _turn_order(self) -> Order:
        """Return connections with a turn, in order, and their places where some turns are equal."""
        turns = self._turns
        if len(turns) < 2:
            return tuple(turns), ()
        found = tuple(sorted(turns, key=turns.__getitem__))
        if len(set(turns.values())) == len(turns):
            return found, ()
        places = [0]
        for before, number in pairwise(found):
            places.append(places[-1] + (turns[number] != turns[before]))
        return found, tuple(places)

    def _allocate(self, order: Order) -> Mapping[int, float]:
        found, places = order
        if found or len(self.busy) <= FEW:
            return self._allocate_in_order(dict(zip(found, places or range(len(found)), strict=True)))
        numbers = np.array(list(self.busy), dtype=np.intp)
        paths, owner = self._path_table.of(numbers)
        each = np.bincount(owner, weights=fair(self._with_classes(paths), paths)).astype(float)
        return dict(zip(numbers.tolist(), each.tolist(), strict=True))

    def _allocate_in_order(self, order: Mapping[int, int]) -> Mapping[int, float]:
        """Allocate by place: earlier places take all they can use, equal ones share, those without a place are last."""
        left = self._capacities
        if self._classes:
            left = self._with_classes(self._path_table.of(np.array(list(self.busy), dtype=np.intp))[0])
        room = left.tolist()
        least = (ALIKE * left).tolist()  # so that even the last ones complete
        places: dict[int, list[int]] = {}
        for number in self.busy:
            places.setdefault(order.get(number, len(order)), []).append(number)
        rates: dict[int, float] = dict.fromkeys(self.busy, 0.0)
        for place in sorted(places):
            some = places[place]
            paths = [(number, path) for number in some for path in self._connections[number].paths]
            if len(paths) <= FEW:
                found = fair_few(room, least, [path for _, path in paths])
            else:
                path_steps, _ = self._path_table.of(np.array(some, dtype=np.intp))
                found = fair(np.maximum(room, least), path_steps).tolist()
            for (number, path), rate in zip(paths, found, strict=True):
                rates[number] += rate
                for part, load in path:
                    room[part] -= load * rate
        return rates

    def _with_classes(self, paths: Paths) -> Floats:
        """Return capacities including each class's current share: its guarantee, then the rest by priority."""
        if not self._classes:
            return self._capacities
        alone = self._capacities.copy()
        for link, entries in self._classes.items():
            alone[link] = math.inf
            for part, entry in entries:
                alone[part] = self._capacities[link] * entry.limit
        carried = paths.loads * fair(alone, paths)[paths.path]
        wanted = np.bincount(paths.parts, carried, minlength=len(alone))
        found: Floats = self._capacities.copy()
        for link, entries in self._classes.items():
            rate = float(self._capacities[link])
            given = {part: min(float(wanted[part]), entry.share * rate) for part, entry in entries}
            rest = rate - sum(given.values())
            for part, _ in sorted(entries, key=lambda one: one[1].priority):
                more = min(rest, float(wanted[part]) - given[part])
                found[part], rest = given[part] + more, rest - more
        found[found <= 0.0] = TRICKLE
        return found
