"""How messages are handed over, on top of any transport: at once, announced and in place, or copied through a window.

Without a layer, a transport is eager: a message goes out at once; it is received in place where its receive was posted
in time, else staged and copied.
"""

from __future__ import annotations

from testbed.transport.base import Transport
from testbed.transport.rendezvous import RendezvousTransport
from testbed.transport.staged import StagedTransport

PROTOCOLS = ("eager", "rendezvous", "staged")


def with_protocol(transport: Transport, protocol: str) -> Transport:
    """The transport, with messages handed over in this way. ValueError for others than `PROTOCOLS`."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol: got {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if protocol == "rendezvous":
        return RendezvousTransport(transport)
    return StagedTransport(transport) if protocol == "staged" else transport
