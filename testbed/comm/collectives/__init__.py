"""Collectives between ranks: a communicator, algorithms as plans, their bytes on the wire, data with known answers."""

from testbed.comm.collectives.algorithm_choice import (
    automatic,
    between_groups,
    pieces_for,
    traffic,
    wan_bytes,
)
from testbed.comm.collectives.async_work import CollectiveTimeout, Work
from testbed.comm.collectives.communicator import Communicator
from testbed.comm.collectives.data import Array
from testbed.comm.collectives.definitions import (
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
from testbed.comm.collectives.failure_scopes import Revoked
from testbed.comm.collectives.group import P2POp
from testbed.comm.collectives.operations import DTYPES, OPERATIONS, Reduction, dtype_named
from testbed.comm.collectives.plan import Plan, Round, Transfer, even, in_channels, reverse, runs_of, then
from testbed.comm.collectives.registry import (
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
from testbed.comm.collectives.rma_windows import Window
from testbed.comm.collectives.test_patterns import (
    count_wrong,
    count_wrong_among,
    count_wrong_output,
    expect,
    fill,
)
from testbed.comm.collectives.tuning import TuningTable

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
