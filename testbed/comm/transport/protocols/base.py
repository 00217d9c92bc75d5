"""What a protocol is: a layer on top of a transport, under a name that scenarios use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from testbed.comm.transport.base import Transport
from testbed.comm.transport.host_costs import Slots
from testbed.plugins import Registry, derived_from


class MessageProtocol(ABC):
    """How a message gets from the sender's buffer into the receiver's."""

    modelled: ClassVar[bool] = False
    """Whether the model of a step knows what it costs; if not, predictions say so."""

    copies: ClassVar[bool] = False
    """Whether the device copies each byte at both ends: it costs time per byte, and computing some of its speed."""

    registers: ClassVar[bool] = False
    """Whether messages go straight from and into ranks' arrays, which have to be registered for that."""

    @staticmethod
    @abstractmethod
    def over(transport: Transport) -> Transport:
        """A transport that hands messages over in this way by means of another one."""

    @classmethod
    def through(cls, transport: Transport, slots: Slots) -> Transport:
        """The same, through these slots where it has any."""
        return cls.over(transport)


PROTOCOLS: Registry[type[MessageProtocol]] = Registry(
    "protocol", "testbed.comm.transport.protocols", "testbed.protocols", derived_from(MessageProtocol)
)
"""All that have a name. Each registers where it stands: `@PROTOCOLS.register("staged")`."""


def with_protocol(transport: Transport, protocol: str, slots: Slots | None = None) -> Transport:
    """The transport, with messages handed over in this way: a name, or FILE.py:NAME. PluginError for others."""
    return PROTOCOLS.find(protocol).through(transport, slots or Slots())
