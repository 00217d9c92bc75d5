"""What a protocol is: a layer on top of a transport, under a name that scenarios use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from testbed.plugins import Registry, derived_from
from testbed.transport.base import Transport


class MessageProtocol(ABC):
    """How a message gets from the sender's buffer into the receiver's."""

    modelled: ClassVar[bool] = False
    """Whether the model of a step knows what it costs; if not, predictions say so."""

    @staticmethod
    @abstractmethod
    def over(transport: Transport) -> Transport:
        """A transport that hands messages over in this way by means of another one."""


PROTOCOLS: Registry[type[MessageProtocol]] = Registry(
    "protocol", "testbed.transport.protocols", "testbed.protocols", derived_from(MessageProtocol)
)
"""All that have a name. Each registers where it stands: `@PROTOCOLS.register("staged")`."""


def with_protocol(transport: Transport, protocol: str) -> Transport:
    """The transport, with messages handed over in this way: a name, or FILE.py:NAME. PluginError for others."""
    return PROTOCOLS.find(protocol).over(transport)
