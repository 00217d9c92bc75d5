"""What transports tell of peers that are lost or come back, beside messages: for communicators that outlive a peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from testbed.comm.transport.base import PeerLost, Transport, beneath

OnNote = Callable[[int, bytes], None]
OnPeerLost = Callable[[PeerLost], None]


@runtime_checkable
class TellsOfPeers(Protocol):
    """A transport that has this; one of somebody else's may go without, and failures then stay with who meets them.

    incarnations: of peers, the latest that has said hello, where that was not the first. on_note: called with a peer
    and what it told, from inside `progress`. on_peer_lost: called once for each connection that ends without a goodbye,
    from inside any call. Neither may call back into the transport.
    """

    incarnations: dict[int, int]
    on_note: OnNote | None
    on_peer_lost: OnPeerLost | None

    def tell(self, peer: int, data: bytes) -> None:
        """Say something to a peer beside all messages, at most MOST_NOTE_BYTES; nothing happens where it is lost."""

    def forget(self, peer: int) -> None:
        """Let go of a lost peer, so that its next incarnation can be reached; what waits for the old one fails."""


def tells_of_peers(transport: Transport) -> TellsOfPeers | None:
    """The transport itself, or what is under its layers; None where none does."""
    return beneath(transport, TellsOfPeers)  # type: ignore[type-abstract]
