"""The search for the quickest configuration of a training step: what fits, what a model says of it, what is best."""

from testbed.explorer.errors import NothingFits
from testbed.explorer.evaluation import (
    Configuration,
    Evaluation,
    Infeasible,
    evaluate,
    evaluate_tail_s,
    searched,
)
from testbed.explorer.search import Exploration, Search
from testbed.explorer.trying import Standing

__all__ = [
    "Configuration",
    "Evaluation",
    "Exploration",
    "Infeasible",
    "NothingFits",
    "Search",
    "Standing",
    "evaluate",
    "evaluate_tail_s",
    "searched",
]
