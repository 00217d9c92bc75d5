"""State on its way from one rank to another, piece by piece, as long as somebody wants it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from testbed.comm.collectives import Array
from testbed.comm.collectives.arrays import as_bytes
from testbed.comm.collectives.progress_engine import Engine
from testbed.comm.replicas.ring import FirstOf, RingSettings, Signal
from testbed.comm.transport import TrafficClass, Transport


@dataclass(frozen=True)
class TransferSettings:
    """How state travels: in pieces of what a ring has in flight. signal: given when what is wanted may have changed."""

    transport: Transport
    ring: RingSettings
    traffic: TrafficClass
    signal: Signal


def transfer_state(
    line: TransferSettings,
    peer: int,
    tag: int,
    size_bytes: int,
    wanted: Callable[[], bool],
    moved: Callable[[Array], None] = lambda piece: None,
    fill: Callable[[Array], None] | None = None,
) -> Generator[tuple[FirstOf], None, bool]:
    """All of a rank's state, to or from a peer; returns whether it came to its end.

    fill: writes what a piece holds before it is sent; None: pieces are received. moved: is told each that was.
    """
    left_bytes = size_bytes
    while left_bytes > 0 and wanted():
        size = min(line.ring.chunk_bytes * line.ring.in_flight, left_bytes)
        array = np.empty(-(-size // 4), np.float32)
        if fill is not None:
            fill(array)
        begin = line.transport.irecv if fill is None else line.transport.isend
        request = begin(peer, tag, as_bytes(array), line.traffic)
        while not request.done and wanted():
            yield (FirstOf(line.signal, [request]),)
        if not request.done or request.error is not None:
            return False  # somebody is lost, as the coordinator will say
        moved(array)
        left_bytes -= size
    return left_bytes <= 0


_CHECKPOINT_TAG = 1 << 60  # and the numbers of epoch and step


class Checkpoints:
    """One rank's. sent_bytes: so far. whole: steps whose checkpoints this rank has taken.

    Nothing waits for a checkpoint; one that is not over when a member is lost is given up.
    """

    def __init__(self, engine: Engine, line: TransferSettings) -> None:
        self.sent_bytes = 0
        self.whole: list[int] = []
        self._engine, self._line = engine, line

    def begin(
        self, epoch: int, step: int, size_bytes: int, to: int, source: int, wanted: Callable[[], bool]
    ) -> None:
        """This rank's state of so many bytes to one rank, as much from another one; which may come to a step again."""
        tag = _CHECKPOINT_TAG | (epoch & 0xFFFF) << 32 | step
        self._engine.start("", self._give(tag, size_bytes, to, wanted))
        self._engine.start("", self._take(step, tag, size_bytes, source, wanted))

    def _give(
        self, tag: int, size_bytes: int, to: int, wanted: Callable[[], bool]
    ) -> Generator[tuple[FirstOf], None, None]:
        def sent(array: Array) -> None:
            self.sent_bytes += array.nbytes

        yield from transfer_state(
            self._line, to, tag, size_bytes, wanted, sent, fill=lambda array: array.fill(0)
        )

    def _take(
        self, step: int, tag: int, size_bytes: int, source: int, wanted: Callable[[], bool]
    ) -> Generator[tuple[FirstOf], None, None]:
        if (yield from transfer_state(self._line, source, tag, size_bytes, wanted)):
            self.whole.append(step)
