"""Collectives between ranks: a communicator, algorithms as plans, their bytes on the wire, data with known answers."""

from testbed.collectives.catalogue import (
    ALGORITHMS,
    AUTO,
    automatic,
    between_groups,
    pieces_for,
    traffic,
    wan_bytes,
)
from testbed.collectives.check import count_wrong, expect, fill
from testbed.collectives.communicator import Communicator
from testbed.collectives.data import Array
from testbed.collectives.messages import P2POp
from testbed.collectives.operations import DTYPES, OPERATIONS, dtype_named
from testbed.collectives.tuning import TuningTable
from testbed.collectives.work import CollectiveTimeout, Work

__all__ = [
    "ALGORITHMS",
    "AUTO",
    "DTYPES",
    "OPERATIONS",
    "Array",
    "CollectiveTimeout",
    "Communicator",
    "P2POp",
    "TuningTable",
    "Work",
    "automatic",
    "between_groups",
    "count_wrong",
    "dtype_named",
    "expect",
    "fill",
    "pieces_for",
    "traffic",
    "wan_bytes",
]
