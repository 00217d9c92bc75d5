"""A model of ranks and network: what a job's plan takes, and whether it comes to its end, before anything is built."""

from testbed.simulate.losses import Lossy
from testbed.simulate.network import Ends, Members, Network, Path, network_of, payload_per_bit
from testbed.simulate.simulation import Stuck, Timeline, simulate

__all__ = [
    "Ends",
    "Lossy",
    "Members",
    "Network",
    "Path",
    "Stuck",
    "Timeline",
    "network_of",
    "payload_per_bit",
    "simulate",
]
