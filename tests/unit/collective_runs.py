"""What the testbed's own suite of collectives has beside `testbed.testing.driving`: names of all algorithms."""

from __future__ import annotations

from testbed.collectives import COLLECTIVES
from testbed.testing.driving import filled, finish, joined, layouts, run, run_on

__all__ = ["ALGORITHMS", "filled", "finish", "joined", "layouts", "run", "run_on"]

ALGORITHMS = {name: tuple(found.algorithms) for name, found in COLLECTIVES.items() if not found.uneven}
