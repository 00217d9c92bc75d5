"""Messages announced by their receivers, and received in place."""

from __future__ import annotations

from collections import deque

from testbed.comm.transport.base import BEST_EFFORT, Request, TrafficClass, Transport, TransportError
from testbed.comm.transport.layers import MAX_PENDING_NOTES, Layer, PairKey
from testbed.comm.transport.protocols.base import PROTOCOLS, MessageProtocol


class RendezvousTransport(Layer):
    """A receive is announced to the sender, which sends then: every message is received in place, nothing is copied.

    As NCCLX's zero-copy transfers do with their one control message. A receive that is posted early costs nothing; a
    send that has to wait for one costs a round trip less what is left of it.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._announced: dict[PairKey, dict[int, int]] = {}  # how many receives by tag wait for a send
        self._waiting: dict[PairKey, dict[int, deque[Request]]] = {}  # sends that wait for a receive

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport; done only after the peer has asked for it."""
        self._check(peer, tag)
        line = (peer, traffic)
        request = Request("send", peer, tag, view)
        error = self._listen(line)
        self._catch_up()
        announced = self._announced.setdefault(line, {})
        if announced.get(tag):
            announced[tag] -= 1
            if not announced[tag]:
                del announced[tag]
            self._end_as(request, self.inner.isend(peer, tag, view, traffic))
            self._catch_up()
        elif error is not None:
            request.fail(error)
        else:
            self._waiting.setdefault(line, {}).setdefault(tag, deque()).append(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check(peer, tag)
        request = self.inner.irecv(peer, tag, view, traffic)
        if not request.done:
            self._note((peer, traffic), tag, len(view))
        return request

    @property
    def unfinished(self) -> bool:
        """See Layer."""
        return any(self._waiting.values())

    def on_note(self, line: PairKey, tag: int, number: int) -> None:
        """A receive of this tag has been posted."""
        waiting = self._waiting.get(line, {})
        queue = waiting.get(tag)
        if queue is None:
            announced = self._announced.setdefault(line, {})
            if len(announced) < MAX_PENDING_NOTES:
                announced[tag] = announced.get(tag, 0) + 1
            return
        request = queue.popleft()
        if not queue:
            del waiting[tag]
        self._end_as(request, self.inner.isend(line[0], tag, request.view, line[1]))

    def forget(self, peer: int) -> None:
        """See Layer."""
        super().forget(peer)
        for line in [line for line in self._announced if line[0] == peer]:
            del self._announced[line]

    def on_lost(self, line: PairKey, error: TransportError) -> None:
        """Nobody will ask for what waits."""
        for queue in self._waiting.pop(line, {}).values():
            for request in queue:
                request.fail(error)


@PROTOCOLS.register("rendezvous")
class Rendezvous(MessageProtocol):
    """A message goes out when its receive was announced, straight into it."""

    modelled = True
    registers = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """See RendezvousTransport."""
        return RendezvousTransport(transport)
