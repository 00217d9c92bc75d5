"""All-to-all whose receivers do not know the counts: senders announce counts and send real rows only, or pad.

A router uses it to send tokens to experts. c(s, d) is the number of rows that rank s has for rank d, M the maximum, w a
row's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.comm.collectives.algorithms.all_to_all import CONCURRENCY
from testbed.comm.collectives.arrays import Array, as_bytes
from testbed.comm.collectives.plan_executor import Group
from testbed.comm.collectives.progress_engine import Position, Steps
from testbed.comm.collectives.registry import ALL_TO_ALL_V, RowsAlgorithm, rows_algorithm_of
from testbed.comm.flight_recorder import Record
from testbed.comm.transport import Request, TransportError

COUNT_BYTES = 8
ALL_PEERS = 1 << 14  # no limit: the number of available tags

ALL_TO_ALL_V.add("late_counts", RowsAlgorithm(lambda count, most: count, CONCURRENCY))
ALL_TO_ALL_V.add("padded", RowsAlgorithm(lambda count, most: most, CONCURRENCY, posts_ahead=True))
# like one kernel launch for all peers: no peer's rows wait for another's
ALL_TO_ALL_V.add("late_counts_at_once", RowsAlgorithm(lambda count, most: count, ALL_PEERS))
# like handles from an earlier exchange: buffers and counts are known, only rows are sent, to all peers at once
ALL_TO_ALL_V.add(
    "told_counts", RowsAlgorithm(lambda count, most: count, ALL_PEERS, posts_ahead=True, counts_known=True)
)


def sent_rows(algorithm: str | RowsAlgorithm, rows: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Return the rows on the wire for rows[s][d] from rank s to rank d, where none exceeds `most`."""
    sent = rows_algorithm_of(ALL_TO_ALL_V, algorithm).sent
    return [[sent(count, most) for count in row] for row in rows]


def rows_traffic(
    rows: Sequence[Sequence[int]], itemsize: int, algorithm: str | RowsAlgorithm
) -> dict[tuple[int, int], int]:
    """Return the bytes per ordered pair of ranks, counts included. rows[s][d]: elements on the wire from s to d."""
    count_bytes = 0 if rows_algorithm_of(ALL_TO_ALL_V, algorithm).counts_known else COUNT_BYTES
    return {
        (here, there): count_bytes + itemsize * count
        for here, row in enumerate(rows)
        for there, count in enumerate(row)
        if here != there and (count_bytes or count)
    }


class Exchange:
    """Send `rows[d]` to each rank d and receive into `output[s]` from each rank s, which has room for M rows.

    A rank sends a message of 8 bytes with the count, followed directly by the rows, if any. The receiver posts its
    receive once it knows the count, so nothing waits for a round trip; if the number of rows is known ahead, it
    posts at once. Sends 8 (n - 1) + w sum over d of c(s, d) bytes; padded, 8 (n - 1) + w M (n - 1); with known
    counts, only the rows. At most `algorithm.concurrency` peers at a time.

    rows: the rows for each rank, their number given by `algorithm.sent`.
    counts: the number of real rows among them.
    known_counts: rows that will arrive from each rank, if known in advance.
    received_counts: rows received from each rank, once they have arrived.
    """

    def __init__(
        self,
        group: Group,
        rank: int,
        rows: Sequence[Array],
        output: Array,
        counts: Sequence[int],
        algorithm: RowsAlgorithm,
        known_counts: Sequence[int] | None = None,
    ) -> None:
        self.received_counts = list(counts)
        self._group = group
        self._rank = rank
        self._rows = rows
        self._output = output
        self._counts = np.array(counts, dtype=np.int64)  # a copy: announced counts must not change in flight
        self._algorithm = algorithm
        self._known_counts = known_counts

    def steps(self, tag: int, position: Position) -> Steps:
        """Execute the exchange. Uses two tags per strand."""
        size, rank = len(self._rows), self._rank
        own = self.received_counts[rank]
        self._output[rank, :own] = self._rows[rank][:own]
        position.phase = "exchange"
        strands = min(self._algorithm.concurrency, size - 1)
        start = self._group.engine.start
        yield tuple(
            start(self._strand(range(1 + first, size, strands), tag + 2 * first, position.record))
            for first in range(strands)
        )

    def _strand(self, distances: Sequence[int], tag: int, record: Record | None) -> Steps:
        group, algorithm = self._group, self._algorithm
        size, most = self._output.shape[:2]
        sends: list[Request] = []
        for distance in distances:
            target, source = (self._rank + distance) % size, (self._rank - distance) % size
            if self._known_counts is not None:
                self.received_counts[source] = self._known_counts[source]
                rows = self._receive(source, self._known_counts[source], tag + 1, record)
                if self._rows[target].size:
                    sends.append(group.send(target, tag + 1, as_bytes(self._rows[target]), record))
                yield tuple(rows)
                continue
            count = np.zeros(1, dtype=np.int64)
            announced = group.receive(source, tag, as_bytes(count), record)
            data: list[Request] = []
            if algorithm.posts_ahead:
                data = self._receive(source, algorithm.sent(most, most), tag + 1, record)
            sends.append(group.send(target, tag, as_bytes(self._counts[target : target + 1]), record))
            if self._rows[target].size:
                sends.append(group.send(target, tag + 1, as_bytes(self._rows[target]), record))
            yield (announced,)
            announced_rows = int(count[0])
            if not 0 <= announced_rows <= most:
                raise TransportError(
                    f"rank {group.transport.rank}: count announced by peer {group.ranks[source]}: "
                    f"got {announced_rows}, expected 0 to {most}, the room in the output"
                )
            self.received_counts[source] = announced_rows
            if not algorithm.posts_ahead:
                data = self._receive(source, algorithm.sent(announced_rows, most), tag + 1, record)
            yield tuple(data)
        yield tuple(sends)

    def _receive(self, source: int, rows: int, tag: int, record: Record | None) -> list[Request]:
        view = self._output[source, :rows]
        return [self._group.receive(source, tag, as_bytes(view), record)] if view.size else []
