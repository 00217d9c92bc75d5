"""The fast path of a pair: one queue pair for small messages, and for all control frames of large ones."""

from __future__ import annotations

from collections import deque

from testbed.comm.transport.rdma.verbs import Card, QueuePair
from testbed.comm.transport.rdma.wire import Frame, pack_frame


class FastPath:
    """Sends frames in order. Frames wait until there is a queue pair and the card has room."""

    def __init__(self) -> None:
        self.ready = False
        self.queue_pair: QueuePair | None = None
        self._card: Card | None = None
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._outstanding = 0

    @property
    def busy(self) -> bool:
        """Whether something has not arrived yet."""
        return bool(self._waiting or self._outstanding)

    def attach(self, card: Card, queue_pair: QueuePair) -> None:
        """Use this queue pair; the peer's end may not be ready."""
        self._card, self.queue_pair = card, queue_pair

    def start(self) -> None:
        """Start sending: the peer's end is ready."""
        self.ready = True
        self.flush()

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Send a frame. Its payload may be changed after the call."""
        header, body = pack_frame(frame), payload if payload is not None else b""
        if not self.ready or self._waiting or not self._post(header, body):
            self._waiting.append((header, bytes(body)))

    def flush(self) -> None:
        """Send waiting frames, as far as the card takes them."""
        while self._waiting and self.ready and self._post(*self._waiting[0]):
            self._waiting.popleft()

    def _post(self, header: bytes, body: bytes | memoryview) -> bool:
        assert self._card is not None
        assert self.queue_pair is not None
        if not self._card.send(self.queue_pair, header, body):
            return False
        self._outstanding += 1
        return True

    def on_sent(self) -> None:
        """Handle that a frame has arrived."""
        self._outstanding -= 1
        self.flush()

    def close(self) -> None:
        """Drop everything and close the queue pair."""
        self.ready = False
        self._waiting.clear()
        self._outstanding = 0
        if self.queue_pair is not None:
            self.queue_pair.close()
