"""Collectives between ranks: a communicator, algorithms as plans, their bytes on the wire, data with known answers."""

from testbed.collectives.catalogue import (
    automatic,
    between_groups,
    pieces_for,
    traffic,
    wan_bytes,
)
from testbed.collectives.check import count_wrong, count_wrong_among, count_wrong_output, expect, fill
from testbed.collectives.communicator import Communicator
from testbed.collectives.data import Array
from testbed.collectives.definitions import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SENDRECV,
)
from testbed.collectives.messages import P2POp
from testbed.collectives.operations import DTYPES, OPERATIONS, Reduction, dtype_named
from testbed.collectives.plan import Plan, Round, Transfer, even, in_channels, reverse, runs_of, then
from testbed.collectives.registry import (
    AUTO,
    COLLECTIVES,
    Algorithm,
    Collective,
    Pieces,
    PlanRequest,
    RowsAlgorithm,
    algorithm_of,
    collective_of,
    rows_algorithm_of,
)
from testbed.collectives.scopes import Revoked
from testbed.collectives.tuning import TuningTable
from testbed.collectives.windows import Window
from testbed.collectives.work import CollectiveTimeout, Work

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "ALL_TO_ALL_V",
    "AUTO",
    "BROADCAST",
    "COLLECTIVES",
    "DTYPES",
    "GATHER",
    "OPERATIONS",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "SENDRECV",
    "Algorithm",
    "Array",
    "Collective",
    "CollectiveTimeout",
    "Communicator",
    "P2POp",
    "Pieces",
    "Plan",
    "PlanRequest",
    "Reduction",
    "Revoked",
    "Round",
    "RowsAlgorithm",
    "Transfer",
    "TuningTable",
    "Window",
    "Work",
    "algorithm_of",
    "automatic",
    "between_groups",
    "collective_of",
    "count_wrong",
    "count_wrong_among",
    "count_wrong_output",
    "dtype_named",
    "even",
    "expect",
    "fill",
    "in_channels",
    "pieces_for",
    "reverse",
    "rows_algorithm_of",
    "runs_of",
    "then",
    "traffic",
    "wan_bytes",
]
