"""A tape of one rank's work on the streams of an accelerator; independent of PyTorch.

Kernels are queued on the current stream, communication on the stream of its group; events and waits order them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAIN = "compute"


@dataclass
class Work:
    """Consecutive kernels of a stream without communication in between.

    flops: by element type.
    seconds: the sum of the kernels' lower bounds.
    """

    kind: str
    module: str
    site: str
    flops: dict[str, float] = field(default_factory=dict)
    touched_bytes: float = 0.0
    seconds: float = 0.0


@dataclass
class Stream:
    """A stream of the accelerator.

    last: number of its last node.
    waits: other nodes that its next node depends on.
    open: kernels since the last node.
    """

    name: str
    last: int | None = None
    waits: set[int] = field(default_factory=set)
    open: Work | None = None

    @property
    def before(self) -> set[int]:
        """The nodes that must finish before the next one on the stream starts."""
        return self.waits | ({self.last} if self.last is not None else set())


class Tape:
    """The nodes of one rank, as JSON objects, in the order in which the program issued them."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.streams = {MAIN: Stream(MAIN)}
        self.current = self.streams[MAIN]
        self.generation = 0
        # a vector clock per node: the last node of each stream that has finished before it
        self._clocks: list[dict[str, int]] = []

    def restart(self) -> None:
        """Discard all nodes, including those in flight, and start a new generation."""
        self.nodes.clear()
        self._clocks.clear()
        for stream in self.streams.values():
            stream.last, stream.open = None, None
            stream.waits.clear()
        self.generation += 1

    def stream(self, name: str) -> Stream:
        """Return a stream by name, created on first use."""
        return self.streams.setdefault(name, Stream(name))

    def compute(
        self,
        kind: str,
        module: str,
        site: str,
        cost: tuple[str, float, float, float],
    ) -> None:
        """Add a kernel to the current stream. cost: element type, flops, bytes, lower bound in seconds."""
        if not cost[1] and not cost[2]:
            return
        stream = self.current
        work = stream.open
        if work is None or work.kind != kind:
            self.flush(stream)
            work = stream.open = Work(kind, module, site)
        elif work.module != module:
            work.module = common_module(work.module, module)
        dtype, flops, touched_bytes, seconds = cost
        if flops:
            work.flops[dtype] = work.flops.get(dtype, 0.0) + flops
        work.touched_bytes += touched_bytes
        work.seconds += seconds

    def flush(self, stream: Stream) -> None:
        """Turn the stream's open kernels into a node."""
        work, stream.open = stream.open, None
        if work is not None:
            self._add(
                stream,
                {
                    "type": "compute",
                    "name": f"{work.kind} {work.module}".strip(),
                    "kind": work.kind,
                    "module": work.module,
                    "site": work.site,
                    "flops": work.flops,
                    "touched_bytes": work.touched_bytes,
                    "seconds": work.seconds,
                },
                (),
            )

    def communicate(self, stream_name: str, node: dict[str, Any]) -> int:
        """Add a node on another stream, ordered after all work on the current one; returns its number."""
        self.flush(self.current)
        stream = self.stream(stream_name)
        self.flush(stream)
        return self._add(stream, node, self.current.before)

    def wait(self, number: int | None, token: int) -> None:
        """Make the current stream wait for a node. token: `generation` when the node was made."""
        if number is not None and token == self.generation:
            self.flush(self.current)
            self.current.waits.add(number)

    def record(self, stream: Stream | None = None) -> tuple[int, set[int]]:
        """Return an event for all work on the stream so far."""
        stream = stream or self.current
        self.flush(stream)
        return self.generation, set(stream.before)

    def wait_event(self, event: tuple[int, Iterable[int]], stream: Stream | None = None) -> None:
        """Make a stream wait for an event."""
        token, numbers = event
        stream = stream or self.current
        if token == self.generation:
            self.flush(stream)
            stream.waits |= set(numbers) - {stream.last}

    def block(self) -> None:
        """Make all streams wait for the current one, because the program itself waits for it."""
        event = self.record()
        for stream in self.streams.values():
            self.wait_event(event, stream)

    def end(self) -> int:
        """Flush all streams; returns the number of nodes."""
        for stream in self.streams.values():
            self.flush(stream)
        return len(self.nodes)

    def _add(self, stream: Stream, node: dict[str, Any], after: Iterable[int]) -> int:
        clock = dict(self._clocks[stream.last]) if stream.last is not None else {}
        needs = []
        for number in sorted({*after, *stream.waits}, reverse=True):
            # dependencies implied by another dependency are omitted
            if clock.get(self.nodes[number]["stream"], -1) < number:
                needs.append(number)
                for name, last in self._clocks[number].items():
                    clock[name] = max(clock.get(name, -1), last)
        stream.waits.clear()
        stream.last = clock[stream.name] = len(self.nodes)
        self._clocks.append(clock)
        self.nodes.append({**node, "stream": stream.name, "after": needs[::-1]})
        return stream.last


def common_module(one: str, other: str) -> str:
    """Return the innermost module that contains both modules."""
    found = []
    for here, there in zip(one.split("."), other.split("."), strict=False):
        if here != there:
            break
        found.append(here)
    return ".".join(found)
