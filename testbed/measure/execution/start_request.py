"""What a start is asked to try, from words to figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from testbed.errors import did_you_mean
from testbed.measure.execution.bench_request import CLOCKS, COMMAND_LINE
from testbed.measure.execution.start_run import MOST_EAGER, StartOptions
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES
from testbed.prediction.startup_cost import BASELINE, PUBLISHED, RING, SCALABLE, StartCosts
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.overrides import preset_transport

WAYS = {
    "baseline": BASELINE,
    "ring": replace(BASELINE, bootstrap=RING),
    "by_ranks": replace(BASELINE, by_pairs=False),
    "reuse": replace(BASELINE, reuses=True),
    "lazy": replace(BASELINE, eager=False),
    "scalable": SCALABLE,
}
"""By name: as it was, each of the four remedies by itself, and all of them."""
COSTS = {"published": PUBLISHED, "none": StartCosts(0.0, 0.0)}
"""What software takes, by name."""
MOST_RANKS = 8192
"""A thread each, and sockets."""


def tries_of(ranks: str, way: str, groups: str, costs: str, clock: str) -> list[StartOptions]:
    """For each number of ranks every way. ConfigError names the option that is wrong."""
    if clock not in CLOCKS:
        raise _wrong("--clock", clock, did_you_mean(clock, CLOCKS))
    if costs not in COSTS:
        raise _wrong("--costs", costs, did_you_mean(costs, COSTS))
    names = list(WAYS) if way == "all" else way.split(",")
    for name in names:
        if name not in WAYS:
            raise _wrong("--way", name, did_you_mean(name, WAYS))
    dimensions = dimensions_of(groups)
    found = []
    for word in ranks.split(","):
        count = int(word) if word.isascii() and word.isdigit() else 0
        if not 2 <= count <= MOST_RANKS:
            raise _wrong("--ranks", word, f"2 to {MOST_RANKS}")
        product = math.prod(size for _, size in dimensions)
        if count % product:
            raise _wrong("--ranks", word, f"a multiple of the {product} that --groups make")
        for name in names:
            if WAYS[name].eager and count > MOST_EAGER:
                expected = f"lazy or scalable beyond {MOST_EAGER} ranks, as all others connect everybody to everybody"
                raise _wrong("--way", f"{name} with {count} ranks", expected)
            found.append(StartOptions(count, dimensions, WAYS[name], COSTS[costs]))
    return found


def dimensions_of(groups: str) -> tuple[tuple[str, int], ...]:
    """From NAME=SIZE,NAME=SIZE. ConfigError."""
    if groups in ("", "none"):
        return ()
    found = []
    for word in groups.split(","):
        name, _, size = word.partition("=")
        if not name or not size.isascii() or not size.isdigit() or int(size) < 1:
            raise _wrong("--groups", word, "NAME=SIZE, such as tensor=8")
        found.append((name, int(size)))
    return tuple(found)


def guest_bytes_for(tries: Sequence[StartOptions]) -> int:
    """Memory for a guest that carries the largest of these."""
    most = max(one.ranks * one.rank_bytes for one in tries)
    return DEFAULT_MEMORY_BYTES + most


def connection_buffers_bytes() -> int:
    """What a connection keeps of the window that copies go through, by the preset `nccl`."""
    staging = preset_transport("nccl").staging
    return staging.chunk_bytes * staging.slots


def _wrong(option: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, option, value, expected)])
