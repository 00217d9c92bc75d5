"""Who serves requests, decided as they come: for ranks, too, which need no files' models for it."""

from testbed.workload.dispatch.batch_execution import Carried, Dispatching, Growing, PieceKey
from testbed.workload.dispatch.dispatcher import Dispatched, Dispatcher, NoServerError, Sending

__all__ = [
    "Carried",
    "Dispatched",
    "Dispatcher",
    "Dispatching",
    "Growing",
    "NoServerError",
    "PieceKey",
    "Sending",
]
