"""Links and switches of a network that pauses, in memory: no emulator, and none of the kernel's bridges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from testbed.net.links.link_engine import DirectionStats
from testbed.net.links.pause import PausableDirection, create_directions
from testbed.spec.link_direction import Direction, Pause

Key = tuple[str, str]
FRAME_BYTES = 1000


def direction(rate_bps: float, delay_s: float = 0.0, pause: Pause | None = None, **more: Any) -> Direction:
    """One without limit to its queue, unless given."""
    return Direction(
        rate_bps, delay_s, **{"jitter_s": 0.0, "loss": 0.0, "queue_bytes": 1 << 40, "pause": pause, **more}
    )


def link(a: str, b: str, there: Direction, back: Direction | None = None) -> dict[str, Any]:
    """Between two nodes, switches by names in capitals, as the emulator's configuration has it."""
    return {
        "name": f"{a}-{b}",
        "a_to_b": asdict(there),
        "b_to_a": asdict(back or there),
        "switch_a": a if a.isupper() else None,
        "switch_b": b if b.isupper() else None,
    }


def frame(number: int, flow: int, size: int = FRAME_BYTES) -> bytes:
    """Of a flow, known again by its number."""
    return bytes(26) + number.to_bytes(6, "big") + flow.to_bytes(2, "big") + bytes(size - 34)


def flow_of(found: bytes) -> int:
    return int.from_bytes(found[32:34], "big")


class World:
    """routes: by (switch, flow) the link, and its direction, by which a frame goes on."""

    def __init__(self, links: Iterable[dict[str, Any]], routes: Mapping[tuple[str, int], Key]) -> None:
        links = list(links)
        self.carriers = create_directions(links, seed=1)
        self._routes = routes
        self._ends: dict[Key, str | None] = {}
        for one in links:
            self._ends[one["name"], "a_to_b"] = one["switch_b"]
            self._ends[one["name"], "b_to_a"] = one["switch_a"]
        self.came: Counter[int] = Counter()  # bytes at hosts, by flow
        self.took_ns: dict[int, int] = {}  # when the last frame of a flow came
        self.now_ns = 0
        self._number = 0

    def send(self, by: Key, flows: Iterable[int], size: int = FRAME_BYTES) -> None:
        """A host hands frames of these flows to its link, now."""
        for flow in flows:
            self._number += 1
            self.carriers[by].accept(frame(self._number, flow, size), self.now_ns)

    def run(self, until_ns: int, sends: Callable[[World], None] = lambda world: None) -> None:
        """Until then, or until nothing moves any more; sends: asked whenever something has moved."""
        while True:
            times = [at for one in self.carriers.values() if (at := one.next_release_ns) is not None]
            if not times or min(times) > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(self.now_ns, min(times))
            for key, carrier in self.carriers.items():
                while (found := carrier.pop_due(self.now_ns)) is not None:
                    carrier.count_sent(len(found))
                    self._arrives(key, found)
            sends(self)

    def _arrives(self, key: Key, found: bytes) -> None:
        switch = self._ends[key]
        if switch is None:
            self.came[flow_of(found)] += len(found)
            self.took_ns[flow_of(found)] = self.now_ns
        else:
            self.carriers[self._routes[switch, flow_of(found)]].accept(found, self.now_ns)

    def books(self, key: Key) -> DirectionStats:
        """A direction's counters now."""
        return self.carriers[key].stats(self.now_ns)

    def is_pausing(self, key: Key) -> bool:
        """Whether the far end has said to stop, and not to go on."""
        carrier = self.carriers[key]
        assert isinstance(carrier, PausableDirection)
        return carrier.is_pausing

    @property
    def dropped(self) -> int:
        """Frames dropped by all queues."""
        return sum(self.books(key).dropped for key in self.carriers)
