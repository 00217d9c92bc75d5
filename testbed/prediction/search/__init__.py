"""The search for the fastest configuration of a training step: feasibility, evaluation, comparison with baselines."""

from testbed.prediction.search.evaluation import (
    Configuration,
    Evaluation,
    Infeasible,
    evaluate,
    evaluate_tail_s,
    search_space_of,
)
from testbed.prediction.search.evaluator import NothingFits, SearchProgress
from testbed.prediction.search.exploration import Exploration
from testbed.prediction.search.search import Search

__all__ = [
    "Configuration",
    "Evaluation",
    "Exploration",
    "Infeasible",
    "NothingFits",
    "Search",
    "SearchProgress",
    "evaluate",
    "evaluate_tail_s",
    "search_space_of",
]
