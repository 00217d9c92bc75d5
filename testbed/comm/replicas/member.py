"""A rank's side of membership: a state machine that follows the coordinator, and the rank's connection to it.

The state machine has no clock, sockets or arrays. The results of a step are tentative until the step is committed,
that is, until a view of a later step arrives. The connection has a thread that receives messages and sends
heartbeats.
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
    """The coordinator has dismissed this rank: it exits and may return. over: all steps are done."""

    def __init__(self, reason: str, over: bool = False) -> None:
        self.reason, self.over = reason, over
        super().__init__(f"this rank was dismissed: {reason}")


@dataclass(frozen=True)
class Summed:
    """The members of an epoch whose contributions are in an operation's sum."""

    epoch: int
    members: tuple[int, ...]


@dataclass
class Member:
    """The membership state of one rank; messages in `outbox` are sent in order.

    epoch: 0 before the first view.
    view: None before the first view, and while attempts are stopped.
    summed: operations of this step that have finished, tentatively.
    committed: operations of the previous step, once it is committed.
    start_s: start time of the current step.
    """

    incarnation: int = 0
    epoch: int = 0
    step: int = -1
    view: View | None = None
    dismissed: RankDismissed | None = None
    catch_up: CatchUp | None = None
    start_s: float | None = None
    summed: dict[Operation, Summed] = field(default_factory=dict)
    committed: dict[Operation, Summed] = field(default_factory=dict)
    outbox: list[FromRank] = field(default_factory=list)
    _finishing: bool = False

    def __post_init__(self) -> None:
        self.outbox.append(Hello(self.incarnation))

    # ---- messages from the coordinator

    def receive(self, message: ToRank) -> Operations:
        """Process a message; returns the finished operations that have to be repeated."""
        if self.dismissed is not None:
            return frozenset()
        if isinstance(message, View):
            return self._on_view(message)
        if isinstance(message, Stop):
            self.view = None
            self.outbox.append(Report(self.step, message.epoch, frozenset(self.summed)))
        elif isinstance(message, Start):
            if message.step == self.step:
                self.start_s = message.start_s
        elif isinstance(message, CatchUp):
            self.catch_up = message
        elif isinstance(message, Leave):
            self.view = None
            self.dismissed = RankDismissed(message.reason, message.over)
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
        repeated = frozenset(self.summed) - view.settled
        for operation in repeated:
            del self.summed[operation]
        self._check_done()
        return repeated

    # ---- progress of the rank

    def ready(self) -> None:
        """Report that the rank is ready to start the step."""
        self.outbox.append(Ready(self.step))

    def complete(self, operation: Operation, view: View) -> bool:
        """Record the complete sum of an attempt; returns False if a Stop or a newer view has made it stale."""
        if view is not self.view or operation in self.summed:
            return False
        self.summed[operation] = Summed(view.epoch, view.members)
        self._check_done()
        return True

    def finish(self, operations: int) -> None:
        """Declare that the step has exactly this many operations."""
        self._operations = operations
        self._finishing = True
        self._check_done()

    def _check_done(self) -> None:
        if self._finishing and self.view is not None and len(self.summed) == self._operations:
            self.outbox.append(Done(self.step, self.epoch))


class Client:
    """A rank's connection to the coordinator, with a thread that receives messages and sends heartbeats.

    on_message: called in the thread when `take` has a message.
    heartbeat_s: interval of heartbeats.
    """

    def __init__(self, connection: socket.socket, heartbeat_s: float, on_message: Callable[[], None]) -> None:
        self._connection, self._heartbeat_s, self._on_message = connection, heartbeat_s, on_message
        self._inbox: deque[ToRank] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def send(self, message: FromRank) -> None:
        """Send a message; the loss of the coordinator is reported by `take`, not raised."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(pack_message(message))

    def take(self) -> list[ToRank]:
        """Return the messages received since the last call, in order."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def freeze(self) -> None:
        """Stop receiving and sending without closing, as a hung process would."""
        self._closing = True

    def close(self) -> None:
        """Close the connection; for the coordinator, this ends the incarnation."""
        self.freeze()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():  # a starved thread could read from a reused descriptor
            self._connection.close()

    def _listen(self) -> None:
        beat_s = time.monotonic() + self._heartbeat_s
        while not self._closing:
            left_s = beat_s - time.monotonic()
            if left_s <= 0:
                self.send(Alive())
                beat_s += self._heartbeat_s
                continue
            if not select.select([self._connection], [], [], left_s)[0]:
                continue
            try:
                packet = self._connection.recv(MOST_BYTES)
            except OSError:  # the coordinator has exited, or this end was just closed
                packet = b""
            if packet:
                message = unpack_message(packet)
                assert isinstance(message, ToRank), f"got {message} from a coordinator"
                self._inbox.append(message)
            elif not self._closing:
                self._inbox.append(Leave("the coordinator has exited"))
                self._closing = True
            self._on_message()
