"""Compiled simulation of ordinary steps, a hundred times faster than `prediction.simulation`.

The Python simulation is its reference. It also handles everything else, and machines without a compiler.
"""

from testbed.prediction.compiled.columns import NetworkColumns
from testbed.prediction.compiled.simulation import NetworkSimulator, Outcome, play

__all__ = ["NetworkColumns", "NetworkSimulator", "Outcome", "play"]
