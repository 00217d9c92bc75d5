"""How messages are handed over, on top of any transport: at once, announced and in place, or copied through a window.

Each registers under its name in the module where it stands. Without a layer, a transport is eager.
"""

from testbed.comm.transport.protocols.base import PROTOCOLS, MessageProtocol, with_protocol

__all__ = ["PROTOCOLS", "MessageProtocol", "with_protocol"]
