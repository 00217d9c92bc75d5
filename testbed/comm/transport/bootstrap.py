"""Bootstrap: ranks that know only rank 0's address learn all addresses, through rank 0 alone or around a ring.

"star": every rank sends its address to rank 0, which sends all addresses to every rank. Rank 0 handles 2 (n - 1)
messages and sends n - 1 tables of n entries, so bytes grow as n^2 in one place. "ring_hybrid": rank 0 sends each rank
only the address of its next neighbour, and addresses go around the ring of neighbours, so every rank sends n - 1
entries. After NCCLX's NCCL_FASTINIT_MODE=ring_hybrid (arXiv:2510.20171).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from testbed.comm.transport.base import TransportError, TransportTimeout
from testbed.comm.transport.wire import (
    ENTRY_BYTES,
    HELLO_BYTES,
    Address,
    Addresses,
    ConnectionKey,
    make_hello,
    read_hello,
)

METHODS = ("star", "ring_hybrid")
_FIRST_RETRY_S, _LAST_RETRY_S = 0.005, 0.2
_MAX_UNKNOWN_CALLERS = 256


@dataclass(frozen=True)
class BootstrapCosts:
    """Emulated software time in seconds, on top of the real time.

    Attributes:
        caller_s: Time at rank 0 for each rank that connects.
        entry_s: Time at any rank for each address that passes through.
    """

    caller_s: float = 0.0
    entry_s: float = 0.0


NO_COSTS = BootstrapCosts()
_MIN_SLEEP_S = 0.5e-3  # short costs add up before the rank sleeps, so that it handles addresses in batches


@dataclass
class BootstrapReport:
    """The bootstrap's cost for one rank: seconds, connections made, messages and bytes in both directions."""

    method: str
    time_s: float = 0.0
    connections: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report, ready for JSON."""
        return asdict(self)


def bootstrap(
    method: str,
    rank: int,
    size: int,
    master: Address,
    own: Address,
    token: str,
    timeout_s: float = 30.0,
    master_listener: socket.socket | None = None,
    costs: BootstrapCosts = NO_COSTS,
) -> tuple[Addresses, BootstrapReport]:
    """Return the addresses of all ranks, in rank order, and the bootstrap's cost for this rank.

    Args:
        method: One of METHODS.
        rank: This rank.
        size: The number of ranks.
        master: The address on which rank 0 listens during the bootstrap.
        own: The address of this rank that the others are to use.
        token: The job's secret. Callers of another job are refused.
        timeout_s: The limit, in seconds.
        master_listener: A socket bound to `master`, if rank 0 has one already.
        costs: Emulated software time.

    Raises:
        TransportTimeout: If ranks do not appear; names them.
        TransportError: If a socket fails.
    """
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    begun_s = time.monotonic()
    exchange = _Exchange(method, rank, size, master, own, token, timeout_s, costs, begun_s + timeout_s)
    addresses = exchange.run(master_listener) if size > 1 else Addresses.of([own])
    exchange.report.time_s = time.monotonic() - begun_s
    return addresses, exchange.report


@dataclass
class _Exchange:
    """One rank's part; see `bootstrap` for the fields."""

    method: str
    rank: int
    size: int
    master: Address
    own: Address
    token: str
    timeout_s: float
    costs: BootstrapCosts
    deadline_s: float
    pending_s: float = 0.0  # software time not slept yet

    def __post_init__(self) -> None:
        self.report = BootstrapReport(self.method)

    def run(self, master_listener: socket.socket | None) -> Addresses:
        """Return the addresses of all ranks."""
        with contextlib.ExitStack() as stack:
            ring = None
            if self.method == "ring_hybrid":
                ring = stack.enter_context(open_listener((self.own[0], 0)))
            listening = self.own if ring is None else ring.getsockname()
            if self.rank == 0:
                listener_sock = stack.enter_context(master_listener or open_listener(self.master))
                callers = self._gather(listener_sock, stack)
                self._spend(0.0)
                table = Addresses.of([listening] + [callers[peer][1] for peer in range(1, self.size)])
                for peer, (sock, _) in callers.items():
                    answer = table if ring is None else Addresses.of([table[(peer + 1) % self.size]])
                    self._send(sock, answer.packed)
                next_address = table[1]
            else:
                sock = stack.enter_context(self._dial(self.master, 0))
                self._send(sock, self._hello(0) + Addresses.of([listening]).packed)
                count = self.size if ring is None else 1
                table = Addresses(self._receive(sock, count * ENTRY_BYTES, "rank 0's answer", 0))
                next_address = table[0]
            if ring is not None:
                table = self._exchange_ring(ring, next_address, stack)
        self._spend(0.0)
        return table

    def _spend(self, seconds: float, least_s: float = 0.0) -> None:
        """Add this software time; sleep once at least `least_s` have accumulated."""
        self.pending_s += seconds
        if self.pending_s > 0 and self.pending_s >= least_s:
            time.sleep(self.pending_s)
            self.pending_s = 0.0

    # ---- rank 0 collects addresses

    def _gather(
        self, listener_sock: socket.socket, stack: contextlib.ExitStack
    ) -> dict[int, tuple[socket.socket, Address]]:
        """Return every rank's connection and address. Unknown callers are refused."""
        listener_sock.listen(self.size + _MAX_UNKNOWN_CALLERS)
        callers: dict[int, tuple[socket.socket, Address]] = {}
        with selectors.DefaultSelector() as selector:
            listener_sock.setblocking(False)
            selector.register(listener_sock, selectors.EVENT_READ, bytearray())
            while len(callers) < self.size - 1:
                left_s = self.deadline_s - time.monotonic()
                if left_s <= 0:
                    missing = [peer for peer in range(1, self.size) if peer not in callers]
                    raise TransportTimeout(
                        self.rank, missing, "bootstrap: waiting to hear from", self.timeout_s
                    )
                for key, _ in selector.select(left_s):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock is listener_sock:
                        with contextlib.suppress(OSError):
                            caller, _ = listener_sock.accept()
                            stack.enter_context(caller)
                            caller.setblocking(False)
                            selector.register(caller, selectors.EVENT_READ, bytearray())
                        continue
                    received = key.data
                    peer = self._read_caller(sock, received)
                    if peer is None:
                        continue
                    selector.unregister(sock)
                    if peer <= 0 or peer in callers:
                        sock.close()
                        continue
                    sock.setblocking(True)
                    callers[peer] = (sock, Addresses(bytes(received[HELLO_BYTES:]))[0])
                    self._spend(self.costs.caller_s, _MIN_SLEEP_S)
                    self.report.messages_received += 1
                    self.report.bytes_received += len(received)
                    self.report.connections += 1
        return dict(sorted(callers.items()))

    def _read_caller(self, sock: socket.socket, received: bytearray) -> int | None:
        """Read more of a caller's hello: its rank once complete, -1 for an unknown caller, None before."""
        wanted = HELLO_BYTES + ENTRY_BYTES
        try:
            data = sock.recv(wanted - len(received))
        except BlockingIOError:
            return None
        except OSError:
            return -1
        received += data
        if not data:
            return -1
        if len(received) < wanted:
            return None
        try:
            return read_hello(bytes(received[:HELLO_BYTES]), 0, self.size, self.token).sender
        except ValueError:
            return -1

    # ---- around the ring

    def _exchange_ring(
        self, listener: socket.socket, next_address: Address, stack: contextlib.ExitStack
    ) -> Addresses:
        """Pass addresses around the ring: each rank forwards what it receives, except its successor's own address."""
        next_rank, previous_rank = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        next_sock = stack.enter_context(self._dial(next_address, next_rank))
        own = Addresses.of([self.own]).packed
        self._send(next_sock, self._hello(next_rank) + own)
        previous_sock = stack.enter_context(self._accept(listener, previous_rank))
        entries = bytearray(own)  # addresses of this rank, the previous one, the one before it, and so on
        whole, forwarded = self.size * ENTRY_BYTES, ENTRY_BYTES
        while len(entries) < whole:
            before = len(entries) // ENTRY_BYTES
            entries += self._receive_some(previous_sock, whole - len(entries), previous_rank)
            count = len(entries) // ENTRY_BYTES
            # the successor knows its own address: do not forward the last entry
            end = min(count, self.size - 1) * ENTRY_BYTES
            if end > forwarded:
                self._send(next_sock, bytes(entries[forwarded:end]))
                forwarded = end
            self._spend((count - before) * self.costs.entry_s, _MIN_SLEEP_S)
        starts = [(self.rank - rank) % self.size * ENTRY_BYTES for rank in range(self.size)]
        return Addresses(b"".join(entries[start : start + ENTRY_BYTES] for start in starts))

    def _accept(self, listener: socket.socket, before: int) -> socket.socket:
        """Return the connection of the previous rank. Unknown callers are refused."""
        while True:
            listener.settimeout(self._remaining_s(before))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                self._remaining_s(before)
                continue
            try:
                hello = self._receive(sock, HELLO_BYTES, "the hello of", before)
                sender = read_hello(hello, self.rank, self.size, self.token).sender
            except (ValueError, TransportError, OSError):
                sock.close()
                continue
            if sender == before:
                self.report.connections += 1
                return sock
            sock.close()

    # ---- sockets

    def _hello(self, peer: int) -> bytes:
        return make_hello(self.rank, peer, self.size, self.token, ConnectionKey())

    def _dial(self, address: Address, peer: int) -> socket.socket:
        """Connect to a rank, retrying while it does not listen yet."""
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                sock = socket.create_connection(
                    address, timeout=self._remaining_s(peer), source_address=(self.own[0], 0)
                )
            except OSError:
                self._remaining_s(peer)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_RETRY_S)
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.report.connections += 1
            return sock

    def _remaining_s(self, peer: int) -> float:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TransportTimeout(self.rank, [peer], "bootstrap: waiting for", self.timeout_s)
        return left_s

    def _send(self, sock: socket.socket, data: bytes) -> None:
        sock.settimeout(self.timeout_s)
        try:
            sock.sendall(data)
        except OSError as error:
            raise TransportError(
                f"rank {self.rank}: bootstrap: a peer closed its connection: {error.strerror}"
            ) from None
        self.report.messages_sent += 1
        self.report.bytes_sent += len(data)

    def _receive(self, sock: socket.socket, count: int, what: str, peer: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._receive_some(sock, count - len(data), peer, what)
        return data

    def _receive_some(
        self, sock: socket.socket, max_bytes: int, peer: int, what: str = "addresses from"
    ) -> bytes:
        """Receive up to `max_bytes` bytes; empty if none came in time."""
        sock.settimeout(self._remaining_s(peer))
        try:
            data = sock.recv(max_bytes)
        except TimeoutError:
            self._remaining_s(peer)
            return b""
        except OSError as error:
            raise TransportError(
                f"rank {self.rank}: bootstrap: {what} rank {peer}: {error.strerror}"
            ) from None
        if not data:
            raise TransportError(f"rank {self.rank}: bootstrap: {what} rank {peer}: it closed its end")
        self.report.messages_received += 1
        self.report.bytes_received += len(data)
        return data


def open_listener(address: Address, callers: int = 0) -> socket.socket:
    """Return a listening socket with a backlog for `callers` ranks and some unknown callers. Raises TransportError."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise TransportError(
            f"bootstrap: cannot listen on {address[0]}:{address[1]}: {error.strerror}"
        ) from None
    sock.listen(callers + _MAX_UNKNOWN_CALLERS)
    return sock
