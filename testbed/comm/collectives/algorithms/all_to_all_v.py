"""All-to-all whose counts the receivers do not know: real rows only, announced, or padding to the most there can be.

As for tokens that a router sends to experts. c(s, d) is how many rows rank s has for rank d, M the most that any may
have, w a row's bytes.
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
ALL_PEERS = 1 << 14  # as many as there are tags for

ALL_TO_ALL_V.add("late_counts", RowsAlgorithm(lambda count, most: count, CONCURRENCY))
ALL_TO_ALL_V.add("padded", RowsAlgorithm(lambda count, most: most, CONCURRENCY, ahead=True))
# as one launch for all peers has it: nobody's rows wait for another's
ALL_TO_ALL_V.add("late_counts_at_once", RowsAlgorithm(lambda count, most: count, ALL_PEERS))
# as with handles that were exchanged before: buffers and counts are known, only rows travel, to all at once
ALL_TO_ALL_V.add("told_counts", RowsAlgorithm(lambda count, most: count, ALL_PEERS, ahead=True, told=True))


def sent_rows(algorithm: str | RowsAlgorithm, rows: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """What travels where rows[s][d] are to be sent from s to d, of which nobody has more than `most` for anybody."""
    sent = rows_algorithm_of(ALL_TO_ALL_V, algorithm).sent
    return [[sent(count, most) for count in row] for row in rows]


def rows_traffic(
    rows: Sequence[Sequence[int]], itemsize: int, algorithm: str | RowsAlgorithm
) -> dict[tuple[int, int], int]:
    """Bytes per ordered pair of ranks, counts included. rows[s][d]: elements that travel from s to d."""
    own = 0 if rows_algorithm_of(ALL_TO_ALL_V, algorithm).told else COUNT_BYTES
    return {
        (here, there): own + itemsize * count
        for here, row in enumerate(rows)
        for there, count in enumerate(row)
        if here != there and (own or count)
    }


class Exchange:
    """Each rank's `rows[d]` to rank d, into `output[s]` of it, which has space for M rows.

    rows: as many as `algorithm.sent` says travel. counts: how many of them are this rank's for each; `come`: how many
    came from each, once they have. told: how many will, where that is known.
    A message of 8 bytes with the count, and right behind it the rows, if any. The receiver posts its receive once it
    knows the count, so nothing waits for a round trip; where the number of rows is known ahead, at once. Sends
    8 (n - 1) + w sum over d of c(s, d), or, padded, 8 (n - 1) + w M (n - 1); where counts are told, rows alone. Up to
    `algorithm.concurrency` peers at a time.
    """

    def __init__(
        self,
        group: Group,
        rank: int,
        rows: Sequence[Array],
        output: Array,
        counts: Sequence[int],
        algorithm: RowsAlgorithm,
        told: Sequence[int] | None = None,
    ) -> None:
        self.come = list(counts)
        self._group = group
        self._rank = rank
        self._rows = rows
        self._output = output
        self._counts = np.array(counts, dtype=np.int64)  # what is announced must not change under way
        self._algorithm = algorithm
        self._told = told

    def steps(self, tag: int, position: Position) -> Steps:
        """Carry it out. Uses two tags per strand."""
        size, rank = len(self._rows), self._rank
        own = self.come[rank]
        self._output[rank, :own] = self._rows[rank][:own]
        position.phase = "exchange"
        strands = min(self._algorithm.concurrency, size - 1)
        start = self._group.engine.start
        yield tuple(
            start("", self._strand(range(1 + first, size, strands), tag + 2 * first, position.record))
            for first in range(strands)
        )

    def _strand(self, distances: Sequence[int], tag: int, record: Record | None) -> Steps:
        group, algorithm = self._group, self._algorithm
        size, most = self._output.shape[:2]
        sends: list[Request] = []
        for distance in distances:
            target, source = (self._rank + distance) % size, (self._rank - distance) % size
            if self._told is not None:
                self.come[source] = self._told[source]
                rows = self._receive(source, self._told[source], tag + 1, record)
                if self._rows[target].size:
                    sends.append(group.send(target, tag + 1, as_bytes(self._rows[target]), record))
                yield tuple(rows)
                continue
            count = np.zeros(1, dtype=np.int64)
            announced = group.receive(source, tag, as_bytes(count), record)
            data: list[Request] = []
            if algorithm.ahead:
                data = self._receive(source, algorithm.sent(most, most), tag + 1, record)
            sends.append(group.send(target, tag, as_bytes(self._counts[target : target + 1]), record))
            if self._rows[target].size:
                sends.append(group.send(target, tag + 1, as_bytes(self._rows[target]), record))
            yield (announced,)
            come = int(count[0])
            if not 0 <= come <= most:
                raise TransportError(
                    f"rank {group.transport.rank}: count announced by peer {group.ranks[source]}: got {come}, "
                    f"expected 0 to {most}, as there is room for"
                )
            self.come[source] = come
            if not algorithm.ahead:
                data = self._receive(source, algorithm.sent(come, most), tag + 1, record)
            yield tuple(data)
        yield tuple(sends)

    def _receive(self, source: int, rows: int, tag: int, record: Record | None) -> list[Request]:
        view = self._output[source, :rows]
        return [self._group.receive(source, tag, as_bytes(view), record)] if view.size else []
