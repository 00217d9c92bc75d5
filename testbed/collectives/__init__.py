"""Collectives between ranks: a communicator, its algorithms, their bytes on the wire, data with known answers."""

from testbed.collectives.check import count_wrong, fill
from testbed.collectives.communicator import ALGORITHMS, DTYPES, CollectiveTimeout, Communicator, Work
from testbed.collectives.formulas import (
    all_gather_traffic,
    between_groups,
    broadcast_traffic,
    reduce_scatter_traffic,
    traffic,
    wan_bytes,
)

__all__ = [
    "ALGORITHMS",
    "DTYPES",
    "CollectiveTimeout",
    "Communicator",
    "Work",
    "all_gather_traffic",
    "between_groups",
    "broadcast_traffic",
    "count_wrong",
    "fill",
    "reduce_scatter_traffic",
    "traffic",
    "wan_bytes",
]
