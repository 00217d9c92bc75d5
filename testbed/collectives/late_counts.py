"""All-to-all whose counts the receivers do not know: real rows only, announced, or padding to the most there can be.

As for tokens that a router sends to experts. c(s, d) is how many rows rank s has for rank d, M the most that any may
have, w a row's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.collectives.carrying import Group
from testbed.collectives.data import Array, as_bytes
from testbed.collectives.engine import Position, Steps
from testbed.collectives.exchanging import CONCURRENCY
from testbed.transport import Request, TransportError

ALGORITHMS = ("late_counts", "padded")
COUNT_BYTES = 8


def rows_traffic(
    rows: Sequence[Sequence[int]], itemsize: int, padded_to: int | None = None
) -> dict[tuple[int, int], int]:
    """Bytes per ordered pair of ranks, counts included. rows[s][d]: elements from s to d, or padded to so many."""
    return {
        (here, there): COUNT_BYTES + itemsize * (count if padded_to is None else padded_to)
        for here, row in enumerate(rows)
        for there, count in enumerate(row)
        if here != there
    }


class Exchange:
    """Each rank's `rows[d]` to rank d, into `room[s]` of it, which has space for M rows.

    counts: how many rows this rank has for each; `come`: how many came from each, once they have.
    Not padded: a message of 8 bytes with the count, and right behind it w c(s, d) bytes, if any. The receiver posts its
    receive once it knows the count, so nothing waits for a round trip. Sends 8 (n - 1) + w sum over d of c(s, d).
    Padded: every rank gets M rows, whatever is in them, and the count: 8 (n - 1) + w M (n - 1), where all `rows[d]` are
    of M rows. Up to 8 peers at a time.
    """

    def __init__(
        self, group: Group, rank: int, rows: Sequence[Array], room: Array, counts: Sequence[int], padded: bool
    ) -> None:
        self.come = list(counts)
        self._group = group
        self._rank = rank
        self._rows = rows
        self._room = room
        self._counts = np.array(counts, dtype=np.int64)  # what is announced must not change under way
        self._padded = padded

    def steps(self, tag: int, position: Position) -> Steps:
        """Carry it out. Uses two tags per strand."""
        size, rank = len(self._rows), self._rank
        own = self.come[rank]
        self._room[rank, :own] = self._rows[rank][:own]
        position.phase = "exchange"
        strands = min(CONCURRENCY, size - 1)
        start = self._group.engine.start
        yield tuple(
            start("", self._strand(range(1 + first, size, strands), tag + 2 * first))
            for first in range(strands)
        )

    def _strand(self, distances: Sequence[int], tag: int) -> Steps:
        group, room, padded = self._group, self._room, self._padded
        size, most = room.shape[:2]
        sends: list[Request] = []
        for distance in distances:
            target, source = (self._rank + distance) % size, (self._rank - distance) % size
            count = np.zeros(1, dtype=np.int64)
            announced = group.receive(source, tag, as_bytes(count))
            data = self._receive(source, most, tag + 1) if padded else []
            sends.append(group.send(target, tag, as_bytes(self._counts[target : target + 1])))
            outgoing = self._rows[target] if padded else self._rows[target][: self._counts[target]]
            if outgoing.size:
                sends.append(group.send(target, tag + 1, as_bytes(outgoing)))
            yield (announced,)
            come = int(count[0])
            if not 0 <= come <= most:
                raise TransportError(
                    f"rank {group.transport.rank}: count announced by peer {group.ranks[source]}: got {come}, "
                    f"expected 0 to {most}, as there is room for"
                )
            self.come[source] = come
            yield tuple(data if padded else self._receive(source, come, tag + 1))
        yield tuple(sends)

    def _receive(self, source: int, rows: int, tag: int) -> list[Request]:
        view = self._room[source, :rows]
        return [self._group.receive(source, tag, as_bytes(view))] if view.size else []
