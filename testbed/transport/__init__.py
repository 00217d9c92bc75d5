"""Transport: tagged messages between the ranks of a job, over TCP or in memory."""

from testbed.transport.base import Matcher, PeerCounters, PeerLostError, Request, Transport, TransportError
from testbed.transport.memory import MemoryNetwork, MemoryTransport
from testbed.transport.tcp import TcpTransport

__all__ = [
    "Matcher",
    "MemoryNetwork",
    "MemoryTransport",
    "PeerCounters",
    "PeerLostError",
    "Request",
    "TcpTransport",
    "Transport",
    "TransportError",
]
