"""The eager protocol: messages are sent at once, and received in place if their receive is posted in time.

Otherwise they are copied.
"""

from __future__ import annotations

from testbed.comm.transport.base import Transport
from testbed.comm.transport.protocols.base import PROTOCOLS, MessageProtocol


@PROTOCOLS.register("eager")
class Eager(MessageProtocol):
    """The behaviour of transports without a layer."""

    modelled = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """Return the transport itself."""
        return transport
