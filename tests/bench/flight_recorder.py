"""What the flight recorder costs: the same all-reduces with and without it, by turns, over loopback.

    .venv/bin/python -m tests.bench.flight_recorder [ROUNDS]

Prints for each size the median time of an all-reduce without and with it, what it adds (median of the pairs of turns
and their middle half), and what share of the quickstart's step that is: 80 all-reduces in 1.5 s. Ranks are processes on
this machine's cores; under the virtual clock it takes no time at all.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np

from testbed.comm.collectives import Communicator
from testbed.comm.flight_recorder import Recorder
from testbed.comm.flight_recorder.ring_buffer import ring_bytes
from tests.unit.measure.ranks import Places, forked

RANKS = 2
STEP_OPERATIONS, STEP_S = 80, 1.523  # of the quickstart: all-reduces of 400 MiB buckets
SIZES = {4: 300, 64 * 1024: 200, 4 << 20: 30}  # bytes: how many a turn


def measured(transport: Any, rounds: int) -> dict[int, list[tuple[float, float]]]:
    """Per size: seconds of an all-reduce without and with a recorder, of each pair of turns."""
    plain = Communicator(transport, timeout_s=60)
    recorded = plain.split(range(transport.size))
    assert recorded is not None
    recorder = Recorder(bytearray(ring_bytes()), transport.rank)
    engine = plain._engine
    found: dict[int, list[tuple[float, float]]] = {}
    for size, count in SIZES.items():
        array = np.zeros(max(1, size // 4), "float32")
        for turn in range(rounds + 1):
            times = []
            for with_it in (False, True) if turn % 2 else (True, False):
                engine.recorder = recorder if with_it else None
                plain.barrier()
                begun_s = time.perf_counter()
                for _ in range(count):
                    plain.all_reduce(array, algorithm="ring")
                times.append(((time.perf_counter() - begun_s) / count, with_it))
            if turn:  # the first warms up
                by = {with_it: took_s for took_s, with_it in times}
                found.setdefault(size, []).append((by[False], by[True]))
    return found


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 20
    places = Places(RANKS)
    with forked(lambda transport: measured(transport, rounds), places, list(range(RANKS))) as running:
        found = running.results(600)[0]
    places.close()
    for size, pairs in found.items():
        added_us = [(after - before) * 1e6 for before, after in pairs]
        low, median, high = statistics.quantiles(added_us, n=4)
        without, with_it = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
        print(
            f"{size:>8} bytes: {without:8.0f} us without, {with_it:8.0f} with: {median:.0f} us more "
            f"({low:.0f} to {high:.0f}), {median * STEP_OPERATIONS / STEP_S / 1e4:.2f} % of a step"
        )


if __name__ == "__main__":
    main()
