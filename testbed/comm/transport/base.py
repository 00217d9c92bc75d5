"""The transport interface: tagged messages between ranks, as requests that a progress loop completes.

Every transport implements `Transport`. One that supports communicators that outlive a lost peer also implements
`PeerEvents`: notes outside the message stream, and callbacks when a peer is lost or comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from testbed.errors import TestbedError

Found = TypeVar("Found")

MAX_TAG = 2**63 - 1
CONTROL_TAG = 2**64 - 2  # reserved for layers between a rank and its transport
MAX_REASON_BYTES = 256  # limit of the reason that an aborting rank sends
MAX_NOTE_BYTES = 4096  # limit of a note


class TransportError(TestbedError):
    """An operation that the transport cannot perform, or a protocol violation by a peer.

    `during` names the operation in progress, such as "all_reduce #12 (all-gather, round 2 of 7)".
    """

    during = ""

    def during_operation(self, during: str) -> TransportError:
        """Return a copy of the error for one operation: an error of a connection fails many operations."""
        error = self.__class__.__new__(self.__class__)
        error.__dict__.update(self.__dict__)
        error.args = self.args
        error.during = during
        return error

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.during} on {message}" if self.during else message


class PeerLost(TransportError):
    """The peer is gone: it closed or reset its connection, broke the protocol, or aborted.

    `orderly` is set if the peer said goodbye after finishing its part. That is a failure only for operations that still
    wait for it.
    """

    def __init__(self, rank: int, peer: int, reason: str, orderly: bool = False) -> None:
        self.rank, self.peer, self.reason, self.orderly = rank, peer, reason, orderly
        super().__init__(f"rank {rank}: lost peer {peer}: {reason}")


class Aborted(TransportError):
    """This rank was aborted."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(f"rank {rank}: aborted: {reason}")


class TransportTimeout(TransportError, TimeoutError):
    """Peers did not respond in time."""

    def __init__(self, rank: int, peers: Iterable[int], what: str, timeout_s: float) -> None:
        self.rank, self.peers, self.timeout_s = rank, tuple(peers), timeout_s
        names = "peer " + ", ".join(map(str, self.peers))
        super().__init__(f"rank {rank}: {what} {names}: nothing within {timeout_s:g} s")


class TrafficClass(NamedTuple):
    """A priority class of traffic, for the network and for the rank itself. Each class has its own connections.

    Attributes:
        dscp: DSCP in the IP header of every packet, 0 to 63.
        priority: Socket priority (SO_PRIORITY), 0 to 6. A rank with several ready connections serves the highest
            first.
    """

    dscp: int = 0
    priority: int = 0


BEST_EFFORT = TrafficClass()


def check_traffic_class(traffic: TrafficClass) -> None:
    """Raise ValueError if packets or sockets cannot carry the class."""
    for name, value, limit in zip(TrafficClass._fields, traffic, (63, 6), strict=True):
        if not 0 <= value <= limit:
            raise ValueError(f"traffic class: {name}: got {value}, expected 0 to {limit}")


class Request:
    """One message to send or receive.

    `done` becomes true exactly once: when a send's buffer may be reused, when a receive's buffer is filled, or when
    `error` says why neither will happen. `on_done` is then called with the request, in the rank's thread, from inside
    `isend`, `irecv`, `progress` or `close`. It must not call back into the transport.
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
        """Mark the request as done (for transports)."""
        self.done = True
        on_done = self.on_done
        if on_done is not None:
            self.on_done = None
            on_done(self)

    def fail(self, error: TransportError) -> None:
        """Mark the request as failed (for transports)."""
        self.error = error
        self.complete()


@dataclass
class PeerCounters:
    """Traffic between this rank and one peer: whole messages, and the bytes of their payloads and headers.

    `bytes_copied` is the received payload that this process had to copy, because its buffer was not known, or not
    used, when the kernel delivered it.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    header_bytes_sent: int = 0
    header_bytes_received: int = 0
    bytes_copied: int = 0


class Transport(Protocol):
    """Messages between the ranks of one job. All calls to one transport come from one thread.

    A message goes to the oldest receive posted for its sender, tag and class. Messages of one sender, tag and class
    stay in order. The length of a message must equal the length of the receive's buffer. Tags are 0 to `MAX_TAG`.
    Buffers are contiguous views of bytes (format "B"), which the caller must not touch until the request is done.
    """

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """Counters per peer, for all ranks but this one."""

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC as last read by `progress`, in seconds: accurate enough for timeouts, and free.

        Under the virtual clock, reading the time is a system call of 15 us.
        """

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """Start sending a message.

        Args:
            peer: The receiving rank.
            tag: 0 to `MAX_TAG`.
            view: The payload.
            traffic: The class of traffic.

        Returns:
            The request. If the peer is lost, the request carries the error.

        Raises:
            ValueError: If the peer or the tag is invalid.
        """

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """Start receiving a message that the peer sends in the same class.

        Args, Returns and Raises are those of `isend`. A read-only view raises ValueError, too.
        """

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """Make progress, blocking for up to `timeout_s` seconds (None: forever). May return early, never much late."""

    def wake(self) -> None:
        """Make `progress` return soon. No other call is safe from other threads or from a signal handler."""

    def abort(self, reason: str) -> None:
        """Fail all requests and send the reason to the peers, as far as possible without blocking.

        Only `close` may follow.
        """

    def close(self) -> None:
        """Flush pending sends, say goodbye and release all resources, in bounded time. Idempotent."""


def unwrap_transport(transport: Transport, kind: type[Found]) -> Found | None:
    """Return the transport of type `kind`, found through the attribute `inner` of layers, or None."""
    found: Any = transport
    while not isinstance(found, kind):
        if not hasattr(found, "inner"):
            return None
        found = found.inner
    return found


def encode_reason(reason: str) -> bytes:
    """Encode the reason for an abort, to be sent to the peers."""
    return reason.encode()[:MAX_REASON_BYTES]


def describe_abort(data: bytes | bytearray) -> str:
    """Return a peer's reason for its abort as a sentence, made printable because the text is untrusted."""
    text = data[:MAX_REASON_BYTES].decode(errors="replace")
    return "it aborted: " + "".join(c if c.isprintable() else "?" for c in text)


def address_error(rank: int, size: int, peer: int, tag: int) -> ValueError:
    """Return the error for an invalid peer or tag."""
    if 0 <= tag <= MAX_TAG:
        expected = f"another rank of 0 to {size - 1}"
        return ValueError(f"rank {rank}: peer: got {peer}, expected {expected}")
    return ValueError(f"rank {rank}: tag: got {tag}, expected 0 to 2**63 - 1")


def check_writable(view: memoryview) -> None:
    """Raise ValueError if a receive buffer is read-only."""
    if view.readonly and view:
        raise ValueError("view: got read-only memory, expected a buffer to receive into")


def wait_all(transport: Transport, requests: Iterable[Request], timeout_s: float) -> None:
    """Make progress until all requests are done.

    Args:
        transport: The transport of the requests.
        requests: The requests to wait for.
        timeout_s: The limit, in seconds.

    Raises:
        TransportError: The first error of a request.
        TransportTimeout: If requests are not done in time; names the missing peers.
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
    """The optional part of a transport: notes, and callbacks for lost peers.

    A transport from a plug-in may lack it. Then only operations with a lost peer notice its loss. Neither callback may
    call back into the transport.

    Attributes:
        incarnations: The latest incarnation of each peer that said hello with a number above 0.
        on_note: Called with a peer and its note, from inside `progress`.
        on_peer_lost: Called once for each connection that ends without a goodbye, from inside any call.
    """

    incarnations: dict[int, int]
    on_note: OnNote | None
    on_peer_lost: OnPeerLost | None

    def send_note(self, peer: int, data: bytes) -> None:
        """Send a note of at most MAX_NOTE_BYTES to a peer, outside the message stream.

        Does nothing if the peer is lost.
        """

    def forget(self, peer: int) -> None:
        """Drop a lost peer, so that its next incarnation can connect. Requests for the old one fail."""


def find_peer_events(transport: Transport) -> PeerEvents | None:
    """Return the transport, or the one under its layers, that has `PeerEvents`; None if there is none."""
    return unwrap_transport(transport, PeerEvents)  # type: ignore[type-abstract]


class PeerCounterMap(Mapping[int, PeerCounters]):
    """Counters of all peers. Each is created on first access, since a rank talks to few of thousands of ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._made: dict[int, PeerCounters] = {}

    def __getitem__(self, peer: int) -> PeerCounters:
        """Return the counters of one peer. Raises KeyError for this rank and for ranks that do not exist."""
        found = self._made.get(peer)
        if found is None:
            if peer not in self:
                raise KeyError(peer)
            found = self._made[peer] = PeerCounters()
        return found

    def __contains__(self, peer: object) -> bool:
        return isinstance(peer, int) and 0 <= peer < self._size and peer != self._rank

    def __iter__(self) -> Iterator[int]:
        return (peer for peer in range(self._size) if peer != self._rank)

    def __len__(self) -> int:
        return self._size - 1


def buffer_address(view: memoryview) -> int:
    """Return the address of the first byte of a view, for the kernel or a NIC; 0 if it is empty.

    The caller must keep the view alive while the address is in use.
    """
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) if view else 0
