"""The collectives, as generators of what they wait for; see `engine`.

Bytes are payload on the wire; B is the array's size in bytes, n the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.collectives.chunks import even_bounds, members_of, segments
from testbed.collectives.engine import Engine, Steps, Task
from testbed.transport import Request

Array = npt.NDArray[Any]
Operation = Callable[..., Any]

OPERATIONS: dict[str, Operation] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
NOTHING = memoryview(b"")


def as_bytes(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else NOTHING


class Ring:
    """This rank's place among `ranks`, which stand in a circle in the order given: it hears `left`, tells `right`."""

    def __init__(self, engine: Engine, ranks: Sequence[int], tag: int) -> None:
        self.size = len(ranks)
        self.index = ranks.index(engine.transport.rank)
        self._left = ranks[self.index - 1]
        self._right = ranks[(self.index + 1) % self.size]
        self._transport = engine.transport
        self._tag = tag

    def send(self, view: memoryview) -> Request:
        """To the next rank."""
        return self._transport.isend(self._right, self._tag, view)

    def receive(self, view: memoryview) -> Request:
        """From the rank before."""
        return self._transport.irecv(self._left, self._tag, view)


def ring_reduce_scatter(
    ring: Ring, inputs: Sequence[Array], outputs: Sequence[Array], operation: Operation
) -> Steps:
    """Chunk i of all ranks, reduced, ends in `outputs[i]` of the ring's i-th rank. Chunk i has one size everywhere.

    `outputs[i]` may be `inputs[i]`; otherwise inputs stay as they are. All outputs but this rank's own are scratch.
    Steps: n - 1, one message out and one in at a time. Bytes sent by each rank: B less its own chunk.
    """
    size, index = ring.size, ring.index
    # one receive is always posted ahead, so that a neighbour who is early finds room
    order = [(index - step - 2) % size for step in range(size - 1)]
    longest = max(chunk.size for chunk in inputs)
    rooms = [np.empty(longest, dtype=inputs[0].dtype) for _ in range(min(2, size - 1))]
    arrivals = [rooms[step % 2][: inputs[chunk].size] for step, chunk in enumerate(order)]
    receives = [ring.receive(as_bytes(arrival)) for arrival in arrivals[:2]]
    outgoing = inputs[index - 1]
    for step, chunk in enumerate(order):
        yield ring.send(as_bytes(outgoing)), receives[step]
        outgoing = outputs[chunk]
        operation(inputs[chunk], arrivals[step], out=outgoing)
        if step + 2 < len(order):
            receives.append(ring.receive(as_bytes(arrivals[step + 2])))


def ring_all_gather(ring: Ring, chunks: Sequence[memoryview]) -> Steps:
    """`chunks[i]` of the ring's i-th rank ends in `chunks[i]` of all. Chunk i has one size everywhere.

    Steps: n - 1, one message out and one in at a time. Bytes sent by each rank: B less the chunk of the next rank.
    """
    size, index = ring.size, ring.index
    receives = [ring.receive(chunks[(index - step - 1) % size]) for step in range(size - 1)]
    for step, receive in enumerate(receives):
        yield ring.send(chunks[(index - step) % size]), receive


def ring_all_reduce(ring: Ring, array: Array, operation: Operation) -> Steps:
    """Reduce `array`, in place, over the ranks of the ring: reduce-scatter, then all-gather.

    Steps: 2 (n - 1). Bytes sent by each rank: 2 B less its own chunk and the next rank's, that is 2 B (n - 1) / n where
    n divides the elements. All go to the next rank, so a boundary between consecutive groups is crossed once each way.
    """
    if ring.size == 1:
        return
    bounds = even_bounds(array.size, ring.size)
    chunks = [array[start:end] for start, end in pairwise(bounds)]
    yield from ring_reduce_scatter(ring, chunks, chunks, operation)
    yield from ring_all_gather(ring, [as_bytes(chunk) for chunk in chunks])


def hierarchical_all_reduce(
    engine: Engine, array: Array, operation: Operation, groups: Sequence[int], tag: int
) -> Steps:
    """Reduce `array`, in place: ring reduce-scatter inside each group, rings across, ring all-gather inside.

    Inside a group of m ranks, rank i holds shard i of m. Groups of unequal size hold different shards, so the rings
    across run on the segments that all groups' shards have in common (`chunks.segments`), all at once; each has one
    rank of every group. With g groups, each sends 2 B (g - 1) / g in all to the next group, in the order of the
    groups' first ranks; with two groups B each way, the least possible, whatever their sizes.
    Steps: 2 (m - 1) inside, 2 (g - 1) across. Bytes sent inside by each rank: 2 B less its own shard and the next
    rank's; across: 2 S less its own chunk and the next one's, for each of its segments of S bytes. Tags: `tag` and one
    more per segment.
    """
    rank = engine.transport.rank
    members = members_of(groups)
    inside = next(ranks for ranks in members if rank in ranks)
    ring = Ring(engine, inside, tag)
    bounds = even_bounds(array.size, ring.size)
    shards = [array[start:end] for start, end in pairwise(bounds)]
    if ring.size > 1:
        yield from ring_reduce_scatter(ring, shards, shards, operation)
    if len(members) > 1:
        across: list[Task] = []
        for index, segment in enumerate(segments(array.size, members)):
            if rank in segment.owners:
                part = array[segment.start : segment.end]
                steps = ring_all_reduce(Ring(engine, segment.owners, tag + 1 + index), part, operation)
                across.append(engine.start("", steps))
        yield tuple(across)
    if ring.size > 1:
        yield from ring_all_gather(ring, [as_bytes(shard) for shard in shards])


def tree_broadcast(engine: Engine, view: memoryview, root: int, tag: int) -> Steps:
    """The root's bytes to all, along a binomial tree.

    Steps: ceil(log2 n). Bytes: B to each rank but the root; the root sends to ceil(log2 n) ranks.
    """
    transport = engine.transport
    rank, size = transport.rank, transport.size
    place = (rank - root) % size
    # a rank hears from the one whose place lacks its lowest set bit, then tells those that add a lower bit
    bit = 1
    while bit < size and not place & bit:
        bit *= 2
    if place:
        yield (transport.irecv((root + place - bit) % size, tag, view),)
    sends = []
    while bit > 1:
        bit //= 2
        if place + bit < size:
            sends.append(transport.isend((root + place + bit) % size, tag, view))
    yield tuple(sends)


def dissemination_barrier(engine: Engine, tag: int) -> Steps:
    """Nobody leaves before everybody has come: in round k tell the rank 2^k further, hear from 2^k before.

    Steps: ceil(log2 n). Bytes: none; one empty message sent by each rank per step.
    """
    transport = engine.transport
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        yield (
            transport.isend((rank + distance) % size, tag, NOTHING),
            transport.irecv((rank - distance) % size, tag, NOTHING),
        )
        distance *= 2
