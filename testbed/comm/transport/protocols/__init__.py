"""Message protocols on top of any transport: eager, rendezvous (in place), or staged (copied through slots).

Each registers under its name in its own module. A transport without a layer is eager.
"""

from testbed.comm.transport.protocols.base import PROTOCOLS, MessageProtocol, with_protocol

__all__ = ["PROTOCOLS", "MessageProtocol", "with_protocol"]
