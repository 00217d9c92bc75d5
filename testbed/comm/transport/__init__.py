"""Tagged messages between ranks, over TCP, RDMA, UDP datagrams or an in-memory network, behind one interface."""

from testbed.comm.transport.base import (
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
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.host_costs import (
    CostedTransport,
    OperationCosts,
    Registration,
    Slots,
    Software,
    operation_costs,
)
from testbed.comm.transport.in_memory import MemoryNetwork
from testbed.comm.transport.kinds import TRANSPORTS, TransportKind
from testbed.comm.transport.layers import Layer, Wrapper
from testbed.comm.transport.protocols import PROTOCOLS, MessageProtocol, with_protocol
from testbed.comm.transport.protocols.rendezvous import RendezvousTransport
from testbed.comm.transport.protocols.staged import StagedTransport
from testbed.comm.transport.sockets import MeshSettings, SocketSettings
from testbed.comm.transport.striped import StripedTransport
from testbed.comm.transport.tcp import TcpTransport

__all__ = [
    "BEST_EFFORT",
    "MAX_TAG",
    "PROTOCOLS",
    "TRANSPORTS",
    "Aborted",
    "CostedTransport",
    "Layer",
    "MemoryNetwork",
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
