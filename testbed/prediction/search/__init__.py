"""The search for the quickest configuration of a training step: what fits, what a model says of it, what is best."""

from testbed.prediction.search.errors import NothingFits
from testbed.prediction.search.evaluation import (
    Configuration,
    Evaluation,
    Infeasible,
    evaluate,
    evaluate_tail_s,
    searched,
)
from testbed.prediction.search.evaluator import Standing
from testbed.prediction.search.search import Exploration, Search

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
