"""What the flight recorder is told of an operation when a rank asks for it."""

from __future__ import annotations

import time
from typing import NamedTuple

from testbed.comm.collectives.data import Array
from testbed.comm.flight_recorder import Record, Recorder


class About(NamedTuple):
    """An operation's array, algorithm and reduction, as far as it has them."""

    array: Array | None = None
    algorithm: str = ""
    op: str = ""


def begin_record(
    recorder: Recorder | None,
    group: int,
    sequence: int,
    name: str,
    about: About,
    peer: int = -1,
    tag: int = 0,
) -> Record | None:
    """An operation is asked for now, as `Recorder.begin` has it; None where nobody records, or there is no room."""
    if recorder is None:
        return None
    array, algorithm, op = about
    dtype, size_bytes = (array.dtype.name, array.nbytes) if array is not None else ("", 0)
    return recorder.begin(
        group,
        sequence,
        name,
        time.monotonic(),
        size_bytes=size_bytes,
        algorithm=algorithm,
        dtype=dtype,
        op=op,
        peer=peer,
        tag=tag,
    )
