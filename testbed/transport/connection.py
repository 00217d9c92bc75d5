"""Messages to and from one peer over one stream socket: framing, matching, and as few system calls as will do."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from testbed.transport.base import PeerCounters, PeerLost, Request, TransportError
from testbed.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.transport.sockets import describe
from testbed.transport.wire import GOODBYE_TAG, HEADER, HEADER_BYTES

# one read takes in a header and a small message, or several; of a large message this much is copied twice
_STAGE_BYTES = 16 * 1024
# the kernel wakes a rank when so much of a message has come, or all the rest: not for every packet. No more than this
# share of the receive buffer, or the kernel is slow to widen the window for a long path; less is not worth a call
_LOW_WATER_SHARE = 16
_LOW_WATER_MOST_BYTES = 256 * 1024
_LOW_WATER_LEAST_BYTES = 16 * 1024
# after so much from one peer others have their turn
_TURN_BYTES = 1024 * 1024

_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_GONE = select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP


class Connection:
    """One peer, before, during and after its socket's life.

    Sends and receives are accepted at any time; they wait for the socket, and fail once the peer is lost.
    """

    def __init__(self, rank: int, peer: int, max_staged_bytes: int) -> None:
        self.rank = rank
        self.peer = peer
        self.counters = PeerCounters()
        self.lost: TransportError | None = None
        self.sock: socket.socket | None = None
        self._info: dict[str, Any] = {}
        self._watch: Callable[[int], None] = _no_watch
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        self._said_goodbye = False
        # outgoing: headers and requests in their order, and how many bytes of the first are on their way
        self._outgoing: deque[tuple[bytes, Request]] = deque()
        self._begun = 0
        # incoming: bytes read ahead; then the message that is coming in and the part of it not yet filled
        self._stage = bytearray(_STAGE_BYTES)
        self._stage_view = memoryview(self._stage)
        self._stage_start = 0
        self._stage_end = 0
        self._into: Request | Staged | None = None
        self._target: memoryview | None = None
        self._low_water = 1
        self._paused = False

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now as far as the kernel takes it, the rest when it can."""
        if self.lost is not None:
            request.fail(self.lost)
            return
        waits = self.sock is None or bool(self._outgoing)
        self._outgoing.append((HEADER.pack(request.tag, len(request.view)), request))
        if not waits:
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
            request.fail(self._wrong_length(request, len(staged.view)))
        elif staged is self._into:
            # still coming in: what has come is copied, the rest goes to its place directly
            assert self._target is not None
            come = len(staged.view) - len(self._target)
            request.view[:come] = staged.view[:come]
            self._target = request.view[come:]
            self._into = request
        else:
            if staged.view:
                request.view[:] = staged.view
            request.complete()
        if self._paused:
            self._paused = False
            self._parse()
            self._set_low_water()
            self._rewatch()

    def say_goodbye(self) -> None:
        """Tell the peer, after all that is queued, that nothing more will come."""
        used = self.sock is not None or bool(self._outgoing)
        if used and self.lost is None and not self._said_goodbye:
            self._said_goodbye = True
            farewell = Request("send", self.peer, GOODBYE_TAG, memoryview(b""))
            self._outgoing.append((HEADER.pack(GOODBYE_TAG, 0), farewell))
            if self.sock is not None:
                self._flush()
                self._rewatch()

    @property
    def settled(self) -> bool:
        """Whether this side, which has said goodbye, may close without losing anything."""
        # on pause the peer's goodbye could not be read
        return self.lost is not None or (not self._outgoing and (self.sock is None or self._paused))

    def info(self) -> dict[str, Any] | None:
        """`local` and `remote` address and what `sockets.describe` told last; None when there never was a socket."""
        if self.sock is not None:
            self._info.update(describe(self.sock))
        return self._info or None

    # ---- what the event loop tells

    def attach(self, sock: socket.socket, watch: Callable[[int], None]) -> None:
        """Use this socket. `watch(mask)` makes the event loop tell `on_event` of these epoll events, none for 0."""
        self.sock = sock
        self._watch = watch
        self._info = {"local": list(sock.getsockname()), "remote": None}
        with contextlib.suppress(OSError):  # it may be reset already; what came before is still to be read
            self._info["remote"] = list(sock.getpeername())
        self._flush()
        self._rewatch()

    def on_event(self, mask: int) -> None:
        """The socket is ready for what the mask says."""
        if mask & _WRITE and self._outgoing:
            self._flush()
            if not self._outgoing:
                self._rewatch()
        if self.lost is None:
            if mask & _READ and not self._paused:
                self._read()
                self._set_low_water()
            elif mask & _GONE:
                self.fail(self._reason(None))

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost: let the socket go, fail all that waits for it. Whole messages can still be received."""
        if self.lost is not None:
            return
        error = PeerLost(self.rank, self.peer, reason) if isinstance(reason, str) else reason
        self.lost = error
        self._release()
        into, self._into, self._target = self._into, None, None
        self._paused = False
        if isinstance(into, Staged):
            self._mailbox.discard(into)
        elif into is not None:
            into.fail(error)
        self._mailbox.fail(error)
        outgoing, self._outgoing = self._outgoing, deque()
        for _, request in outgoing:
            request.fail(error)

    def _release(self) -> None:
        if self.sock is None:
            return
        with contextlib.suppress(OSError):
            self.info()
        self._watch(0)
        self.sock.close()
        self.sock = None

    def _rewatch(self) -> None:
        if self.sock is not None:
            self._watch((_GONE if self._paused else _READ) | (_WRITE if self._outgoing else 0))

    # ---- sending

    def _flush(self) -> None:
        """Give the kernel what it takes."""
        sock, outgoing = self.sock, self._outgoing
        assert sock is not None
        while outgoing:
            header, request = outgoing[0]
            view = request.view
            begun = self._begun
            try:
                if begun >= HEADER_BYTES:
                    begun += sock.send(view[begun - HEADER_BYTES :])
                elif view:
                    begun += sock.sendmsg((header[begun:], view))
                else:
                    begun += sock.send(header[begun:])
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(self._reason(error))
                return
            if begun < HEADER_BYTES + len(view):
                self._begun = begun
                return
            self._begun = 0
            outgoing.popleft()
            if request.tag != GOODBYE_TAG:
                counters = self.counters
                counters.messages_sent += 1
                counters.bytes_sent += len(view)
                counters.header_bytes_sent += HEADER_BYTES
            request.complete()

    # ---- receiving

    def _read(self) -> None:
        """Read what is there: up to the end of a large message, or all, or until others should have their turn."""
        sock = self.sock
        assert sock is not None
        taken = 0
        try:
            while taken < _TURN_BYTES:
                target = self._target
                if target is None:
                    room = _STAGE_BYTES - self._stage_end
                    count = sock.recv_into(self._stage_view[self._stage_end :])
                    self._stage_end += count
                    if count:
                        self._parse()
                else:
                    room = len(target)
                    count = sock.recv_into(target)
                    if count == room:
                        self._arrived()
                        return  # whoever waited for it goes on first
                    self._target = target[count:]
                if not count:
                    self.fail("its end closed without a goodbye, as when a process ends")
                if count < room or self.lost is not None or self._paused:
                    return  # nothing is left in the kernel, or none of it wanted
                taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(self._reason(error))

    def _parse(self) -> None:
        """Take messages from what was read ahead; leaves at most a part of a header, unless on pause."""
        stage, start, end = self._stage, self._stage_start, self._stage_end
        while end - start >= HEADER_BYTES:
            tag, length = HEADER.unpack_from(stage, start)
            if not self._begin(tag, length):
                break
            start += HEADER_BYTES
            target = self._target
            assert target is not None
            have = min(length, end - start)
            if have:
                target[:have] = self._stage_view[start : start + have]
                start += have
            if have < length:
                self._target = target[have:]
                break
            self._arrived()
        if start == end:
            start = end = 0
        elif start:
            rest = stage[start:end]
            start, end = 0, len(rest)
            stage[:end] = rest
        self._stage_start, self._stage_end = start, end

    def _begin(self, tag: int, length: int) -> bool:
        """Find the place for a message; False when it has none."""
        into: Request | Staged
        if tag == GOODBYE_TAG:
            self._end(length)
            return False
        request = self._mailbox.take_posted(tag)
        if request is not None and len(request.view) == length:
            into = request
        elif request is not None:
            error = self._wrong_length(request, length)
            request.fail(error)
            if length > self._max_staged_bytes:
                self.fail(error)
                return False
            into = Staged(length)  # goes nowhere; what follows may still make sense
        elif self._mailbox.staged_bytes + length <= self._max_staged_bytes:
            into = self._mailbox.stage(tag, length)
        else:
            # the peer has to wait: its bytes stay in the kernel until a receive is posted
            self._paused = True
            self._rewatch()
            return False
        self._into = into
        self._target = into.view
        return True

    def _arrived(self) -> None:
        """The message that was coming in is whole."""
        into = self._into
        assert into is not None
        self._into = None
        self._target = None
        counters = self.counters
        counters.messages_received += 1
        counters.bytes_received += len(into.view)
        counters.header_bytes_received += HEADER_BYTES
        if isinstance(into, Request):
            into.complete()

    def _end(self, length: int) -> None:
        """The peer said goodbye. It waits for ours, unless that is on its way already; then both ends let go."""
        sock = self.sock
        assert sock is not None
        with contextlib.suppress(OSError):
            if self._said_goodbye:
                # nothing is under way any more: a reset leaves no TIME_WAIT to block this port pair in the next run
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif not self._begun:
                sock.send(HEADER.pack(GOODBYE_TAG, 0))
        self.fail("it closed its end" if length == 0 else f"its goodbye announces {length} bytes")

    def _set_low_water(self) -> None:
        """Let the kernel wake this rank for the rest of a message, not for each of its packets."""
        sock, target = self.sock, self._target
        if sock is None:
            return
        wanted = 1
        if target is not None and len(target) >= _LOW_WATER_LEAST_BYTES:
            room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _LOW_WATER_SHARE
            wanted = min(len(target), room, _LOW_WATER_MOST_BYTES)
        if wanted < self._low_water or wanted >= max(self._low_water + 1, _LOW_WATER_LEAST_BYTES):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._low_water = wanted

    # ---- words

    def _wrong_length(self, request: Request, length: int) -> TransportError:
        return wrong_length(self.rank, self.peer, request.tag, length, len(request.view))

    def _reason(self, error: OSError | None) -> str:
        """What ended the socket, in words."""
        assert self.sock is not None
        if error is not None:
            return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return os.strerror(number) if number else "its end closed"


def _no_watch(mask: int) -> None:
    """No socket yet: nothing to watch."""
