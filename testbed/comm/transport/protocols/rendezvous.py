"""The rendezvous protocol: messages are announced by their receivers, and received in place."""

from __future__ import annotations

from collections import deque

from testbed.comm.transport.base import BEST_EFFORT, Request, TrafficClass, Transport, TransportError
from testbed.comm.transport.layers import MAX_PENDING_NOTES, Layer, PairKey
from testbed.comm.transport.protocols import PROTOCOLS, MessageProtocol


class RendezvousTransport(Layer):
    """Announces receives to the sender, which sends then: every message is received in place, nothing is copied.

    Like NCCLX's zero-copy transfers with their one control message. A receive that is posted early costs nothing. A
    send that has to wait for its receive costs up to a round trip.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._announced: dict[PairKey, dict[int, int]] = {}  # by tag, announced receives without a send
        self._waiting: dict[PairKey, dict[int, deque[Request]]] = {}  # sends without an announced receive

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport. Done only after the peer has asked for the message."""
        self._check_address(peer, tag)
        pair = (peer, traffic)
        request = Request("send", peer, tag, view)
        error = self._listen_for_notes(pair)
        self._run_deferred()
        announced = self._announced.setdefault(pair, {})
        if announced.get(tag):
            announced[tag] -= 1
            if not announced[tag]:
                del announced[tag]
            self._complete_with(request, self.inner.isend(peer, tag, view, traffic))
            self._run_deferred()
        elif error is not None:
            request.fail(error)
        else:
            self._waiting.setdefault(pair, {}).setdefault(tag, deque()).append(request)
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
        """Handle that the peer has posted a receive of this tag."""
        waiting = self._waiting.get(pair, {})
        queue = waiting.get(tag)
        if queue is None:
            announced = self._announced.setdefault(pair, {})
            if len(announced) < MAX_PENDING_NOTES:
                announced[tag] = announced.get(tag, 0) + 1
            return
        request = queue.popleft()
        if not queue:
            del waiting[tag]
        self._complete_with(request, self.inner.isend(pair[0], tag, request.view, pair[1]))

    def forget(self, peer: int) -> None:
        """See Layer."""
        super().forget(peer)
        for pair in [pair for pair in self._announced if pair[0] == peer]:
            del self._announced[pair]

    def on_lost(self, pair: PairKey, error: TransportError) -> None:
        """Fail waiting sends: nobody will ask for them."""
        for queue in self._waiting.pop(pair, {}).values():
            for request in queue:
                request.fail(error)


@PROTOCOLS.register("rendezvous")
class Rendezvous(MessageProtocol):
    """Sends a message when its receive was announced, straight into the receiver's buffer."""

    modelled = True
    registers = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """See RendezvousTransport."""
        return RendezvousTransport(transport)
