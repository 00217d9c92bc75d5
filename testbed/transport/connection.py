"""Messages to and from one peer over one stream socket: framing, matching, and as few system calls as will do."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable

from testbed.transport.base import PeerCounters, PeerLost, Request, TransportError
from testbed.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.transport.wire import GOODBYE_TAG, HEADER, HEADER_BYTES

# one read takes in a header and a small message, or several; of a large message this much is copied twice
_STAGE_BYTES = 16 * 1024
# the kernel wakes a rank when this much of a message has come, or all the rest: not for every packet
_LOW_WATER_BYTES = 128 * 1024
_LOW_WATER_LEAST_BYTES = 16 * 1024
# after so much from one peer others have their turn
_TURN_BYTES = 1024 * 1024

_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_GONE = select.EPOLLERR | select.EPOLLHUP


class Connection:
    """One peer, before, during and after its socket's life.

    Sends and receives are accepted at any time; they wait for the socket, and fail once the peer is lost. `watch(mask)`
    must make the event loop watch the socket for these epoll events; `on_lost()` is called once.
    """

    def __init__(self, rank: int, peer: int, max_staged_bytes: int) -> None:
        self.rank = rank
        self.peer = peer
        self.counters = PeerCounters()
        self.lost: TransportError | None = None
        self.sock: socket.socket | None = None
        self.farewell = False  # the peer has said goodbye
        self._watch: Callable[[int], None] = _no_watch
        self._on_lost: Callable[[], None] = _nothing
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        self._said_goodbye = False
        # outgoing: whole messages to be sent, and how much of the first (header included) is on its way
        self._outgoing: deque[tuple[bytes, Request]] = deque()
        self._begun = 0
        # incoming: bytes read ahead; then the message that is coming in, where to, how much of it is missing
        self._stage = bytearray(_STAGE_BYTES)
        self._stage_view = memoryview(self._stage)
        self._stage_start = 0
        self._stage_end = 0
        self._target: memoryview | None = None  # the part not yet filled
        self._into: Request | Staged | None = None
        self._tag = 0
        self._low_water = 1
        self._paused = False

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now as far as the kernel takes it, the rest when it can."""
        if self.lost is not None:
            request.fail(self.lost)
            return
        header = HEADER.pack(request.tag, len(request.view))
        if self.sock is None or self._outgoing:
            self._outgoing.append((header, request))
            return
        self._outgoing.append((header, request))
        self._flush()
        if self._outgoing:
            self._rewatch()

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.post(request)
        elif len(staged.view) != len(request.view):
            if staged is self._into:  # let it come in, to nowhere
                self._mailbox.staged_bytes += len(staged.view)
            request.fail(wrong_length(self.rank, self.peer, request.tag, len(staged.view), len(request.view)))
        elif staged is self._into:
            # still coming in: what has come is copied, the rest goes to its place directly
            assert self._target is not None
            come = len(staged.view) - len(self._target)
            request.view[:come] = staged.view[:come]
            self._target = request.view[come:]
            self._into = request
        else:
            request.view[:] = staged.view
            request.complete()
        if self._paused:
            self._paused = False
            self._parse()
            self._rewatch()

    def say_goodbye(self) -> None:
        """Tell the peer, after all that is queued, that nothing more will come."""
        if self.lost is None and not self._said_goodbye:
            self._said_goodbye = True
            self._outgoing.append(
                (HEADER.pack(GOODBYE_TAG, 0), Request("send", self.peer, 0, memoryview(b"")))
            )
            if self.sock is not None:
                self._flush()
                self._rewatch()

    @property
    def settled(self) -> bool:
        """Whether closing now loses nothing: all is sent, and the peer has said goodbye or is gone."""
        return self.lost is not None or (not self._outgoing and (self.farewell or self.sock is None))

    # ---- what the event loop tells

    def attach(self, sock: socket.socket, watch: Callable[[int], None], on_lost: Callable[[], None]) -> None:
        """Use this socket, ready for messages."""
        self.sock = sock
        self._watch = watch
        self._on_lost = on_lost
        self._flush()
        self._rewatch()

    def on_event(self, mask: int) -> None:
        """The socket is ready for what the mask says."""
        if mask & _WRITE and self._outgoing:
            self._flush()
            if not self._outgoing:
                self._rewatch()
        if mask & _READ:
            self._read()
        elif mask & _GONE:
            self.fail(self._socket_error())

    def fail(self, reason: str, error: TransportError | None = None) -> None:
        """The peer is lost: fail what waits for it, let the socket go."""
        if self.lost is not None:
            return
        self.lost = error or PeerLost(self.rank, self.peer, reason)
        self._on_lost()
        outgoing, self._outgoing = self._outgoing, deque()
        for _, request in outgoing:
            request.fail(self.lost)
        if isinstance(self._into, Request):
            self._into.fail(self.lost)
        elif self._into is not None:
            # what will never be whole must not be handed out
            self._drop_staged(self._into)
        self._into = None
        self._target = None
        self._mailbox.fail(self.lost)

    # ---- sending

    def _flush(self) -> None:
        sock = self.sock
        assert sock is not None
        outgoing = self._outgoing
        while outgoing:
            header, request = outgoing[0]
            view = request.view
            begun = self._begun
            try:
                if not begun:
                    begun = sock.sendmsg((header, view)) if view else sock.send(header)
                elif begun < HEADER_BYTES:
                    begun += sock.sendmsg((header[begun:], view))
                else:
                    begun += sock.send(view[begun - HEADER_BYTES :])
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(_reason(error))
                return
            if begun < HEADER_BYTES + len(view):
                self._begun = begun
                return
            self._begun = 0
            outgoing.popleft()
            counters = self.counters
            counters.messages_sent += 1
            counters.bytes_sent += len(view)
            counters.header_bytes_sent += HEADER_BYTES
            request.complete()

    # ---- receiving

    def _read(self) -> None:
        """Read until there is no more, or the turn is over."""
        sock = self.sock
        assert sock is not None
        taken = 0
        try:
            while taken < _TURN_BYTES:
                target = self._target
                if target is None:
                    wanted = _STAGE_BYTES - self._stage_end
                    count = sock.recv_into(self._stage_view[self._stage_end :])
                    self._stage_end += count
                    if count:
                        self._parse()
                        if self.lost is not None or self._paused:
                            return
                else:
                    wanted = len(target)
                    count = sock.recv_into(target)
                    if count == wanted:
                        self._arrived()
                    elif count:
                        self._target = target[count:]
                if not count:
                    self.fail(
                        "it closed its end"
                        if self.farewell
                        else "its end closed without a goodbye, as when its process ends"
                    )
                    return
                if count < wanted:
                    break  # the socket is empty
                taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(_reason(error))
            return
        self._set_low_water()

    def _parse(self) -> None:
        """Take messages from what was read ahead; ends with nothing ahead, or part of a header, or on pause."""
        stage = self._stage
        start, end = self._stage_start, self._stage_end
        while end - start >= HEADER_BYTES:
            tag, length = HEADER.unpack_from(stage, start)
            if not self._begin(tag, length):
                break
            start += HEADER_BYTES
            target = self._target
            if target is None:  # a goodbye
                continue
            have = min(length, end - start)
            target[:have] = self._stage_view[start : start + have]
            start += have
            if have < length:
                self._target = target[have:]
                break
            self._arrived()
        if start == end:
            start = end = 0
        elif start and not self._paused:
            rest = stage[start:end]
            start, end = 0, len(rest)
            stage[:end] = rest
        self._stage_start, self._stage_end = start, end

    def _begin(self, tag: int, length: int) -> bool:
        """Find the place for a message; False when it has none yet, or breaks the rules."""
        if tag == GOODBYE_TAG:
            return self._on_goodbye()
        request = self._mailbox.take_posted(tag)
        if request is not None:
            if len(request.view) != length:
                # what follows in the stream cannot be trusted to be what the sender thinks it is
                error = wrong_length(self.rank, self.peer, tag, length, len(request.view))
                request.fail(error)
                self.fail("", error)
                return False
            self._into = request
            self._target = request.view
        elif self._mailbox.staged_bytes + length > self._max_staged_bytes:
            # let the peer wait: its bytes stay in the kernel until the receive is posted
            self._paused = True
            self._rewatch()
            return False
        else:
            self._into = staged = self._mailbox.stage(tag, length)
            self._target = staged.view
        self._tag = tag
        return True

    def _arrived(self) -> None:
        """The message that was coming in is whole."""
        into = self._into
        self._into = None
        self._target = None
        counters = self.counters
        counters.messages_received += 1
        counters.header_bytes_received += HEADER_BYTES
        if isinstance(into, Request):
            counters.bytes_received += len(into.view)
            into.complete()
        elif into is not None:
            counters.bytes_received += len(into.view)

    def _on_goodbye(self) -> bool:
        self.farewell = True
        self.say_goodbye()  # so that the peer need not wait for ours
        error = PeerLost(self.rank, self.peer, "it closed its end")
        self._mailbox.fail(error)
        return True
