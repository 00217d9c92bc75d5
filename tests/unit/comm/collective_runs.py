"""What the suite of collectives has beside `conformance.single_thread`: names of all algorithms."""

from __future__ import annotations

from testbed.comm.collectives import COLLECTIVES
from testbed.contrib.conformance.harness import filled, finish, joined, layouts, run, run_on

__all__ = ["ALGORITHMS", "filled", "finish", "joined", "layouts", "run", "run_on"]

ALGORITHMS = {name: tuple(found.algorithms) for name, found in COLLECTIVES.items() if not found.uneven}
