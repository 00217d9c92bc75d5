"""The play of a step in a loop that is compiled, a hundred times as quick, where nothing out of the ordinary happens.

`simulation` is what it is held against, and what plays all else, and on machines without a compiler.
"""

from testbed.prediction.compiled.columns import NetworkColumns
from testbed.prediction.compiled.simulation import NetworkSimulator, Outcome, play

__all__ = ["NetworkColumns", "NetworkSimulator", "Outcome", "play"]
