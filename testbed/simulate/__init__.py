"""A model of ranks and network: what a job's plan takes, and whether it comes to its end, before anything is built."""

from testbed.simulate.network import Network, Path, network_of
from testbed.simulate.simulation import Stuck, Timeline, simulate

__all__ = ["Network", "Path", "Stuck", "Timeline", "network_of", "simulate"]
