"""Messages that go out at once, and are received in place where their receive was posted in time, else copied."""

from __future__ import annotations

from testbed.comm.transport.base import Transport
from testbed.comm.transport.protocols.base import PROTOCOLS, MessageProtocol


@PROTOCOLS.register("eager")
class Eager(MessageProtocol):
    """What transports do by themselves."""

    modelled = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """The transport itself."""
        return transport
