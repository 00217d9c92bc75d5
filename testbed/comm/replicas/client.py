"""A rank's end of its line to the coordinator: a thread that listens and says that the rank is alive."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from testbed.comm.replicas.messages import MOST_BYTES, Alive, FromRank, Leave, ToRank, packed, unpacked


class Client:
    """on_news: called in the thread when there is something to `take`. heartbeat_s: between signs of life."""

    def __init__(self, line: socket.socket, heartbeat_s: float, on_news: Callable[[], None]) -> None:
        self._line, self._heartbeat_s, self._on_news = line, heartbeat_s, on_news
        self._news: deque[ToRank] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def say(self, message: FromRank) -> None:
        """Send; a coordinator that has gone is news, not an error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._line.send(packed(message))

    def take(self) -> list[ToRank]:
        """What the coordinator has said since, in its order."""
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    def fall_silent(self) -> None:
        """Neither listen nor speak any more, as if this process stood still."""
        self._closing = True

    def close(self) -> None:
        """Hang up: for the coordinator this incarnation is over."""
        self.fall_silent()
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():  # one that gets no processor now would read what has the number next
            self._line.close()

    def _listen(self) -> None:
        beat_s = time.monotonic() + self._heartbeat_s
        while not self._closing:
            left_s = beat_s - time.monotonic()
            if left_s <= 0:
                self.say(Alive())
                beat_s += self._heartbeat_s
                continue
            if not select.select([self._line], [], [], left_s)[0]:
                continue
            try:
                packet = self._line.recv(MOST_BYTES)
            except OSError:  # the coordinator is no more; or this end was hung up just now
                packet = b""
            if packet:
                message = unpacked(packet)
                assert isinstance(message, ToRank), f"a coordinator said {message}"
                self._news.append(message)
            elif not self._closing:
                self._news.append(Leave("the coordinator has gone"))
                self._closing = True
            self._on_news()
