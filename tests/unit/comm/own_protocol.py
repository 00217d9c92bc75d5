"""A protocol of one's own, of which the model knows nothing."""

from __future__ import annotations

from testbed.comm.transport import Transport
from testbed.comm.transport.protocols import MessageProtocol


class Own(MessageProtocol):
    """As if there were none."""

    @staticmethod
    def over(transport: Transport) -> Transport:
        """The same."""
        return transport
