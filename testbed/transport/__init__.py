"""Messages between ranks: TCP, and an in-memory network for tests, behind one interface."""

from testbed.transport.base import (
    MAX_TAG,
    PeerCounters,
    PeerLost,
    Request,
    Transport,
    TransportError,
    TransportTimeout,
    wait_all,
)
from testbed.transport.cost import CostedTransport
from testbed.transport.memory import MemoryNetwork, MemoryTransport
from testbed.transport.tcp import TcpTransport

__all__ = [
    "MAX_TAG",
    "CostedTransport",
    "MemoryNetwork",
    "MemoryTransport",
    "PeerCounters",
    "PeerLost",
    "Request",
    "TcpTransport",
    "Transport",
    "TransportError",
    "TransportTimeout",
    "wait_all",
]
