"""The rendezvous protocol: receivers announce their buffers, and messages are received in place."""

from __future__ import annotations

from collections import Counter, defaultdict

from testbed.comm.transport.base import BEST_EFFORT, Request, TrafficClass, Transport, TransportError
from testbed.comm.transport.layers import MAX_PENDING_NOTES, Layer, PairKey
from testbed.comm.transport.mailbox import TagQueues
from testbed.comm.transport.protocols import PROTOCOLS, MessageProtocol


class RendezvousTransport(Layer):
    """Announces receives to the sender, which only then sends: messages are received in place, without copies.

    It is modelled on NCCLX's zero-copy transfers, which have one control message. A receive that is posted early costs
    nothing. A send that has to wait for its receive costs up to a round trip.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._announced: defaultdict[PairKey, Counter[int]] = defaultdict(
            Counter
        )  # announced receives without a send, by tag
        # sends without an announced receive
        self._waiting: defaultdict[PairKey, TagQueues[Request]] = defaultdict(TagQueues)

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport. Done only after the peer has asked for the message."""
        self._check_address(peer, tag)
        pair = (peer, traffic)
        request = Request("send", peer, tag, view)
        error = self._listen_for_notes(pair)
        self._run_deferred()
        announced = self._announced[pair]
        if announced[tag]:
            announced[tag] -= 1
            if not announced[tag]:
                del announced[tag]
            self._complete_with(request, self.inner.isend(peer, tag, view, traffic))
            self._run_deferred()
        elif error is not None:
            request.fail(error)
        else:
            self._waiting[pair].put(tag, request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check_address(peer, tag)
        request = self.inner.irecv(peer, tag, view, traffic)
        if not request.done:
            self._send_note((peer, traffic), tag, len(view))
        return request

    @property
    def has_waiting_sends(self) -> bool:
        """See Layer."""
        return any(self._waiting.values())

    def on_note(self, pair: PairKey, tag: int, number: int) -> None:
        """Handle the peer's announcement of a receive with this tag."""
        request = self._waiting[pair].take(tag)
        if request is not None:
            self._complete_with(request, self.inner.isend(pair[0], tag, request.view, pair[1]))
        elif len(self._announced[pair]) < MAX_PENDING_NOTES:
            self._announced[pair][tag] += 1

    def forget(self, peer: int) -> None:
        """See Layer."""
        super().forget(peer)
        for pair in [pair for pair in self._announced if pair[0] == peer]:
            del self._announced[pair]

    def on_lost(self, pair: PairKey, error: TransportError) -> None:
        """Fail waiting sends: nobody will ask for them."""
        for queue in self._waiting.pop(pair, TagQueues()).values():
            for request in queue:
                request.fail(error)


@PROTOCOLS.register("rendezvous")
class Rendezvous(MessageProtocol):
    """Sends a message once its receive is announced, straight into the receiver's buffer."""

    modelled = True
    registers = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """See RendezvousTransport."""
        return RendezvousTransport(transport)
