"""Who serves requests, decided as they come: for ranks, too, which need no files' models for it."""

from testbed.workload.dispatch.batch_execution import Dispatching, ExecutedPlan, GrowingPlan, PieceKey
from testbed.workload.dispatch.dispatcher import Dispatcher, DispatchLog, NoServerError, Sending

__all__ = [
    "DispatchLog",
    "Dispatcher",
    "Dispatching",
    "ExecutedPlan",
    "GrowingPlan",
    "NoServerError",
    "PieceKey",
    "Sending",
]
