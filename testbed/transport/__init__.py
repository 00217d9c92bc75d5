"""Messages between ranks: TCP, and an in-memory network for tests, behind one interface."""

from testbed.transport.base import (
    BEST_EFFORT,
    MAX_TAG,
    Aborted,
    PeerCounters,
    PeerLost,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    TransportTimeout,
    wait_all,
)
from testbed.transport.channels import StripeSettings
from testbed.transport.cost import CostedTransport
from testbed.transport.memory import MemoryNetwork, MemoryTransport
from testbed.transport.protocols import PROTOCOLS, with_protocol
from testbed.transport.rendezvous import RendezvousTransport
from testbed.transport.sockets import MeshSettings, SocketSettings
from testbed.transport.staged import StagedTransport
from testbed.transport.striped import StripedTransport
from testbed.transport.tcp import TcpTransport

__all__ = [
    "BEST_EFFORT",
    "MAX_TAG",
    "PROTOCOLS",
    "Aborted",
    "CostedTransport",
    "MemoryNetwork",
    "MemoryTransport",
    "MeshSettings",
    "PeerCounters",
    "PeerLost",
    "RendezvousTransport",
    "Request",
    "SocketSettings",
    "StagedTransport",
    "StripeSettings",
    "StripedTransport",
    "TcpTransport",
    "TrafficClass",
    "Transport",
    "TransportError",
    "TransportTimeout",
    "wait_all",
    "with_protocol",
]
