"""How ranks that know only rank 0's address come to know all others': through rank 0 alone, or round a ring.

"star": everybody tells rank 0 its address; rank 0 sends everybody all of them. Rank 0 handles 2 (n - 1) messages and
sends n - 1 tables of n entries: bytes grow as n^2 at one place. "ring_hybrid": rank 0 tells each only the address of
its next neighbour, and addresses go round the ring of neighbours: every rank sends n - 1 entries. After NCCLX's
NCCL_FASTINIT_MODE=ring_hybrid (arXiv:2510.20171).
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
    """Seconds that software takes, beside what it takes here. caller_s: rank 0, for each that calls.

    entry_s: any rank, for each address that goes round.
    """

    caller_s: float = 0.0
    entry_s: float = 0.0


NO_COSTS = BootstrapCosts()
_MIN_SLEEP_S = 0.5e-3  # together, so that addresses that come meanwhile are handled together, too


class _CostSleeper:
    """Software's time, paid by sleeping."""

    def __init__(self) -> None:
        self.owed_s = 0.0

    def owe(self, seconds: float) -> None:
        """Pay once it is worth while."""
        self.owed_s += seconds
        if self.owed_s >= _MIN_SLEEP_S:
            self.settle()

    def settle(self) -> None:
        """Pay all of it."""
        if self.owed_s > 0:
            time.sleep(self.owed_s)
            self.owed_s = 0.0


@dataclass
class BootstrapReport:
    """What finding each other cost one rank: seconds, connections made, messages and bytes, both ways."""

    method: str
    time_s: float = 0.0
    connections: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
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
    """The addresses of all ranks, in rank order, and what it cost this one.

    method: one of METHODS. master: where rank 0 listens meanwhile; `master_listener`: its socket, bound to it, if rank
    0 has one already. own: the address that the others are to know of this rank. token: the same for all ranks of the
    job; others are turned away. Raises TransportTimeout naming ranks that did not appear, TransportError.
    """
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    begun_s = time.monotonic()
    found = _Bootstrap(method, rank, size, master, own, token, begun_s + timeout_s, timeout_s, costs)
    addresses = found.run(master_listener) if size > 1 else Addresses.of([own])
    found.report.time_s = time.monotonic() - begun_s
    return addresses, found.report


class _Bootstrap:
    def __init__(
        self,
        method: str,
        rank: int,
        size: int,
        master: Address,
        own: Address,
        token: str,
        deadline_s: float,
        timeout_s: float,
        costs: BootstrapCosts,
    ) -> None:
        self.report = BootstrapReport(method)
        self.costs = costs
        self.debt = _CostSleeper()
        self.rank = rank
        self.size = size
        self.master = master
        self.own = own
        self.token = token
        self.deadline_s = deadline_s
        self.timeout_s = timeout_s
        self.ring = method == "ring_hybrid"

    def run(self, master_listener: socket.socket | None) -> Addresses:
        """All ranks' addresses."""
        found = self._found(master_listener)
        self.debt.settle()
        return found

    def _found(self, master_listener: socket.socket | None) -> Addresses:
        with contextlib.ExitStack() as stack:
            listener = None
            if self.ring:
                listener = stack.enter_context(open_listener((self.own[0], 0)))
            told = listener.getsockname() if listener is not None else self.own
            if self.rank == 0:
                entrance = stack.enter_context(master_listener or open_listener(self.master))
                callers = self._gather(entrance, stack)
                self.debt.settle()
                table = Addresses.of([told] + [callers[peer][1] for peer in range(1, self.size)])
                for peer, (sock, _) in callers.items():
                    answer = Addresses.of([table[(peer + 1) % self.size]]) if self.ring else table
                    self._send(sock, answer.packed)
                following = table[1]
            else:
                sock = stack.enter_context(self._dial(self.master, 0))
                self._send(sock, self._hello(0) + Addresses.of([told]).packed)
                count = 1 if self.ring else self.size
                table = Addresses(self._receive(sock, count * ENTRY_BYTES, "rank 0's answer", 0))
                following = table[0]
            if listener is None:
                return table
            return self._go_round(listener, following, stack)

    # ---- rank 0 meets everybody

    def _gather(
        self, entrance: socket.socket, stack: contextlib.ExitStack
    ) -> dict[int, tuple[socket.socket, Address]]:
        """Everybody's connection and address, as they come; strangers are turned away."""
        entrance.listen(self.size + _MAX_UNKNOWN_CALLERS)
        found: dict[int, tuple[socket.socket, Address]] = {}
        with selectors.DefaultSelector() as selector:
            entrance.setblocking(False)
            selector.register(entrance, selectors.EVENT_READ, bytearray())
            while len(found) < self.size - 1:
                left_s = self.deadline_s - time.monotonic()
                if left_s <= 0:
                    missing = [peer for peer in range(1, self.size) if peer not in found]
                    raise TransportTimeout(
                        self.rank, missing, "bootstrap: waiting to hear from", self.timeout_s
                    )
                for key, _ in selector.select(left_s):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock is entrance:
                        with contextlib.suppress(OSError):
                            caller, _ = entrance.accept()
                            stack.enter_context(caller)
                            caller.setblocking(False)
                            selector.register(caller, selectors.EVENT_READ, bytearray())
                        continue
                    heard = key.data
                    peer = self._hear(sock, heard)
                    if peer is None:
                        continue
                    selector.unregister(sock)
                    if peer <= 0 or peer in found:
                        sock.close()
                        continue
                    sock.setblocking(True)
                    found[peer] = (sock, Addresses(bytes(heard[HELLO_BYTES:]))[0])
                    self.debt.owe(self.costs.caller_s)
                    self.report.messages_received += 1
                    self.report.bytes_received += len(heard)
                    self.report.connections += 1
        return dict(sorted(found.items()))

    def _hear(self, sock: socket.socket, heard: bytearray) -> int | None:
        """More of a caller's first words: its rank once they are complete, -1 for a stranger, None until then."""
        wanted = HELLO_BYTES + ENTRY_BYTES
        try:
            data = sock.recv(wanted - len(heard))
        except BlockingIOError:
            return None
        except OSError:
            return -1
        heard += data
        if not data:
            return -1
        if len(heard) < wanted:
            return None
        try:
            peer = read_hello(bytes(heard[:HELLO_BYTES]), 0, self.size, self.token).sender
        except ValueError:
            return -1
        return peer

    # ---- round the ring

    def _go_round(
        self, listener: socket.socket, following: Address, stack: contextlib.ExitStack
    ) -> Addresses:
        """Every rank's own address goes round: each passes on what it hears, but what began with its follower."""
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        onward = stack.enter_context(self._dial(following, after))
        self._send(onward, self._hello(after) + Addresses.of([self.own]).packed)
        back = stack.enter_context(self._accept(listener, before))
        table = bytearray(self.size * ENTRY_BYTES)
        self._enter(table, self.rank, Addresses.of([self.own]).packed)
        left = self.size - 1
        source = before
        pending = b""
        while left:
            data = self._some(back, (left * ENTRY_BYTES) - len(pending), before)
            pending += data
            whole = len(pending) // ENTRY_BYTES
            entries, pending = pending[: whole * ENTRY_BYTES], pending[whole * ENTRY_BYTES :]
            # the follower knows its own: the last entry to come is not passed on
            passed = whole if left > whole else whole - 1
            if passed > 0:
                self._send(onward, entries[: passed * ENTRY_BYTES])
            for number in range(whole):
                entry = entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
                self._enter(table, source, entry)
                source = (source - 1) % self.size
            left -= whole
            self.debt.owe(whole * self.costs.entry_s)
        return Addresses(bytes(table))

    @staticmethod
    def _enter(table: bytearray, rank: int, entry: bytes) -> None:
        table[rank * ENTRY_BYTES : (rank + 1) * ENTRY_BYTES] = entry

    def _accept(self, listener: socket.socket, before: int) -> socket.socket:
        """The connection of the rank before; strangers are turned away."""
        while True:
            listener.settimeout(self._left(before))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                self._left(before)
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
        """A connection to a rank, which may not listen yet."""
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                sock = socket.create_connection(
                    address, timeout=self._left(peer), source_address=(self.own[0], 0)
                )
            except OSError:
                self._left(peer)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_RETRY_S)
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.report.connections += 1
            return sock

    def _left(self, peer: int) -> float:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TransportTimeout(self.rank, [peer], "bootstrap: waiting for", self.timeout_s)
        return left_s

    def _send(self, sock: socket.socket, data: bytes) -> None:
        sock.settimeout(self.timeout_s)
        try:
            sock.sendall(data)
        except OSError as error:
            raise TransportError(f"rank {self.rank}: bootstrap: a peer has gone: {error.strerror}") from None
        self.report.messages_sent += 1
        self.report.bytes_sent += len(data)

    def _receive(self, sock: socket.socket, count: int, what: str, peer: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._some(sock, count - len(data), peer, what)
        return data

    def _some(self, sock: socket.socket, most: int, peer: int, what: str = "addresses from") -> bytes:
        """Up to so many bytes, at least one."""
        sock.settimeout(self._left(peer))
        try:
            data = sock.recv(most)
        except TimeoutError:
            self._left(peer)
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
    """A socket that so many may call at once, and some strangers. TransportError."""
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
