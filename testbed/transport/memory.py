"""A network inside one process, for tests: one transport per rank, driven by a thread each or all by one thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Literal

from testbed.transport.base import (
    MAX_TAG,
    PeerCounters,
    PeerLost,
    Request,
    TransportError,
    address_error,
    check_writable,
)
from testbed.transport.mailbox import Mailbox, wrong_length

_CLOSED = -1  # instead of a tag: the sender has closed


class MemoryNetwork:
    """`size` ranks; `transports[r]` is rank r's. Sending copies the message and is done at once."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1")
        self.transports = tuple(MemoryTransport(self, rank, size) for rank in range(size))


class MemoryTransport:
    """One rank's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.now_s = time.monotonic()
        self.counters = {peer: PeerCounters() for peer in range(size) if peer != rank}
        self._network = network
        self._mailboxes = {peer: Mailbox() for peer in self.counters}
        self._lost: dict[int, TransportError] = {}
        self._closed = False
        self._arrived: deque[tuple[int, int, bytes]] = deque()  # other ranks' threads append here
        self._news = threading.Condition()

    def isend(self, peer: int, tag: int, view: memoryview) -> Request:
        """See Transport."""
        request = self._request("send", peer, tag, view)
        if peer in self._lost:
            request.fail(self._lost[peer])
            return request
        counters = self.counters[peer]
        counters.messages_sent += 1
        counters.bytes_sent += len(view)
        self._network.transports[peer]._deliver(self.rank, tag, bytes(view))
        request.complete()
        return request

    def irecv(self, peer: int, tag: int, view: memoryview) -> Request:
        """See Transport."""
        request = self._request("recv", peer, tag, view)
        check_writable(view)
        staged = self._mailboxes[peer].take_staged(tag)
        if staged is not None:
            self._hand_over(request, staged.view)
        elif peer in self._lost:
            request.fail(self._lost[peer])
        else:
            self._mailboxes[peer].post(request)
        return request

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        with self._news:
            if not self._arrived and timeout_s != 0.0:
                self._news.wait(timeout_s)
        self.now_s = time.monotonic()
        while self._arrived:
            peer, tag, payload = self._arrived.popleft()
            if tag == _CLOSED:
                self._lose(peer, "it closed its end")
                continue
            counters = self.counters[peer]
            counters.messages_received += 1
            counters.bytes_received += len(payload)
            request = self._mailboxes[peer].take_posted(tag)
            if request is not None:
                self._hand_over(request, memoryview(payload))
            else:
                self._mailboxes[peer].stage(tag, len(payload)).view[:] = payload

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        for peer in self.counters:
            self._network.transports[peer]._deliver(self.rank, _CLOSED, b"")
            self._lose(peer, "this rank has closed its transport")

    def _request(self, kind: Literal["send", "recv"], peer: int, tag: int, view: memoryview) -> Request:
        if peer not in self.counters or not 0 <= tag <= MAX_TAG:
            raise address_error(self, peer, tag)
        return Request(kind, peer, tag, view)

    def _deliver(self, sender: int, tag: int, payload: bytes) -> None:
        with self._news:
            self._arrived.append((sender, tag, payload))
            self._news.notify()

    def _hand_over(self, request: Request, payload: memoryview) -> None:
        if len(payload) != len(request.view):
            request.fail(wrong_length(self.rank, request.peer, request.tag, len(payload), len(request.view)))
            return
        if payload:
            request.view[:] = payload
        request.complete()

    def _lose(self, peer: int, reason: str) -> None:
        error = self._lost.setdefault(peer, PeerLost(self.rank, peer, reason))
        self._mailboxes[peer].fail(error)
