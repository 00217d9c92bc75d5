"""Checkpoints over the network: each rank's state to its fellow in the next replica, in the background of steps."""

from __future__ import annotations

from collections.abc import Callable, Generator

from testbed.comm.collectives import Array
from testbed.comm.collectives.progress_engine import Engine
from testbed.comm.replicas.fault_tolerant_requests import FirstOf
from testbed.comm.replicas.state_transfer import Line, move

_CHECKPOINT_TAG = 1 << 60  # and the numbers of epoch and step


class Checkpoints:
    """One rank's. sent_bytes: so far. whole: steps whose checkpoints this rank has taken.

    Nothing waits for a checkpoint; one that is not over when a member is lost is given up.
    """

    def __init__(self, engine: Engine, line: Line) -> None:
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

        yield from move(self._line, to, tag, size_bytes, wanted, sent, fill=lambda array: array.fill(0))

    def _take(
        self, step: int, tag: int, size_bytes: int, source: int, wanted: Callable[[], bool]
    ) -> Generator[tuple[FirstOf], None, None]:
        if (yield from move(self._line, source, tag, size_bytes, wanted)):
            self.whole.append(step)
