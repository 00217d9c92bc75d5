"""Checkpoints over the network: each rank's state to its fellow in the next replica, in the background of steps."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from testbed.collectives.data import as_bytes
from testbed.collectives.engine import Engine
from testbed.replicas.ring import RingSettings
from testbed.replicas.waiting import FirstOf, Signal
from testbed.transport import Request, TrafficClass

_CHECKPOINT_TAG = 1 << 60  # and the numbers of epoch and step


class Checkpoints:
    """One rank's. sent_bytes, taken_bytes: so far. signal: given when what is wanted may have changed.

    Nothing waits for a checkpoint; one that is not over when a member is lost is given up.
    """

    def __init__(self, engine: Engine, signal: Signal, ring: RingSettings, traffic: TrafficClass) -> None:
        self.sent_bytes = self.taken_bytes = 0
        self.whole: list[int] = []  # steps whose checkpoints this rank has taken
        self._engine, self._signal, self._ring, self._traffic = engine, signal, ring, traffic

    def begin(
        self, epoch: int, step: int, size_bytes: int, to: int, source: int, wanted: Callable[[], bool]
    ) -> None:
        """This rank's state of so many bytes to one rank, as much from another one; which may come to a step again."""
        tag = _CHECKPOINT_TAG | (epoch & 0xFFFF) << 32 | step
        self._engine.start("", self._part(step, tag, size_bytes, to, True, wanted))
        self._engine.start("", self._part(step, tag, size_bytes, source, False, wanted))

    def _part(
        self, step: int, tag: int, size_bytes: int, peer: int, gives: bool, wanted: Callable[[], bool]
    ) -> Generator[tuple[FirstOf], None, None]:
        whole = yield from self._move(tag, size_bytes, peer, gives, wanted)
        if whole and not gives:
            self.whole.append(step)

    def _move(
        self, tag: int, size_bytes: int, peer: int, gives: bool, wanted: Callable[[], bool]
    ) -> Generator[tuple[FirstOf], None, bool]:
        """All of it, piece by piece; whether it came to its end."""
        moved = 0
        while moved < size_bytes and wanted():
            size = min(self._ring.chunk_bytes * self._ring.in_flight, size_bytes - moved)
            array = np.zeros(-(-size // 4), np.float32)
            begin = self._engine.transport.isend if gives else self._engine.transport.irecv
            request: Request = begin(peer, tag, as_bytes(array), self._traffic)
            while not request.done and wanted():
                yield (FirstOf(self._signal, [request]),)
            if not request.done or request.error is not None:
                return False
            if gives:
                self.sent_bytes += array.nbytes
            else:
                self.taken_bytes += array.nbytes
            moved += size
        return moved >= size_bytes
