"""Frames over one socket, before, during and after the socket's life: a header of fixed size, then a payload.

What frames mean is for those who derive from `Stream`: `tcp.Connection` for whole messages, `channels` for parts of
them.
"""

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

from testbed.comm.transport.base import PeerLost, TransportError
from testbed.comm.transport.sockets import IPPROTO_MPTCP, describe_connection

# one read takes in a header and a small payload, or several; of a large one this much is copied twice
_STAGE_BYTES = 16 * 1024
# the kernel wakes a rank when so much of a payload has come, or all the rest: not for every packet. No more than this
# share of the receive buffer, or the kernel is slow to widen the window for a long path; less is not worth a call
_LOW_WATER_SHARE = 16
_LOW_WATER_MAX_BYTES = 256 * 1024
_LOW_WATER_MIN_BYTES = 16 * 1024
# payloads for which the receive buffer is taken to be as large as it was
_ROOM_KNOWN_FOR = 16
# after so much from one peer others have their turn
_TURN_BYTES = 1024 * 1024

_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_CLOSED = select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP

NOTHING = memoryview(b"")


class Stream:
    """One end of it. Frames can be queued at any time; they wait for the socket, and are dropped once it is lost.

    Deriving classes say what a frame is: `_begin`, `_arrived`, `_sent`, `_goodbye`, `_lost`.
    """

    header_bytes = 0

    def __init__(self, rank: int, peer: int) -> None:
        self.rank = rank
        self.peer = peer
        self.lost: TransportError | None = None
        self.on_lost: Callable[[TransportError], None] | None = None
        self.on_note: Callable[[int, bytes], None] | None = None
        self.sock: socket.socket | None = None
        self._info: dict[str, Any] = {}
        self._watch: Callable[[int], None] = _no_watch
        self._said_goodbye = False
        # outgoing: header, payload and whatever `_sent` is to be told of, and how many bytes of the first have gone
        self._outgoing: deque[tuple[bytes, memoryview, Any]] = deque()
        self._begun = 0
        # incoming: bytes read ahead, and the part of the payload coming in that is not yet filled
        self._stage = bytearray(_STAGE_BYTES)
        self._stage_view = memoryview(self._stage)
        self._stage_start = 0
        self._stage_end = 0
        self._target: memoryview | None = None
        self._low_water = 1
        self._room = self._room_known_for = 0
        self._paused = False

    # ---- for those who derive

    def _begin(self, stage: bytearray, start: int) -> bool:
        """A header stands at `start`: set `_target` to where its payload goes; False to stop reading here."""
        raise NotImplementedError

    def _arrived(self) -> None:
        """The payload that `_begin` made room for is there."""
        raise NotImplementedError

    def _sent(self, what: Any, size_bytes: int) -> None:
        """The kernel has all of a frame."""
        raise NotImplementedError

    def _goodbye(self, reason: bytes) -> bytes:
        """The frame that says that nothing more will come."""
        raise NotImplementedError

    def _note(self, data: bytes) -> bytes:
        """The frame's header for something told beside all messages."""
        raise NotImplementedError

    def _lost(self, error: TransportError) -> None:
        """The socket is gone, what was queued dropped."""
        raise NotImplementedError

    # ---- what the rank asks for

    def queue(self, header: bytes, view: memoryview, what: Any, first: bool = False) -> None:
        """Send now as far as the kernel takes it, the rest when it can. first: before all that has not begun."""
        if self.lost is not None:
            return
        waits = self.sock is None or bool(self._outgoing)
        if first and self._outgoing:
            self._outgoing.insert(1 if self._begun else 0, (header, view, what))
        else:
            self._outgoing.append((header, view, what))
        if not waits:
            self._flush()
            if self._outgoing:
                self._rewatch()

    def go_on(self) -> None:
        """What stopped reading may have found room."""
        if self._paused:
            self._paused = False
            self._parse()
            self._set_low_water()
            self._rewatch()

    def tell(self, data: bytes) -> None:
        """Say something beside all messages, before those that have not begun to leave."""
        self.queue(self._note(data), memoryview(data), None, first=True)

    def say_goodbye(self) -> None:
        """Tell the peer, after all that is queued, that nothing more will come."""
        used = self.sock is not None or bool(self._outgoing)
        if used and self.lost is None and not self._said_goodbye:
            self._said_goodbye = True
            self._outgoing.append((self._goodbye(b""), NOTHING, None))
            if self.sock is not None:
                self._flush()
                self._rewatch()

    def farewell(self, reason: bytes) -> socket.socket | None:
        """Say why nothing more will come, if that can be done between frames; the socket, to be closed later.

        Closed at once it would be reset, if there is something unread, and the peer might not come to read the reason.
        """
        sock = self.sock
        if sock is not None:
            self._watch(0)
            self.sock = None
            with contextlib.suppress(OSError):
                if not self._begun and not self._said_goodbye:
                    sock.send(self._goodbye(reason) + reason)
                sock.shutdown(socket.SHUT_WR)
        return sock

    @property
    def settled(self) -> bool:
        """Whether this side, which has said goodbye, may close without losing anything."""
        # on pause the peer's goodbye could not be read
        return self.lost is not None or (not self._outgoing and (self.sock is None or self._paused))

    def info(self) -> dict[str, Any] | None:
        """`local` and `remote` address and what `sockets.describe_connection` told last; None when there never was a
        socket.
        """
        if self.sock is not None:
            self._info.update(describe_connection(self.sock))
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
            elif mask & _CLOSED:
                self.fail(self._reason(None))

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost: let the socket go, and all that waits for it."""
        if self.lost is not None:
            return
        self.lost = PeerLost(self.rank, self.peer, reason) if isinstance(reason, str) else reason
        self._release()
        self._target = None
        self._paused = False
        self._outgoing.clear()
        self._lost(self.lost)
        if self.on_lost is not None:
            self.on_lost(self.lost)

    def give_up(self, reason: str) -> None:
        """As `fail`, with a reset: what was on its way to the peer is not sent again, whatever becomes of that."""
        if self.sock is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.fail(reason)

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
            self._watch((_CLOSED if self._paused else _READ) | (_WRITE if self._outgoing else 0))

    # ---- sending

    def _flush(self) -> None:
        """Give the kernel what it takes."""
        sock, outgoing, header_bytes = self.sock, self._outgoing, self.header_bytes
        assert sock is not None
        while outgoing:
            header, view, what = outgoing[0]
            begun = self._begun
            try:
                if begun >= header_bytes:
                    begun += sock.send(view[begun - header_bytes :])
                elif view:
                    begun += sock.sendmsg((header[begun:], view))
                else:
                    begun += sock.send(header[begun:])
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(self._reason(error))
                return
            if begun < header_bytes + len(view):
                self._begun = begun
                return
            self._begun = 0
            outgoing.popleft()
            if what is not None:
                self._sent(what, len(view))
                if self.sock is None:  # whoever heard of it gave up
                    return

    # ---- receiving

    def _read(self) -> None:
        """Read what is there: up to the end of a large payload, or all, or until others should have their turn."""
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
                        self._target = None
                        self._arrived()
                        return  # whoever waited for it goes on first
                    self._target = target[count:]
                if not count:
                    # nothing of it is left to be said to; a reset lets its next incarnation have the port pair
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.fail("its end closed without a goodbye, as when a process ends")
                if count < room or self.lost is not None or self._paused:
                    return  # nothing is left in the kernel, or none of it wanted
                taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(self._reason(error))

    def _parse(self) -> None:
        """Take frames from what was read ahead; leaves at most a part of a header, unless on pause."""
        stage, start, end = self._stage, self._stage_start, self._stage_end
        header_bytes = self.header_bytes
        while end - start >= header_bytes:
            if not self._begin(stage, start):
                break
            start += header_bytes
            target = self._target
            assert target is not None
            length = len(target)
            have = min(length, end - start)
            if have:
                target[:have] = self._stage_view[start : start + have]
                start += have
            if have < length:
                self._target = target[have:]
                break
            self._target = None
            self._arrived()
            if self.lost is not None:
                break
        if start == end:
            start = end = 0
        elif start:
            rest = stage[start:end]
            start, end = 0, len(rest)
            stage[:end] = rest
        self._stage_start, self._stage_end = start, end

    def _pause(self) -> None:
        """Stop reading: what comes stays in the kernel, and the peer has to wait."""
        self._paused = True
        self._rewatch()

    def _end(self, reason: str, orderly: bool = False) -> None:
        """The peer said goodbye. It waits for ours, unless that is on its way already; then both ends let go."""
        sock = self.sock
        assert sock is not None
        with contextlib.suppress(OSError):
            if self._said_goodbye:
                # nothing is under way any more: a reset leaves no TIME_WAIT to block this port pair in the next run
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif not self._begun:
                sock.send(self._goodbye(b""))
        self.fail(PeerLost(self.rank, self.peer, reason, orderly))

    def _set_low_water(self) -> None:
        """Let the kernel wake this rank for the rest of a payload, not for each of its packets."""
        sock, target = self.sock, self._target
        if sock is None or sock.proto == IPPROTO_MPTCP:  # there it may sleep for ever with less in hand
            return
        wanted = 1
        if target is not None and len(target) >= _LOW_WATER_MIN_BYTES:
            if not self._room_known_for:
                self._room_known_for = _ROOM_KNOWN_FOR
                self._room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _LOW_WATER_SHARE
            self._room_known_for -= 1
            wanted = min(len(target), self._room, _LOW_WATER_MAX_BYTES)
        if wanted < self._low_water or wanted >= max(self._low_water + 1, _LOW_WATER_MIN_BYTES):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._low_water = wanted

    def _reason(self, error: OSError | None) -> str:
        """What ended the socket, in words."""
        if error is not None:
            return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
        assert self.sock is not None
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return os.strerror(number) if number else "its end closed"


def _no_watch(mask: int) -> None:
    """No socket yet: nothing to watch."""
