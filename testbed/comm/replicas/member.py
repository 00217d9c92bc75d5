"""A rank's side of membership: a state machine that keeps the coordinator's word, without clock, sockets or arrays.

Whatever a rank has done in a step is tentative until the step is committed, that is until a view of a later step comes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.comm.replicas.messages import (
    MOST_BYTES,
    Alive,
    CatchUp,
    Done,
    FromRank,
    Hello,
    Leave,
    Operation,
    Operations,
    Ready,
    Report,
    Start,
    Stop,
    ToRank,
    View,
    pack_message,
    unpack_message,
)
from testbed.errors import TestbedError


class RankDismissed(TestbedError):
    """The coordinator does not count on this rank any more: it ends, and may come back. over: all steps are done."""

    def __init__(self, reason: str, over: bool = False) -> None:
        self.reason, self.over = reason, over
        super().__init__(f"this rank has to leave: {reason}")


@dataclass(frozen=True)
class Summed:
    """Of whom an operation's sum is: the members of an epoch."""

    epoch: int
    members: tuple[int, ...]


@dataclass
class Member:
    """What one rank knows, and has to say: `said` is sent in its order.

    epoch: 0 before the first view. view: None before it, and while attempts are stopped. summed: of this step's
    operations that are over, tentatively. committed: those of the step before, once it stands. starts: moments at which
    steps begin, by step, the current one's alone.
    """

    incarnation: int = 0
    epoch: int = 0
    step: int = -1
    view: View | None = None
    left: RankDismissed | None = None
    catch_up: CatchUp | None = None
    start_s: float | None = None
    summed: dict[Operation, Summed] = field(default_factory=dict)
    committed: dict[Operation, Summed] = field(default_factory=dict)
    said: list[FromRank] = field(default_factory=list)
    _finishing: bool = False

    def __post_init__(self) -> None:
        self.said.append(Hello(self.incarnation))

    # ---- what the coordinator says

    def hear(self, message: ToRank) -> Operations:
        """Take it in; returns the operations that are over here and have to be done again."""
        if self.left is not None:
            return frozenset()
        if isinstance(message, View):
            return self._on_view(message)
        if isinstance(message, Stop):
            self.view = None
            self.said.append(Report(self.step, message.epoch, frozenset(self.summed)))
        elif isinstance(message, Start):
            if message.step == self.step:
                self.start_s = message.start_s
        elif isinstance(message, CatchUp):
            self.catch_up = message
        elif isinstance(message, Leave):
            self.view = None
            self.left = RankDismissed(message.reason, message.over)
        return frozenset()

    def _on_view(self, view: View) -> Operations:
        self.view = view
        self.epoch = view.epoch
        if view.step != self.step:
            self.committed, self.summed = self.summed, {}
            self.step = view.step
            self.start_s = None
            self._finishing = False
            return frozenset()
        again = frozenset(self.summed) - view.settled
        for operation in again:
            del self.summed[operation]
        self._look_at_end()
        return again

    # ---- what the rank does

    def ready(self) -> None:
        """It stands at the beginning of the step."""
        self.said.append(Ready(self.step))

    def over(self, operation: Operation, view: View) -> bool:
        """An attempt in this view has the whole sum; returns whether that counts: no other view has come, no Stop."""
        if view is not self.view or operation in self.summed:
            return False
        self.summed[operation] = Summed(view.epoch, view.members)
        self._look_at_end()
        return True

    def finish(self, operations: int) -> None:
        """The step has no more operations than these."""
        self._operations = operations
        self._finishing = True
        self._look_at_end()

    def _look_at_end(self) -> None:
        if self._finishing and self.view is not None and len(self.summed) == self._operations:
            self.said.append(Done(self.step, self.epoch))


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
            self._line.send(pack_message(message))

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
                message = unpack_message(packet)
                assert isinstance(message, ToRank), f"a coordinator said {message}"
                self._news.append(message)
            elif not self._closing:
                self._news.append(Leave("the coordinator has gone"))
                self._closing = True
            self._on_news()
