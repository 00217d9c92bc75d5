"""Transfer of state from one rank to another, piece by piece while it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from testbed.comm.collectives import Array
from testbed.comm.collectives.arrays import as_bytes
from testbed.comm.replicas.ring import AnyOf, RingSettings, Signal
from testbed.comm.transport import TrafficClass, Transport


def transfer_state(
    transport: Transport,
    ring: RingSettings,
    traffic: TrafficClass,
    signal: Signal,
    peer: int,
    tag: int,
    size_bytes: int,
    wanted: Callable[[], bool],
    moved: Callable[[Array], None] = lambda piece: None,
    fill: Callable[[Array], None] | None = None,
) -> Generator[tuple[AnyOf], None, bool]:
    """Send all of a rank's state to a peer, or receive it; returns whether the transfer was completed.

    Args:
        transport: Carries the messages.
        ring: Settings of the ring; a piece has as many bytes as a ring has in flight.
        traffic: The class of the messages.
        signal: Notified when `wanted` may have changed.
        peer: The other rank.
        tag: Tag of the messages.
        size_bytes: Size of the state.
        wanted: Whether the transfer is still wanted.
        moved: Called with each piece that was transferred.
        fill: Fills a piece before it is sent; None: pieces are received.
    """
    left_bytes = size_bytes
    while left_bytes > 0 and wanted():
        size = min(ring.chunk_bytes * ring.in_flight, left_bytes)
        array = np.empty(-(-size // 4), np.float32)
        if fill is not None:
            fill(array)
        begin = transport.irecv if fill is None else transport.isend
        request = begin(peer, tag, as_bytes(array), traffic)
        while not request.done and wanted():
            yield (AnyOf(signal, [request]),)
        if not request.done or request.error is not None:
            return False  # the peer is lost, as the coordinator will announce
        moved(array)
        left_bytes -= size
    return left_bytes <= 0
