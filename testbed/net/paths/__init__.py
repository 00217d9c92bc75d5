"""What an idle network's paths take: hops, frames held at each, delays, rates, losses. Pure figures of a topology."""

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
