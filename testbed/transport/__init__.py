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
from testbed.transport.kinds import TRANSPORTS, TransportKind
from testbed.transport.layers import Layer, Wrapper
from testbed.transport.memory import MemoryNetwork, MemoryTransport
from testbed.transport.protocols import PROTOCOLS, MessageProtocol, with_protocol
from testbed.transport.protocols.rendezvous import RendezvousTransport
from testbed.transport.protocols.staged import StagedTransport
from testbed.transport.sockets import MeshSettings, SocketSettings
from testbed.transport.software import OperationCosts, Registration, Slots, Software, operation_costs
from testbed.transport.striped import StripedTransport
from testbed.transport.tcp import TcpTransport

__all__ = [
    "BEST_EFFORT",
    "MAX_TAG",
    "PROTOCOLS",
    "TRANSPORTS",
    "Aborted",
    "CostedTransport",
    "Layer",
    "MemoryNetwork",
    "MemoryTransport",
    "MeshSettings",
    "MessageProtocol",
    "OperationCosts",
    "PeerCounters",
    "PeerLost",
    "Registration",
    "RendezvousTransport",
    "Request",
    "Slots",
    "SocketSettings",
    "Software",
    "StagedTransport",
    "StripeSettings",
    "StripedTransport",
    "TcpTransport",
    "TrafficClass",
    "Transport",
    "TransportError",
    "TransportKind",
    "TransportTimeout",
    "Wrapper",
    "operation_costs",
    "wait_all",
    "with_protocol",
]
