"""The play of a step in a loop that is compiled, a hundred times as quick, where nothing out of the ordinary happens.

`simulation` is what it is held against, and what plays all else, and on machines without a compiler.
"""

from testbed.prediction.compiled.network_cache import OnNetwork
from testbed.prediction.compiled.network_columns import Ways
from testbed.prediction.compiled.simulation import Outcome, play

__all__ = ["OnNetwork", "Outcome", "Ways", "play"]
