"""TCP between ranks: one connection per pair, non-blocking, driven by one epoll loop.

Every message is a header (tag, payload length) and its payload. A payload whose receive is posted goes straight into
the posted buffer; one that comes early is kept until it is asked for. The higher rank of a pair connects to the lower.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from testbed.transport.base import Matcher, PeerCounters, PeerLostError, Request, TransportError, as_bytes

HEADER = struct.Struct("!QQ")
HELLO = struct.Struct("!8s32sII")
MAGIC = b"testbed1"
MAX_STAGED_BYTES = 1 << 30
BYTES_AT_ONCE = 1 << 20  # from one connection before the others get their turn
CONNECT_RETRY_S = 0.02
HELLO_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
# struct tcp_info: u32 fields begin after 8 bytes; these are their numbers (linux/tcp.h)
_TCP_INFO_U32 = {"rtt_us": 15, "retransmits": 23}
_TCP_INFO_BYTES_ACKED = 120


class _Connection:
    """One pair's socket with what is being sent and received on it."""

    def __init__(self, rank: int, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.socket = connection
        self.matcher = Matcher(rank, peer)
        self.counters = PeerCounters()
        self.sending: deque[tuple[list[memoryview], Request]] = deque()
        self.wants_to_write = False
        self.header = bytearray(HEADER.size)
        self.header_view = memoryview(self.header)
        self.header_got = 0
        self.payload: memoryview | None = None
        self.payload_got = 0
        self.request: Request | None = None
        self.staging: bytearray | None = None
        self.tag = 0
        self.lost: PeerLostError | None = None


class TcpTransport:
    """Rank `rank`'s end of a full mesh. `addresses[i]` is where rank i listens; all ranks call this at about one time.

    `token` (up to 32 characters) keeps strangers and other runs out. `congestion_control` is set on every socket and
    read back. `source_port(rank, peer)` fixes the local port of outgoing connections, so that the network hashes flows
    alike in every run. TransportError when a peer cannot be reached within `bootstrap_timeout_s`.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        *,
        token: str = "",
        congestion_control: str | None = None,
        source_port: Callable[[int, int], int] | None = None,
        bootstrap_timeout_s: float = 30.0,
    ) -> None:
        self.rank = rank
        self.size = len(addresses)
        self._addresses = addresses
        self._token = token.encode()[:32]
        self._congestion_control = congestion_control
        self._source_port = source_port
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._by_descriptor: dict[int, _Connection] = {}
        try:
            self._connect_all(time.monotonic() + bootstrap_timeout_s, bootstrap_timeout_s)
        except BaseException:
            self._drop_all()
            raise
        self.counters = {peer: connection.counters for peer, connection in sorted(self._connections.items())}

    # -- bootstrap -------------------------------------------------------------------------------------------------

    def _connect_all(self, deadline: float, timeout_s: float) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._set_congestion_control(listener)  # accepted sockets inherit it
            listener.bind(self._addresses[self.rank])
            listener.listen(self.size)
            for peer in range(self.rank):
                self._adopt(peer, self._dial(peer, deadline, timeout_s))
            while missing := [
                peer for peer in range(self.rank + 1, self.size) if peer not in self._connections
            ]:
                left = deadline - time.monotonic()
                listener.settimeout(max(left, 0.001))
                try:
                    candidate, _address = listener.accept()
                except TimeoutError:
                    names = ", ".join(map(str, missing))
                    raise TransportError(
                        f"rank {self.rank}: no connection from rank {names} within {timeout_s:g} s"
                    ) from None
                self._welcome(candidate)

    def _dial(self, peer: int, deadline: float, timeout_s: float) -> socket.socket:
        reason = "no answer"
        while True:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._set_congestion_control(connection)
                port = self._source_port(self.rank, peer) if self._source_port else 0
                connection.bind((self._addresses[self.rank][0], port))
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                connection.connect(self._addresses[peer])
                connection.sendall(self._hello(peer))
                if self._receive_exactly(connection, HELLO.size) == self._hello_of(peer):
                    return connection
                reason = "whoever listens there is not part of this job"
            except OSError as error:
                reason = str(error)
            except BaseException:
                connection.close()
                raise
            connection.close()
            if time.monotonic() >= deadline:
                where = "{}:{}".format(*self._addresses[peer])
                raise TransportError(
                    f"rank {self.rank}: cannot reach rank {peer} at {where} within {timeout_s:g} s: {reason}"
                )
            time.sleep(CONNECT_RETRY_S)

    def _welcome(self, candidate: socket.socket) -> None:
        """Take a connection in when it proves to be an expected peer; strangers are turned away."""
        candidate.settimeout(HELLO_TIMEOUT_S)
        try:
            magic, token, peer, target = HELLO.unpack(self._receive_exactly(candidate, HELLO.size))
            expected = magic == MAGIC and token.rstrip(b"\0") == self._token and target == self.rank
            if not expected or not self.rank < peer < self.size or peer in self._connections:
                raise ConnectionError("not a peer")
            candidate.sendall(self._hello_of(self.rank, peer))
        except (OSError, struct.error):
            candidate.close()
            return
        self._adopt(peer, candidate)

    def _hello(self, peer: int) -> bytes:
        return HELLO.pack(MAGIC, self._token, self.rank, peer)

    def _hello_of(self, sender: int, target: int | None = None) -> bytes:
        return HELLO.pack(MAGIC, self._token, sender, self.rank if target is None else target)

    @staticmethod
    def _receive_exactly(connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise ConnectionError("closed during the greeting")
            data += part
        return data

    def _set_congestion_control(self, connection: socket.socket) -> None:
        if self._congestion_control is None:
            return
        wanted = self._congestion_control
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted.encode())
        except OSError as error:
            raise TransportError(f"congestion control {wanted!r}: this kernel does not have it") from error
        found = _congestion_control(connection)
        if found != wanted:
            raise TransportError(f"congestion control: asked for {wanted!r}, the socket has {found!r}")

    def _adopt(self, peer: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (
            self._congestion_control is not None
            and _congestion_control(connection) != self._congestion_control
        ):
            self._set_congestion_control(connection)
        connection.setblocking(False)
        made = _Connection(self.rank, peer, connection)
        self._connections[peer] = made
        self._by_descriptor[connection.fileno()] = made
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    # -- messages --------------------------------------------------------------------------------------------------

    def isend(self, peer: int, tag: int, view: memoryview) -> Request:
        """Start to send; what the socket takes at once goes out at once."""
        connection = self._connections[peer]
        request = Request(peer, tag, view, incoming=False)
        if connection.lost is not None:
            request.finish(connection.lost)
            return request
        parts = [memoryview(HEADER.pack(tag, view.nbytes)), as_bytes(view)]
        connection.counters.bytes_sent += view.nbytes
        connection.counters.messages_sent += 1
        connection.sending.append((parts, request))
        if not connection.wants_to_write:
            self._write(connection)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview) -> Request:
        """Post a receive."""
        connection = self._connections[peer]
        request = Request(peer, tag, as_bytes(view), incoming=True)
        connection.matcher.post(request)
        if not request.done and connection.lost is not None:
            connection.matcher.fail(connection.lost)
        return request

    def progress(self, timeout_s: float) -> None:
        """Read and write what is ready; wait at most `timeout_s`, to better than a millisecond."""
        events = self._epoll.poll(0)
        if not events and timeout_s > 0:
            # epoll counts in milliseconds; select on the epoll's own descriptor counts in microseconds
            select.select([self._epoll.fileno()], [], [], timeout_s)
            events = self._epoll.poll(0)
        for descriptor, event in events:
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                continue
            if event & select.EPOLLOUT:
                self._write(connection)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and connection.lost is None:
                self._read(connection)

    def _write(self, connection: _Connection) -> None:
        sending = connection.sending
        try:
            while sending:
                parts, request = sending[0]
                sent = connection.socket.sendmsg(parts)
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]
                else:
                    sending.popleft()
                    request.finish()
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(connection, error)
            return
        if bool(sending) != connection.wants_to_write:
            connection.wants_to_write = bool(sending)
            wanted = select.EPOLLIN | (select.EPOLLOUT if sending else 0)
            self._epoll.modify(connection.socket.fileno(), wanted)

    def _read(self, connection: _Connection) -> None:
        taken = 0
        try:
            while taken < BYTES_AT_ONCE:
                if connection.payload is None:
                    got = connection.socket.recv_into(connection.header_view[connection.header_got :])
                    connection.header_got += got
                    if connection.header_got == HEADER.size:
                        self._begin_payload(connection)
                else:
                    got = connection.socket.recv_into(connection.payload[connection.payload_got :])
                    connection.payload_got += got
                if not got:
                    raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
                taken += got
                if connection.payload is not None and connection.payload_got == len(connection.payload):
                    self._end_payload(connection)
        except BlockingIOError:
            pass
        except (OSError, TransportError) as error:
            self._lose(connection, error)

    def _begin_payload(self, connection: _Connection) -> None:
        connection.header_got = 0
        connection.tag, length = HEADER.unpack(connection.header)
        connection.request = connection.matcher.take(connection.tag)
        if connection.request is not None:
            if (error := connection.matcher.mismatch(connection.request, length)) is not None:
                connection.request.finish(error)
                raise error
            connection.payload = connection.request.view
        else:
            if length > MAX_STAGED_BYTES:
                raise TransportError(
                    f"rank {self.rank}: rank {connection.peer} announces a message of {length} bytes"
                )
            connection.staging = bytearray(length)
            connection.payload = memoryview(connection.staging)
        connection.payload_got = 0

    def _end_payload(self, connection: _Connection) -> None:
        assert connection.payload is not None
        connection.counters.bytes_received += len(connection.payload)
        connection.counters.messages_received += 1
        request, staging = connection.request, connection.staging
        connection.payload = connection.request = connection.staging = None
        if request is not None:
            request.finish()
        elif staging is not None:
            connection.matcher.stage(connection.tag, staging)

    def _lose(self, connection: _Connection, error: Exception) -> None:
        """The connection is of no use any more: everything waiting on it fails, now."""
        if connection.lost is not None:
            return
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        lost = PeerLostError(f"rank {self.rank}: connection to rank {connection.peer} lost: {words}")
        connection.lost = lost
        self._by_descriptor.pop(connection.socket.fileno(), None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(connection.socket.fileno())
        connection.socket.close()
        sending, connection.sending = connection.sending, deque()
        for _parts, request in sending:
            request.finish(lost)
        if connection.request is not None:
            connection.request.finish(lost)
        connection.matcher.fail(lost)

    # -- end -------------------------------------------------------------------------------------------------------

    def socket_info(self) -> list[dict[str, Any]]:
        """Per peer: congestion control, smoothed round trip, segments sent again, payload bytes acknowledged, ports."""
        found = []
        for peer, connection in sorted(self._connections.items()):
            if connection.lost is not None:
                continue
            raw = connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            fields: dict[str, Any] = {
                name: struct.unpack_from("I", raw, 8 + 4 * number)[0]
                for name, number in _TCP_INFO_U32.items()
            }
            found.append(
                {
                    "peer": peer,
                    "congestion_control": _congestion_control(connection.socket),
                    "rtt_s": fields["rtt_us"] / 1e6,
                    "retransmits": fields["retransmits"],
                    "bytes_acked": struct.unpack_from("Q", raw, _TCP_INFO_BYTES_ACKED)[0]
                    if len(raw) >= _TCP_INFO_BYTES_ACKED + 8
                    else None,
                    "local_port": connection.socket.getsockname()[1],
                    "peer_port": connection.socket.getpeername()[1],
                }
            )
        return found

    def close(self) -> None:
        """Send out what was started, for at most CLOSE_TIMEOUT_S, then end all connections."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while any(c.sending for c in self._connections.values()) and time.monotonic() < deadline:
            self.progress(0.05)
        self._drop_all()

    def _drop_all(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._by_descriptor.clear()
        self._epoll.close()


def _congestion_control(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()
