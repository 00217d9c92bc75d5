"""The network as a fluid: connections share what they go through as evenly as its parts allow.

Bytes of a message flow at the connection's rate and arrive a latency later. Rates are max-min fair (Bertsekas and
Gallager, "Data Networks", section 6.5.2), which is what TCP comes to where queues do not overflow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.config import Host, Topology
from testbed.controller.view import View
from testbed.fidelity.alpha_beta import frame_per_payload, links_between

INSTANT_S = 1e-12  # what takes less is over: clocks have no more digits than that


@dataclass(frozen=True)
class Path:
    """From one rank to another: seconds, and the names of all that it goes through."""

    latency_s: float
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Network:
    """capacities: payload bytes per second of every part; paths: by ordered pair of ranks."""

    capacities: Mapping[str, float]
    paths: Mapping[tuple[int, int], Path]


def network_of(topology: Topology, hosts: Sequence[Host]) -> Network:
    """Of ranks on these hosts; figures as in `topology`.

    Parallel links count as one, with the rates of all; one connection gets no more than the quickest of them.
    """
    hops = View(topology).next_hops
    per_second = 1 / 8 / frame_per_payload(topology)
    capacities: dict[str, float] = {}
    paths = {}
    for source, one in enumerate(hosts):
        for target, other in enumerate(hosts):
            if source == target:
                continue
            parts = []
            latency_s = 0.0
            for name, ways in links_between(topology, one, other, hops):
                latency_s += min(way.delay_s for way in ways)
                capacities[name] = per_second * sum(way.rate_bps for way in ways)
                parts.append(name)
                if len(ways) > 1:
                    own = f"{name}, {one.name} to {other.name}"
                    capacities[own] = per_second * max(way.rate_bps for way in ways)
                    parts.append(own)
            paths[source, target] = Path(latency_s, tuple(parts))
    return Network(capacities, paths)


@dataclass(eq=False)
class _Connection:
    """Messages of one ordered pair, one after the other."""

    path: Path
    messages: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    left: float = 0.0
    rate: float = 0.0


class Fluid:
    """What flows now. `send` and `advance` are its events; figures of time are the caller's."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._connections: dict[tuple[int, int], _Connection] = {}
        self._busy: dict[tuple[int, int], _Connection] = {}

    def send(self, pair: tuple[int, int], size_bytes: float, sent: Callable[[], None]) -> None:
        """A message joins the pair's queue; `sent` is called when its last byte leaves."""
        if pair not in self._connections:
            self._connections[pair] = _Connection(self.network.paths[pair])
        connection = self._connections[pair]
        connection.messages.append((size_bytes, sent))
        if len(connection.messages) == 1:
            self._busy[pair] = connection
            connection.left = size_bytes
            self._share()

    def next_s(self) -> float:
        """Seconds until the next message has left, infinity if nothing flows."""
        return min(
            (one.left / one.rate if one.left > 0 else 0.0 for one in self._busy.values()), default=math.inf
        )

    def advance(self, seconds: float) -> None:
        """Let time pass, no more than `next_s`; tell of messages that have left."""
        over = []
        for pair, connection in self._busy.items():
            connection.left -= connection.rate * seconds
            if connection.left <= connection.rate * INSTANT_S:
                over.append(pair)
        for pair in over:
            connection = self._busy[pair]
            _, sent = connection.messages.popleft()
            if connection.messages:
                connection.left = connection.messages[0][0]
            else:
                del self._busy[pair]
            sent()
        if over:
            self._share()

    def _share(self) -> None:
        """Max-min fair rates: all grow alike until a part is full, whose connections then stay as they are."""
        left = dict[str, float]()
        through: dict[str, set[int]] = {}
        busy = list(self._busy.values())
        for number, connection in enumerate(busy):
            for part in connection.path.parts:
                through.setdefault(part, set()).add(number)
                left[part] = self.network.capacities[part]
        while through:
            tightest = min(through, key=lambda part: left[part] / len(through[part]))
            rate = left[tightest] / len(through[tightest])
            for number in list(through[tightest]):
                busy[number].rate = rate
                for part in busy[number].path.parts:
                    left[part] -= rate
                    through[part].discard(number)
            through = {part: numbers for part, numbers in through.items() if numbers}
