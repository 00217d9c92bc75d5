"""What the suite of collectives has beside `conformance.harness`: names of all algorithms, all ranks' inputs."""

from __future__ import annotations

import numpy as np

from testbed.comm.collectives import COLLECTIVES, Array
from testbed.contrib.conformance.harness import filled, finish, layouts, run, run_on

__all__ = ["ALGORITHMS", "filled", "finish", "joined", "layouts", "run", "run_on"]

ALGORITHMS = {name: tuple(found.algorithms) for name, found in COLLECTIVES.items() if not found.uneven}


def joined(size: int, numel: int, dtype: str) -> Array:
    """Return the inputs of all ranks, concatenated."""
    return np.concatenate([filled(numel, rank, dtype) for rank in range(size)])
