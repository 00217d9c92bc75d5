"""The search for the quickest configuration of a training step: what fits, what a model says of it, what is best."""

from testbed.explorer.errors import NothingFits
from testbed.explorer.search import Exploration, Search
from testbed.explorer.trying import Configuration, Misfit, Tried, try_out

__all__ = [
    "Configuration",
    "Exploration",
    "Misfit",
    "NothingFits",
    "Search",
    "Tried",
    "try_out",
]
