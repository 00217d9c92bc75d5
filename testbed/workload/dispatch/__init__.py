"""Dispatch of inference batches to servers when they arrive; free of file models, which ranks need not import."""

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
