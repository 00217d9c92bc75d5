"""Collective algorithms as generators: each yields the requests that must be done before it can go on.

A generator never waits itself, so one thread keeps any number of collectives in flight. n ranks, vector of N bytes;
chunks are as even as whole elements allow, so "N/n" stands for the chunk's own size.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from testbed.collectives.layout import chunk_bounds, members_by_group, shared_segments
from testbed.transport import Request, Transport

Array = np.ndarray[Any, Any]
Steps = Generator[list[Request], None, None]
TAG_STEPS = 1 << 24  # message turns that one collective may number


class Ring:
    """The ranks that take part, in ring order, seen from one of them; numbers its messages within one collective."""

    def __init__(self, transport: Transport, ranks: Sequence[int], tag: int) -> None:
        self.transport = transport
        self.size = len(ranks)
        self.me = ranks.index(transport.rank)
        self.right = ranks[(self.me + 1) % self.size]
        self.left = ranks[(self.me - 1) % self.size]
        self.tag = tag
        self.turn = 0

    def exchange(self, outgoing: Array, incoming: Array) -> list[Request]:
        """Send to the right, receive from the left."""
        tag = self.tag + self.turn
        self.turn += 1
        receive = self.transport.irecv(self.left, tag, memoryview(incoming))
        return [receive, self.transport.isend(self.right, tag, memoryview(outgoing))]


def ring_reduce_scatter(ring: Ring, chunks: Sequence[Array], reduce: np.ufunc) -> Steps:
    """Reduce in place so that chunk i is complete on the i-th rank of the ring; other chunks hold partial sums after.

    n-1 turns; each rank sends N - N/n bytes: every chunk but its own.
    """
    n, me = ring.size, ring.me
    buffer = np.empty(max(chunk.size for chunk in chunks), dtype=chunks[0].dtype)
    for turn in range(n - 1):
        target = chunks[(me - turn - 2) % n]
        incoming = buffer[: target.size]
        yield ring.exchange(chunks[(me - turn - 1) % n], incoming)
        reduce(target, incoming, out=target)


def ring_all_gather(ring: Ring, chunks: Sequence[Array]) -> Steps:
    """Spread chunk i from the i-th rank of the ring to all.

    n-1 turns; each rank sends N - N/n bytes: every chunk but its right neighbour's.
    """
    n, me = ring.size, ring.me
    for turn in range(n - 1):
        yield ring.exchange(chunks[(me - turn) % n], chunks[(me - turn - 1) % n])


def ring_all_reduce(ring: Ring, vector: Array, reduce: np.ufunc) -> Steps:
    """Flat ring in rank order: reduce-scatter, then all-gather, in place.

    2(n-1) turns; each rank sends 2N(n-1)/n bytes. Where the ring passes from one building to the next, each crossing
    carries as much: with two buildings of consecutive ranks, 2N(n-1)/n bytes in each direction of the WAN.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
    """
    chunks = [vector[low:high] for low, high in chunk_bounds(vector.size, ring.size)]
    yield from ring_reduce_scatter(ring, chunks, reduce)
    yield from ring_all_gather(ring, chunks)


def hierarchical_all_reduce(
    transport: Transport, groups: Sequence[int], tag: int, vector: Array, reduce: np.ufunc
) -> Steps:
    """Reduce-scatter (ring) inside each building, all-reduce (ring) across, all-gather (ring) inside, in place.

    A building of m ranks cuts the vector into m chunks, one complete on each rank after the first phase. Where the
    buildings differ in size their chunks differ, so the vector is also cut at every boundary of any building: each such
    segment lies in one chunk of every building, and its owners, one per building, all-reduce it among themselves.

    2(m-1) + 2(g-1) turns with g buildings; each rank sends 2N(m-1)/m bytes inside, and the owners of a segment of s
    bytes send 2s(g-1)/g each across: with two buildings N bytes in each direction of the WAN, whatever their sizes.
    """
    members = members_by_group(groups)
    inside = members[groups[transport.rank]]
    ring = Ring(transport, inside, tag)
    chunks = [vector[low:high] for low, high in chunk_bounds(vector.size, len(inside))]
    yield from ring_reduce_scatter(ring, chunks, reduce)
    if len(members) > 1:
        crossings = []
        for number, (low, high, owners) in enumerate(shared_segments(vector.size, list(members.values()))):
            if transport.rank in owners:
                across = Ring(transport, owners, tag + TAG_STEPS // 2 + number * 2 * len(owners))
                crossings.append(ring_all_reduce(across, vector[low:high], reduce))
        yield from side_by_side(crossings)
    yield from ring_all_gather(ring, chunks)


def side_by_side(parts: Iterable[Steps]) -> Steps:
    """Run several generators of equally many turns in step."""
    running = list(parts)
    while running:
        requests: list[Request] = []
        still = []
        for part in running:
            wanted = next(part, None)
            if wanted is not None:
                requests += wanted
                still.append(part)
        running = still
        if requests:
            yield requests


def binomial_broadcast(transport: Transport, root: int, tag: int, vector: Array) -> Steps:
    """Spread a vector from `root` along a binomial tree: ceil(log2 n) turns; N bytes to each of the n-1 others."""
    n, me = transport.size, (transport.rank - root) % transport.size
    if me:
        reach = 1 << (me.bit_length() - 1)
        yield [transport.irecv((me - reach + root) % n, tag, memoryview(vector))]
        reach <<= 1
    else:
        reach = 1
    sends = []
    while me + reach < n:
        sends.append(transport.isend((me + reach + root) % n, tag, memoryview(vector)))
        reach <<= 1
    yield sends


def dissemination_barrier(transport: Transport, tag: int) -> Steps:
    """Nobody leaves before all have come: ceil(log2 n) turns of empty messages, one each way per rank and turn.

    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 1988.
    """
    n, me = transport.size, transport.rank
    nothing = memoryview(bytearray())
    distance, turn = 1, 0
    while distance < n:
        receive = transport.irecv((me - distance) % n, tag + turn, nothing)
        yield [receive, transport.isend((me + distance) % n, tag + turn, nothing)]
        distance, turn = distance * 2, turn + 1
