"""The play of a step in a loop that is compiled, a hundred times as quick, where nothing out of the ordinary happens.

`simulation` is what it is held against, and what plays all else, and on machines without a compiler.
"""

from testbed.model.compiled.network import OnNetwork
from testbed.model.compiled.playing import Outcome, play
from testbed.model.compiled.ways import Ways

__all__ = ["OnNetwork", "Outcome", "Ways", "play"]
