"""The properties of paths in an idle network: hops, serialisation, delays, rates and losses. This package is pure."""

from testbed.net.paths.losses import LossyConnection
from testbed.net.paths.network import Ends, Members, Network, Path, network_of, payload_per_bit

__all__ = [
    "Ends",
    "LossyConnection",
    "Members",
    "Network",
    "Path",
    "network_of",
    "payload_per_bit",
]
