"""State on its way from one rank to another, piece by piece, as long as somebody wants it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from testbed.comm.collectives import Array
from testbed.comm.collectives.data import as_bytes
from testbed.comm.replicas.fault_tolerant_requests import FirstOf, Signal
from testbed.comm.replicas.ring import RingSettings
from testbed.comm.transport import TrafficClass, Transport


@dataclass(frozen=True)
class Line:
    """How state travels: in pieces of what a ring has in flight. signal: given when what is wanted may have changed."""

    transport: Transport
    ring: RingSettings
    traffic: TrafficClass
    signal: Signal


def move(
    line: Line,
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
