"""What every transport offers: tagged messages between ranks, as requests that a progress loop completes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from testbed.errors import TestbedError

Below = TypeVar("Below")

MAX_TAG = 2**63 - 1
CONTROL_TAG = 2**64 - 2  # one more, for layers between a rank and its transport
MAX_REASON_BYTES = 256  # of what an aborting rank tells its peers
MAX_NOTE_BYTES = 4096  # of what a rank tells a peer beside its messages


class TransportError(TestbedError):
    """Something that a transport cannot do, or a peer did against the rules.

    `during` names what was under way, such as "all_reduce #12 (all-gather, round 2 of 7)".
    """

    during = ""

    def during_operation(self, during: str) -> TransportError:
        """The same error as one operation met it: an error of a connection ends many."""
        error = self.__class__.__new__(self.__class__)
        error.__dict__.update(self.__dict__)
        error.args = self.args
        error.during = during
        return error

    def __str__(self) -> str:
        words = super().__str__()
        return f"{self.during} on {words}" if self.during else words


class PeerLost(TransportError):
    """The peer has gone: it closed or reset its connection, broke the protocol, or aborted.

    orderly: it said goodbye when it had done its part, which is a failure only for those who still wait for it.
    """

    def __init__(self, rank: int, peer: int, reason: str, orderly: bool = False) -> None:
        self.rank, self.peer, self.reason, self.orderly = rank, peer, reason, orderly
        super().__init__(f"rank {rank}: lost peer {peer}: {reason}")


class Aborted(TransportError):
    """This rank was told to give up."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(f"rank {rank}: aborted: {reason}")


class TransportTimeout(TransportError, TimeoutError):
    """Peers did not do their part in time."""

    def __init__(self, rank: int, peers: Iterable[int], what: str, timeout_s: float) -> None:
        self.rank, self.peers, self.timeout_s = rank, tuple(peers), timeout_s
        names = "peer " + ", ".join(map(str, self.peers))
        super().__init__(f"rank {rank}: {what} {names}: nothing within {timeout_s:g} s")


class TrafficClass(NamedTuple):
    """What the network, and a rank itself, should put first. Each class has connections of its own.

    dscp: 0 to 63, in every packet's IP header. priority: 0 to 6, of the socket (SO_PRIORITY); a rank that finds several
    connections ready tends to the highest first.
    """

    dscp: int = 0
    priority: int = 0


BEST_EFFORT = TrafficClass()


def check_traffic_class(traffic: TrafficClass) -> None:
    """Raise ValueError for what packets or sockets cannot carry."""
    for name, value, most in zip(TrafficClass._fields, traffic, (63, 6), strict=True):
        if not 0 <= value <= most:
            raise ValueError(f"traffic class: {name}: got {value}, expected 0 to {most}")


class Request:
    """One message to be sent or received.

    `done` turns true once: a send's buffer may be used again, a receive's buffer is filled, or `error` tells why
    neither will be. `on_done` is called with it at that moment, in the thread of the rank, from inside `isend`,
    `irecv`, `progress` or `close`; it must not call back into the transport.
    """

    __slots__ = ("done", "error", "kind", "on_done", "peer", "tag", "view")

    def __init__(self, kind: Literal["send", "recv"], peer: int, tag: int, view: memoryview) -> None:
        self.kind = kind
        self.peer = peer
        self.tag = tag
        self.view = view
        self.done = False
        self.error: TransportError | None = None
        self.on_done: Callable[[Request], None] | None = None

    def complete(self) -> None:
        """Mark as done (for transports)."""
        self.done = True
        on_done = self.on_done
        if on_done is not None:
            self.on_done = None
            on_done(self)

    def fail(self, error: TransportError) -> None:
        """Mark as done with an error (for transports)."""
        self.error = error
        self.complete()


@dataclass
class PeerCounters:
    """What has passed between this rank and one peer: whole messages, and the bytes of their payloads and headers.

    bytes_copied: received payload that this process has moved from one place to another, where its buffer was not
    known, or not used, when it came from the kernel.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    header_bytes_sent: int = 0
    header_bytes_received: int = 0
    bytes_copied: int = 0


class Transport(Protocol):
    """Messages between the ranks of one job. All calls of one transport come from one thread.

    A message goes to the oldest receive posted for its sender, tag and class; those of one sender, tag and class stay
    in order. Its length must equal the length of the receive's buffer. Tags are 0 to `MAX_TAG`. Buffers are contiguous
    views of bytes (format "B") and stay untouched by the caller until the request is done.
    """

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """Per peer (all ranks but this one)."""

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC as `progress` last found it: good enough for time-outs, and free.

        Under the virtual clock reading the time is a system call of 15 us, and was most of what a rank did.
        """

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """Begin to send; a lost peer shows as an error of the request. ValueError for a bad peer or tag."""

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """Begin to receive what the peer sends in the same class; errors as `isend`, and ValueError for a bad view."""

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """Do what can be done, waiting for it up to `timeout_s` (None: for ever); may return early, never much late."""

    def wake(self) -> None:
        """Have `progress` return soon. The one call that any thread, or a signal handler, may make."""

    def abort(self, reason: str) -> None:
        """Give up: fail all requests, tell the peers why, as far as that can be done at once; then only `close`."""

    def close(self) -> None:
        """Send out what was begun, say goodbye, release everything; bounded in time; further calls do nothing."""


def unwrap_transport(transport: Transport, kind: type[Below]) -> Below | None:
    """What of a kind a transport is, or has under its layers, as their attribute `inner`; None where there is none."""
    found: Any = transport
    while not isinstance(found, kind):
        if not hasattr(found, "inner"):
            return None
        found = found.inner
    return found


def encode_reason(reason: str) -> bytes:
    """Why this rank gives up, as it goes to the peers."""
    return reason.encode()[:MAX_REASON_BYTES]


def describe_abort(data: bytes | bytearray) -> str:
    """Why a peer says that it gave up: text from elsewhere, so made printable."""
    text = data[:MAX_REASON_BYTES].decode(errors="replace")
    return "it aborted: " + "".join(c if c.isprintable() else "?" for c in text)


def address_error(rank: int, size: int, peer: int, tag: int) -> ValueError:
    """What is wrong with a peer or a tag."""
    if 0 <= tag <= MAX_TAG:
        expected = f"another rank of 0 to {size - 1}"
        return ValueError(f"rank {rank}: peer: got {peer}, expected {expected}")
    return ValueError(f"rank {rank}: tag: got {tag}, expected 0 to 2**63 - 1")


def check_writable(view: memoryview) -> None:
    """Raise ValueError for a receive's buffer that cannot be written to."""
    if view.readonly and view:
        raise ValueError("view: got read-only memory, expected a buffer to receive into")


def wait_all(transport: Transport, requests: Iterable[Request], timeout_s: float) -> None:
    """Make progress until all requests are done.

    Raises the first error that a request has, or TransportTimeout naming the peers that are still waited for.
    """
    deadline_s = time.monotonic() + timeout_s
    pending = list(requests)
    transport.progress(0.0)
    while True:
        for request in pending:
            if request.error is not None:
                raise request.error
        pending = [request for request in pending if not request.done]
        if not pending:
            return
        left_s = deadline_s - transport.now_s
        if left_s <= 0:
            peers = sorted({request.peer for request in pending})
            kinds = " and ".join(sorted({request.kind for request in pending}))
            raise TransportTimeout(transport.rank, peers, f"{kinds} with", timeout_s)
        transport.progress(left_s)


OnNote = Callable[[int, bytes], None]
OnPeerLost = Callable[[PeerLost], None]


@runtime_checkable
class PeerEvents(Protocol):
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


def find_peer_events(transport: Transport) -> PeerEvents | None:
    """The transport itself, or what is under its layers; None where none does."""
    return unwrap_transport(transport, PeerEvents)  # type: ignore[type-abstract]


class PeerCounterMap(Mapping[int, PeerCounters]):
    """Of all ranks but this one; each is made when it is first asked for, since a rank of thousands talks to few."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._made: dict[int, PeerCounters] = {}

    def __getitem__(self, peer: int) -> PeerCounters:
        """Of one peer. KeyError for this rank and those that there are not."""
        found = self._made.get(peer)
        if found is None:
            if peer not in self:
                raise KeyError(peer)
            found = self._made[peer] = PeerCounters()
        return found

    def __contains__(self, peer: object) -> bool:
        """Whether it is a peer."""
        return isinstance(peer, int) and 0 <= peer < self._size and peer != self._rank

    def __iter__(self) -> Iterator[int]:
        """All peers, in rank order."""
        return (peer for peer in range(self._size) if peer != self._rank)

    def __len__(self) -> int:
        """How many peers there are."""
        return self._size - 1


def buffer_address(view: memoryview) -> int:
    """Of its first byte; 0 of nothing. Whoever uses it keeps the view."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) if view else 0
