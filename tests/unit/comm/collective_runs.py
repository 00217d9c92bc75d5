"""What the suite of collectives has beside `conformance.harness`: names of all algorithms, all ranks' inputs."""

from __future__ import annotations

import numpy as np

from testbed.comm.collectives import COLLECTIVES, Array, dtype_named, fill
from testbed.contrib.conformance.harness import finish, layouts, run, run_on

__all__ = ["ALGORITHMS", "filled", "finish", "joined", "layouts", "run", "run_on"]

ALGORITHMS = {name: tuple(found.algorithms) for name, found in COLLECTIVES.items() if not found.uneven}


def filled(numel: int, rank: int, dtype: str, op: str = "sum") -> Array:
    """Return rank `rank`'s input; see `testbed.comm.collectives.fill`."""
    array = np.empty(numel, dtype_named(dtype))
    fill(array, rank, salt=numel, op=op)
    return array


def joined(size: int, numel: int, dtype: str) -> Array:
    """Return the inputs of all ranks, concatenated."""
    return np.concatenate([filled(numel, rank, dtype) for rank in range(size)])
