"""Collectives: communicator, algorithms, their byte formulas, and the exact-answer check."""

from testbed.collectives.check import count_wrong, fill
from testbed.collectives.communicator import CollectiveError, CollectiveTimeoutError, Communicator, Work
from testbed.collectives.formulas import across_buildings, traffic, wan_bytes

__all__ = [
    "CollectiveError",
    "CollectiveTimeoutError",
    "Communicator",
    "Work",
    "across_buildings",
    "count_wrong",
    "fill",
    "traffic",
    "wan_bytes",
]
