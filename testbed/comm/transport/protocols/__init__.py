"""Message protocols on top of any transport: eager, rendezvous (in place), or staged (copied through slots).

Each registers under its name in its own module. A transport without a layer is eager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from testbed.comm.transport.base import Transport
from testbed.comm.transport.host_costs import Slots
from testbed.plugins import Registry, derived_from


class MessageProtocol(ABC):
    """A protocol that moves a message from the sender's buffer into the receiver's."""

    modelled: ClassVar[bool] = False
    """Whether the model of a step knows its cost; if not, predictions say so."""

    copies: ClassVar[bool] = False
    """Whether the device copies each byte at both ends. Copying costs time per byte and slows computation."""

    registers: ClassVar[bool] = False
    """Whether messages go directly from and into ranks' arrays, which must be registered."""

    @staticmethod
    @abstractmethod
    def over(transport: Transport) -> Transport:
        """Return a transport with this protocol, on top of another one."""

    @classmethod
    def through(cls, transport: Transport, slots: Slots) -> Transport:
        """Return a transport with this protocol and these slots, if it has any."""
        return cls.over(transport)


PROTOCOLS: Registry[type[MessageProtocol]] = Registry(
    "protocol", "testbed.comm.transport.protocols", "testbed.protocols", derived_from(MessageProtocol)
)
"""All message protocols by name. Each registers itself in its module: `@PROTOCOLS.register("staged")`."""


@PROTOCOLS.register("eager")
class Eager(MessageProtocol):
    """Messages are sent at once, and received in place if their receive is posted in time, otherwise copied."""

    modelled = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """Return the transport itself."""
        return transport


def with_protocol(transport: Transport, protocol: str, slots: Slots | None = None) -> Transport:
    """Return the transport with this protocol: a name, or FILE.py:NAME. Raises PluginError if it is unknown."""
    return PROTOCOLS.find(protocol).through(transport, slots or Slots())
