"""Transfer of state from one rank to another, piece by piece while it is wanted, and checkpoints over the network.

A checkpoint sends each rank's state to its peer in the next replica, in the background of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from testbed.comm.collectives import Array
from testbed.comm.collectives.arrays import as_bytes
from testbed.comm.collectives.progress_engine import Engine
from testbed.comm.replicas.ring import AnyOf, RingSettings, Signal
from testbed.comm.transport import TrafficClass, Transport


@dataclass(frozen=True)
class TransferSettings:
    """How state is sent: in pieces of what a ring has in flight. signal: notified when `wanted` may have changed."""

    transport: Transport
    ring: RingSettings
    traffic: TrafficClass
    signal: Signal


def transfer_state(
    settings: TransferSettings,
    peer: int,
    tag: int,
    size_bytes: int,
    wanted: Callable[[], bool],
    moved: Callable[[Array], None] = lambda piece: None,
    fill: Callable[[Array], None] | None = None,
) -> Generator[tuple[AnyOf], None, bool]:
    """Send all of a rank's state to a peer, or receive it; returns whether the transfer was completed.

    Args:
        settings: Transport and sizes.
        peer: The other rank.
        tag: Tag of the messages.
        size_bytes: Size of the state.
        wanted: Whether the transfer is still wanted.
        moved: Called with each piece that was transferred.
        fill: Writes a piece before it is sent; None: pieces are received.
    """
    left_bytes = size_bytes
    while left_bytes > 0 and wanted():
        size = min(settings.ring.chunk_bytes * settings.ring.in_flight, left_bytes)
        array = np.empty(-(-size // 4), np.float32)
        if fill is not None:
            fill(array)
        begin = settings.transport.irecv if fill is None else settings.transport.isend
        request = begin(peer, tag, as_bytes(array), settings.traffic)
        while not request.done and wanted():
            yield (AnyOf(settings.signal, [request]),)
        if not request.done or request.error is not None:
            return False  # the peer is lost, as the coordinator will announce
        moved(array)
        left_bytes -= size
    return left_bytes <= 0


_CHECKPOINT_TAG = 1 << 60  # and the numbers of epoch and step


class Checkpoints:
    """One rank's checkpoints. Nothing waits for them; a checkpoint in progress is abandoned when a member is lost.

    sent_bytes: bytes sent so far.
    completed: steps whose checkpoints this rank has received completely.
    """

    def __init__(self, engine: Engine, settings: TransferSettings) -> None:
        self.sent_bytes = 0
        self.completed: list[int] = []
        self._engine, self._settings = engine, settings

    def begin(
        self, epoch: int, step: int, size_bytes: int, to: int, source: int, wanted: Callable[[], bool]
    ) -> None:
        """Start sending this rank's state of a step to one rank and receiving as much from another.

        The same step may be checkpointed again in another epoch.
        """
        tag = _CHECKPOINT_TAG | (epoch & 0xFFFF) << 32 | step
        self._engine.start("", self._send(tag, size_bytes, to, wanted))
        self._engine.start("", self._receive(step, tag, size_bytes, source, wanted))

    def _send(
        self, tag: int, size_bytes: int, to: int, wanted: Callable[[], bool]
    ) -> Generator[tuple[AnyOf], None, None]:
        def sent(array: Array) -> None:
            self.sent_bytes += array.nbytes

        yield from transfer_state(
            self._settings, to, tag, size_bytes, wanted, sent, fill=lambda array: array.fill(0)
        )

    def _receive(
        self, step: int, tag: int, size_bytes: int, source: int, wanted: Callable[[], bool]
    ) -> Generator[tuple[AnyOf], None, None]:
        if (yield from transfer_state(self._settings, source, tag, size_bytes, wanted)):
            self.completed.append(step)
