"""What a rank does, as it goes on the streams of an accelerator: kernels queue up on the current stream, communication
on that of its group; events and waits order them. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAIN = "compute"


@dataclass
class Work:
    """Kernels of a stream that came one after the other, with no communication between.

    flops: by element type. seconds: the sum of what each takes at the least.
    """

    kind: str
    module: str
    site: str
    flops: dict[str, float] = field(default_factory=dict)
    touched_bytes: float = 0.0
    seconds: float = 0.0


@dataclass
class Stream:
    """last: number of its last node. waits: of what its next one comes after, beside that. open: kernels since."""

    name: str
    last: int | None = None
    waits: set[int] = field(default_factory=set)
    open: Work | None = None

    @property
    def before(self) -> set[int]:
        """What is over when all on the stream so far is."""
        return self.waits | ({self.last} if self.last is not None else set())


class Tape:
    """Nodes of one rank, as a JSON document has them, in the order in which the program came to them."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.streams = {MAIN: Stream(MAIN)}
        self.current = self.streams[MAIN]
        self.begun = 0
        self._clocks: list[
            dict[str, int]
        ] = []  # of each node, the last of each stream that is over before it

    def restart(self) -> None:
        """Forget all nodes: what comes now begins anew, whatever was under way."""
        self.nodes.clear()
        self._clocks.clear()
        for stream in self.streams.values():
            stream.last, stream.open = None, None
            stream.waits.clear()
        self.begun += 1

    def stream(self, name: str) -> Stream:
        """By name, made when it is first asked for."""
        return self.streams.setdefault(name, Stream(name))

    def compute(
        self,
        kind: str,
        module: str,
        site: str,
        cost: tuple[str, float, float, float],
    ) -> None:
        """A kernel on the current stream. cost: element type, flops, bytes, seconds at the least."""
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
        """Close the stream's open kernels to a node."""
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
        """Start on a stream of its own, after all that the current one has got so far. Returns its number."""
        self.flush(self.current)
        stream = self.stream(stream_name)
        self.flush(stream)
        return self._add(stream, node, self.current.before)

    def wait(self, number: int | None, token: int) -> None:
        """The current stream goes on once that node is over. token: `begun` when the node was made."""
        if number is not None and token == self.begun:
            self.flush(self.current)
            self.current.waits.add(number)

    def record(self, stream: Stream | None = None) -> tuple[int, set[int]]:
        """An event: what is over when all on the stream so far is."""
        stream = stream or self.current
        self.flush(stream)
        return self.begun, set(stream.before)

    def wait_event(self, event: tuple[int, Iterable[int]], stream: Stream | None = None) -> None:
        """What comes on the stream comes after an event."""
        token, numbers = event
        stream = stream or self.current
        if token == self.begun:
            self.flush(stream)
            stream.waits |= set(numbers) - {stream.last}

    def block(self) -> None:
        """The program itself waits for the current stream: what it asks for next, on any stream, comes after."""
        event = self.record()
        for stream in self.streams.values():
            self.wait_event(event, stream)

    def end(self) -> int:
        """Close all that is open; how many nodes there are."""
        for stream in self.streams.values():
            self.flush(stream)
        return len(self.nodes)

    def _add(self, stream: Stream, node: dict[str, Any], after: Iterable[int]) -> int:
        clock = dict(self._clocks[stream.last]) if stream.last is not None else {}
        needs = []
        for number in sorted({*after, *stream.waits}, reverse=True):
            # what came before something that is waited for anyway need not be named
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
    """The innermost module that both are in."""
    found = []
    for here, there in zip(one.split("."), other.split("."), strict=False):
        if here != there:
            break
        found.append(here)
    return ".".join(found)
