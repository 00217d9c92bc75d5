"""An in-process network for tests: one transport per rank, each driven by its own thread, or all by one thread."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from typing import Literal

from testbed.comm.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    MAX_TAG,
    OnNote,
    OnPeerLost,
    PeerCounters,
    PeerLost,
    Request,
    TrafficClass,
    address_error,
    check_traffic_class,
    check_writable,
    describe_abort,
    encode_reason,
)
from testbed.comm.transport.mailbox import Mailbox, wrong_length
from testbed.comm.transport.onesided import ExposedWindows, is_one_sided, is_put

_CLOSED = -1  # instead of a tag: the sender has closed; the payload is the reason
_WAKE = -2  # no message: makes `progress` return
_NOTE = -3  # a note


class MemoryNetwork:
    """A network of `size` ranks; `transports[r]` is rank r's. A send copies the message and is done at once."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1")
        self.transports = [MemoryTransport(self, rank, size) for rank in range(size)]


class MemoryTransport:
    """One rank's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.now_s = time.monotonic()
        self.counters = {peer: PeerCounters() for peer in range(size) if peer != rank}
        self._network = network
        self._mailboxes: defaultdict[tuple[int, TrafficClass], Mailbox] = defaultdict(Mailbox)
        self._lost: dict[int, PeerLost] = {}
        self._closed = False
        self.exposed = ExposedWindows()
        self._arrived: deque[tuple[int, int, TrafficClass, bytes]] = (
            deque()
        )  # appended by other ranks' threads
        self._condition = threading.Condition()
        self.incarnations: dict[int, int] = {}  # this network has no hellos
        self.on_note: OnNote | None = None
        self.on_peer_lost: OnPeerLost | None = None

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        request = self._request("send", peer, tag, view, traffic)
        if peer in self._lost:
            request.fail(self._lost[peer])
            return request
        counters = self.counters[peer]
        counters.messages_sent += 1
        counters.bytes_sent += len(view)
        self._network.transports[peer]._deliver(self.rank, tag, traffic, bytes(view))
        request.complete()
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        request = self._request("recv", peer, tag, view, traffic)
        if is_put(tag):
            raise address_error(self.rank, self.size, peer, tag)
        check_writable(view)
        mailbox = self._mailboxes[peer, traffic]
        staged = mailbox.take_staged(tag)
        if staged is not None:
            self.counters[peer].bytes_copied += len(staged.view)
            self._hand_over(request, staged.view)
        elif peer in self._lost:
            request.fail(self._lost[peer])
        else:
            mailbox.posted.put(request.tag, request)
        return request

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        with self._condition:
            if not self._arrived and timeout_s != 0.0:
                self._condition.wait(timeout_s)
        self.now_s = time.monotonic()
        while self._arrived:
            peer, tag, traffic, payload = self._arrived.popleft()
            if tag == _WAKE:
                continue
            if tag == _NOTE:
                if self.on_note is not None:
                    self.on_note(peer, payload)
                continue
            if tag == _CLOSED:
                self._lose(peer, describe_abort(payload) if payload else "it closed its end", not payload)
                continue
            if is_put(tag):
                request = self.exposed.place(peer, tag, len(payload))
                if isinstance(request, str):
                    self._lose(peer, request)
                    continue
                self._count(peer, payload)
                self._hand_over(request, memoryview(payload))
                continue
            self._count(peer, payload)
            mailbox = self._mailboxes[peer, traffic]
            posted = mailbox.posted.take(tag)
            if posted is not None:
                self._hand_over(posted, memoryview(payload))
            else:
                mailbox.stage(tag, len(payload)).view[:] = payload

    def wake(self) -> None:
        """See Transport."""
        self._deliver(self.rank, _WAKE, BEST_EFFORT, b"")

    def abort(self, reason: str) -> None:
        """See Transport."""
        self._end(encode_reason(reason), "this rank has aborted")

    def close(self) -> None:
        """See Transport."""
        self._end(b"", "this rank has closed its transport")

    def _end(self, peers_reason: bytes, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self.on_peer_lost = None  # the caller knows already
        for peer in self.counters:
            self._network.transports[peer]._deliver(self.rank, _CLOSED, BEST_EFFORT, peers_reason)
            self._lose(peer, reason)

    def _request(
        self, kind: Literal["send", "recv"], peer: int, tag: int, view: memoryview, traffic: TrafficClass
    ) -> Request:
        if peer not in self.counters or not (0 <= tag <= MAX_TAG or tag == CONTROL_TAG or is_one_sided(tag)):
            raise address_error(self.rank, self.size, peer, tag)
        check_traffic_class(traffic)
        return Request(kind, peer, tag, view)

    def _deliver(self, sender: int, tag: int, traffic: TrafficClass, payload: bytes) -> None:
        with self._condition:
            self._arrived.append((sender, tag, traffic, payload))
            self._condition.notify()

    def _count(self, peer: int, payload: bytes) -> None:
        counters = self.counters[peer]
        counters.messages_received += 1
        counters.bytes_received += len(payload)

    def _hand_over(self, request: Request, payload: memoryview) -> None:
        if len(payload) != len(request.view):
            request.fail(wrong_length(self.rank, request.peer, request.tag, len(payload), len(request.view)))
            return
        if payload:
            request.view[:] = payload
        request.complete()

    def send_note(self, peer: int, data: bytes) -> None:
        """See PeerEvents."""
        if peer not in self._lost:
            self._network.transports[peer]._deliver(self.rank, _NOTE, BEST_EFFORT, data)

    def forget(self, peer: int) -> None:
        """See PeerEvents."""
        on_peer_lost, self.on_peer_lost = self.on_peer_lost, None
        self._lose(peer, "this rank dropped it")
        self.on_peer_lost = on_peer_lost
        del self._lost[peer]
        for pair_key in [pair_key for pair_key in self._mailboxes if pair_key[0] == peer]:
            del self._mailboxes[pair_key]

    def _lose(self, peer: int, reason: str, orderly: bool = False) -> None:
        new = peer not in self._lost
        error = self._lost.setdefault(peer, PeerLost(self.rank, peer, reason, orderly))
        for (other, _), mailbox in self._mailboxes.items():
            if other == peer:
                mailbox.fail(error)
        if new and not orderly and self.on_peer_lost is not None:
            self.on_peer_lost(error)
