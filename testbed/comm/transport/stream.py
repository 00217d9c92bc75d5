"""Frames over one socket: a header of fixed size, then a payload.

A stream exists before, during and after the life of its socket. Subclasses define the frames: `tcp.Connection` has
whole messages, `channels` has segments of them.
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

from testbed.comm.transport.base import (
    MAX_NOTE_BYTES,
    MAX_REASON_BYTES,
    PeerLost,
    TransportError,
    describe_abort,
)
from testbed.comm.transport.event_loop import ignore_events
from testbed.comm.transport.sockets import IPPROTO_MPTCP, describe_connection

# one read gets one or more headers with small payloads; up to this much of a large payload is copied twice
_STAGE_BYTES = 16 * 1024
# SO_RCVLOWAT: the kernel wakes a rank for this much of a payload, or for its rest, not for every packet. Above this
# share of the receive buffer, it is slow to widen the window on long paths; small values are not worth a call.
_LOW_WATER_SHARE = 16
_LOW_WATER_MAX_BYTES = 256 * 1024
_LOW_WATER_MIN_BYTES = 16 * 1024
# number of payloads after which the size of the receive buffer is read again
_ROOM_KNOWN_FOR = 16
# after this many bytes from one peer, others have a turn
_TURN_BYTES = 1024 * 1024

_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_CLOSED = select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP

_RESET = struct.pack("ii", 1, 0)  # value for SO_LINGER: close with a TCP reset

NOTHING = memoryview(b"")


class Stream:
    """One end of a stream of frames.

    Frames can be queued at any time. They wait for the socket, and are dropped when it is lost. Subclasses define the
    frames by `_begin_payload`, `_on_payload`, `_on_frame_sent`, `_goodbye_header`, `_note_header` and `_on_lost`.
    """

    header_bytes = 0

    def __init__(self, rank: int, peer: int) -> None:
        self.rank = rank
        self.peer = peer
        self.lost: TransportError | None = None
        self.on_lost: Callable[[TransportError], None] | None = None
        self.on_note: Callable[[int, bytes], None] | None = None
        self.sock: socket.socket | None = None
        self.is_connected = False  # whether it has, or had, a socket
        self._info: dict[str, Any] = {}
        self._watch: Callable[[int], None] = ignore_events
        self._said_goodbye = False
        # outgoing: header, payload and argument of `_on_frame_sent`; how many bytes of the first frame are sent
        self._outgoing: deque[tuple[bytes, memoryview, Any]] = deque()
        self._begun_bytes = 0
        # incoming: bytes read ahead, and the unfilled rest of the current payload
        self._stage = bytearray(_STAGE_BYTES)
        self._stage_view = memoryview(self._stage)
        self._stage_start = self._stage_end = 0
        self._target: memoryview | None = None
        self._low_water, self._room, self._room_known_for = 1, 0, 0
        self._paused = False
        # the payload of a frame that is not a message, while it is received, and its handler
        self._control: tuple[bytearray, Callable[[bytearray], None]] | None = None

    # ---- for subclasses

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        """Set `_target` to the buffer for the payload of the header at `start`; return False to stop reading here."""
        raise NotImplementedError

    def _on_payload(self) -> None:
        """Handle the complete payload that `_begin_payload` made room for; here, that of a frame without a message."""
        assert self._control is not None
        (data, then), self._control = self._control, None
        then(data)

    def _on_frame_sent(self, what: Any, size_bytes: int) -> None:
        """Handle a frame that the kernel has accepted completely."""
        raise NotImplementedError

    def _goodbye_header(self, reason: bytes) -> bytes:
        """Return the header of the last frame of this side."""
        raise NotImplementedError

    def _note_header(self, data: bytes) -> bytes:
        """Return the header of a note."""
        raise NotImplementedError

    def _on_lost(self, error: TransportError) -> None:
        """Handle the loss of the socket, after which queued frames are dropped."""
        raise NotImplementedError

    # ---- called by the rank

    def queue(self, header: bytes, view: memoryview, what: Any, first: bool = False) -> None:
        """Send as much as the kernel accepts now, and the rest later.

        first: whether to send it ahead of all frames that have not begun.
        """
        if self.lost is not None:
            return
        must_wait = self.sock is None or bool(self._outgoing)
        if first and self._outgoing:
            self._outgoing.insert(1 if self._begun_bytes else 0, (header, view, what))
        else:
            self._outgoing.append((header, view, what))
        if not must_wait:
            self._flush()
            if self._outgoing:
                self._update_events()

    def resume_reading(self) -> None:
        """Continue reading after a pause, in case there is room now."""
        if self._paused:
            self._paused = False
            self._parse()
            self._set_low_water()
            self._update_events()

    def send_note(self, data: bytes) -> None:
        """Send a note, ahead of all frames that have not begun."""
        self.queue(self._note_header(data), memoryview(data), None, first=True)

    def say_goodbye(self) -> None:
        """Queue a goodbye: the last frame of this side."""
        used = self.sock is not None or bool(self._outgoing)
        if used and self.lost is None and not self._said_goodbye:
            self._said_goodbye = True
            self._outgoing.append((self._goodbye_header(b""), NOTHING, None))
            if self.sock is not None:
                self._flush()
                self._update_events()

    def send_abort(self, reason: bytes) -> socket.socket | None:
        """Send the reason of an abort, unless a frame is half sent, and return the socket, to be closed later.

        If closed at once with unread data, the socket would be reset, and the peer might never read the reason.
        """
        sock = self.sock
        if sock is not None:
            self._watch(0)
            self.sock = None
            with contextlib.suppress(OSError):
                if not self._begun_bytes and not self._said_goodbye:
                    sock.send(self._goodbye_header(reason) + reason)
                sock.shutdown(socket.SHUT_WR)
        return sock

    @property
    def can_close(self) -> bool:
        """Whether this side, which has said goodbye, may close without losing data."""
        # a paused stream cannot read the peer's goodbye
        return self.lost is not None or (not self._outgoing and (self.sock is None or self._paused))

    def info(self) -> dict[str, Any] | None:
        """Return both addresses and the last `sockets.describe_connection`; None if there never was a socket."""
        if self.sock is not None:
            self._info.update(describe_connection(self.sock))
        return self._info or None

    # ---- called by the event loop

    def attach(self, sock: socket.socket, watch: Callable[[int], None]) -> None:
        """Use this socket. `watch(mask)` makes the event loop call `on_event` for these epoll events; 0 for none."""
        self.sock = sock
        self.is_connected = True
        self._watch = watch
        self._info = {"local": list(sock.getsockname()), "remote": None}
        with contextlib.suppress(OSError):  # already reset; earlier data can still be read
            self._info["remote"] = list(sock.getpeername())
        self._flush()
        self._update_events()

    def on_event(self, mask: int) -> None:
        """Handle epoll events of the socket."""
        if mask & _WRITE and self._outgoing:
            self._flush()
            if not self._outgoing:
                self._update_events()
        if self.lost is None:
            if mask & _READ and not self._paused:
                self._read()
                self._set_low_water()
            elif mask & _CLOSED:
                self.fail(self._reason(None))

    def fail(self, reason: TransportError | str) -> None:
        """Mark the peer as lost: close the socket and fail everything that waits for it."""
        if self.lost is not None:
            return
        self.lost = PeerLost(self.rank, self.peer, reason) if isinstance(reason, str) else reason
        self._close_socket()
        self._target = None
        self._paused = False
        self._outgoing.clear()
        self._on_lost(self.lost)
        if self.on_lost is not None:
            self.on_lost(self.lost)

    def reset(self, reason: str) -> None:
        """Fail with a TCP reset, so that data in flight to the peer is not retransmitted."""
        if self.sock is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.fail(reason)

    def _close_socket(self) -> None:
        if self.sock is None:
            return
        with contextlib.suppress(OSError):
            self.info()
        self._watch(0)
        self.sock.close()
        self.sock = None

    def _update_events(self) -> None:
        if self.sock is not None:
            self._watch((_CLOSED if self._paused else _READ) | (_WRITE if self._outgoing else 0))

    # ---- sending

    def _flush(self) -> None:
        """Send as much as the kernel accepts."""
        sock, outgoing, header_bytes = self.sock, self._outgoing, self.header_bytes
        assert sock is not None
        while outgoing:
            header, view, what = outgoing[0]
            begun_bytes = self._begun_bytes
            try:
                if begun_bytes >= header_bytes:
                    begun_bytes += sock.send(view[begun_bytes - header_bytes :])
                elif view:
                    begun_bytes += sock.sendmsg((header[begun_bytes:], view))
                else:
                    begun_bytes += sock.send(header[begun_bytes:])
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(self._reason(error))
                return
            if begun_bytes < header_bytes + len(view):
                self._begun_bytes = begun_bytes
                return
            self._begun_bytes = 0
            outgoing.popleft()
            if what is not None:
                self._on_frame_sent(what, len(view))
                if self.sock is None:  # the callback closed the stream
                    return

    # ---- receiving

    def _read(self) -> None:
        """Read until a large payload is complete, no more data is available, or other streams should have a turn."""
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
                        self._on_payload()
                        return  # let the receiver continue first
                    self._target = target[count:]
                if not count:
                    # the process is gone; a reset frees the port pair for its next incarnation
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    self.fail("its end closed without a goodbye, as when a process ends")
                if count < room or self.lost is not None or self._paused:
                    return  # nothing is left in the kernel, or reading stopped
                taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(self._reason(error))

    def _parse(self) -> None:
        """Parse frames from the read-ahead buffer. Leaves at most a partial header, unless reading is paused."""
        stage, start, end = self._stage, self._stage_start, self._stage_end
        header_bytes = self.header_bytes
        while end - start >= header_bytes:
            if not self._begin_payload(stage, start):
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
            self._on_payload()
            if self.lost is not None:
                break
        if start == end:
            start = end = 0
        elif start:
            rest = stage[start:end]
            start, end = 0, len(rest)
            stage[:end] = rest
        self._stage_start, self._stage_end = start, end

    # ---- frames that are not messages

    def _begin_control(self, length: int, then: Callable[[bytearray], None]) -> bool:
        """Make room for a payload of this many bytes; when it is complete, call `then` with it."""
        self._control = bytearray(length), then
        self._target = memoryview(self._control[0])
        return True

    def _begin_note(self, length: int) -> bool:
        if length > MAX_NOTE_BYTES:
            self.fail(f"its note announces {length} bytes")
            return False
        return self._begin_control(length, self._take_note)

    def _take_note(self, data: bytearray) -> None:
        if self.on_note is not None:
            self.on_note(self.peer, bytes(data))

    def _begin_goodbye(self, length: int) -> bool:
        """Handle the header of the peer's last frame; its payload is the reason of an abort, if any."""
        if length == 0:
            self._on_goodbye("it closed its end", orderly=True)
            return False
        if length > MAX_REASON_BYTES:
            self._on_goodbye(f"its goodbye announces {length} bytes")
            return False
        return self._begin_control(length, lambda reason: self._on_goodbye(describe_abort(reason)))

    def _pause(self) -> None:
        """Stop reading: data stays in the kernel, so TCP's flow control stops the peer."""
        self._paused = True
        self._update_events()

    def _on_goodbye(self, reason: str, orderly: bool = False) -> None:
        """Handle the peer's goodbye. The peer waits for ours, unless it is already under way; both ends then close."""
        sock = self.sock
        assert sock is not None
        with contextlib.suppress(OSError):
            if self._said_goodbye:
                # nothing is in flight: a reset leaves no TIME_WAIT that would block this port pair in the next run
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif not self._begun_bytes:
                sock.send(self._goodbye_header(b""))
        self.fail(PeerLost(self.rank, self.peer, reason, orderly))

    def _set_low_water(self) -> None:
        """Have the kernel wake this rank for the rest of a payload, not for each packet."""
        sock, target = self.sock, self._target
        if sock is None or sock.proto == IPPROTO_MPTCP:  # MPTCP may block forever with less data
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
        if error is not None:
            return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
        assert self.sock is not None
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return os.strerror(number) if number else "its end closed"
