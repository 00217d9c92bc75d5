"""Host costs of messages and operations, for ranks and for the model of a step.

Under the virtual clock, software takes no time, so its cost has to be added explicitly. A rank works on one message
after another: each costs a fixed time plus a time per byte, both before it enters the network and after it arrives. The
handover between device and host comes on top, in parallel with other messages. `CostedTransport` spends the cost of a
message. The initiator of an operation (a collective, or one end of a message between two ranks) spends its cost.
Seconds and bytes are emulated ones.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from testbed.comm.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    PeerLost,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    check_traffic_class,
)
from testbed.comm.transport.layers import Wrapper
from testbed.comm.transport.onesided import OneSided

PAGE_BYTES = 4096  # smaller arrays are copied through registered memory


@dataclass(frozen=True)
class Registration:
    """Time to register an array with a NIC.

    Uniform between `least_s` and `most_s`, except for a share `rare` of arrays, which take `rare_s`.
    """

    least_s: float
    most_s: float
    rare_s: float
    rare: float

    def draw_s(self, draw: random.Random) -> float:
        """Return the time for one array, in seconds."""
        return self.rare_s if draw.random() < self.rare else draw.uniform(self.least_s, self.most_s)


@dataclass(frozen=True)
class Slots:
    """The slots between two ranks of a protocol that copies.

    Attributes:
        chunk_bytes: Size of a slot.
        count: The number of slots.
        announced: Slots become free for a message only once its receiver has announced that it waits for it.
    """

    chunk_bytes: int = 256 * 1024
    count: int = 8
    announced: bool = False


@dataclass(frozen=True)
class Software:
    """Software costs of one job.

    Attributes:
        protocol: Name of the message protocol.
        slots: The slots, if the protocol copies through slots.
        message_s: Time per message, or per chunk of a message that is cut, at each end; messages are processed one by
            one.
        byte_s: Time per byte, at each end.
        note_s: Time per note of a protocol; None: the same as for a message.
        handover_s: Extra latency of the handover between device and host, in parallel with other messages.
        launch_s: Time before an operation begins.
        completion_s: Time after its last message.
        synchronisation_s: Time before an operation whose host must first read counts from the device.
        registration: Time for each array on first use; None: all arrays are registered.
        computing_share: The share of a rank's computing speed that a running operation takes away.
    """

    protocol: str = "eager"
    slots: Slots = Slots()
    message_s: float = 0.0
    byte_s: float = 0.0
    note_s: float | None = None
    handover_s: float = 0.0
    launch_s: float = 0.0
    completion_s: float = 0.0
    synchronisation_s: float = 0.0
    registration: Registration | None = None
    computing_share: float = 0.0

    @property
    def note_cost_s(self) -> float:
        """The cost of a note at each end, in seconds."""
        return self.message_s if self.note_s is None else self.note_s

    @property
    def costs_messages(self) -> bool:
        """Whether messages cost anything."""
        return any((self.message_s, self.byte_s, self.note_cost_s, self.handover_s))


class OperationCosts:
    """The costs of one rank's operations, without their messages. The random `seed` differs by rank."""

    def __init__(self, software: Software, seed: str) -> None:
        self._software = software
        self._draw = random.Random(seed)
        self._registered: set[tuple[int, int]] = set()

    def before_s(self, address: int, size_bytes: int) -> float:
        """Return the time in seconds until an operation on the array at this address begins.

        size_bytes: 0 for no array.
        """
        took_s, registration = self._software.launch_s, self._software.registration
        array = address, size_bytes
        if registration is not None and size_bytes >= PAGE_BYTES and array not in self._registered:
            self._registered.add(array)
            took_s += registration.draw_s(self._draw)
        return took_s

    @property
    def after_s(self) -> float:
        """The time from an operation's last message until its waiter is notified, in seconds."""
        return self._software.completion_s


def operation_costs(software: Software, seed: int, rank: int) -> OperationCosts | None:
    """Return the operation costs of one rank; None if operations themselves cost nothing."""
    if not (software.launch_s or software.completion_s or software.registration):
        return None
    return OperationCosts(software, f"{seed}/registration/{rank}")


class CostedTransport(Wrapper):
    """A wrapper whose messages cost their rank time, at both ends.

    Args:
        inner: The transport.
        per_message_s: Time per message.
        per_byte_s: Time per byte.
        note_s: Time per note of a protocol, instead of per_message_s; None: the same.
        handover_s: Time between device and host for each message except notes, at each end. The rank can do other work
            meanwhile.
    """

    def __init__(
        self,
        inner: Transport,
        per_message_s: float,
        per_byte_s: float,
        note_s: float | None = None,
        handover_s: float = 0.0,
    ) -> None:
        super().__init__(inner)
        self._per_message_s = per_message_s
        self._per_byte_s = per_byte_s
        self._note_s = per_message_s if note_s is None else note_s
        self._handover_s = handover_s
        self._busy_until_s = 0.0
        self._lost: dict[int, TransportError] = {}
        if isinstance(inner, OneSided):
            self.exposed = inner.exposed
        self._forgotten: Counter[int] = Counter()  # how often each peer was forgotten
        # actions by due time, then by order of request
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport. The message leaves once its cost is spent."""
        check_traffic_class(traffic)
        request = Request("send", peer, tag, view)
        if peer not in self.inner.counters or tag < 0:
            return self.inner.isend(peer, tag, view, traffic)  # raises the error

        if peer in self._lost:
            request.fail(self._lost[peer])
            return request
        forgotten = self._forgotten[peer]

        def leave() -> None:
            if self._forgotten[peer] != forgotten:  # the message was for an earlier incarnation
                request.fail(PeerLost(self.rank, peer, "this rank dropped it"))
            else:
                self._complete_with(request, self.inner.isend(peer, tag, view, traffic))

        self._schedule(tag, len(view), leave)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport. The request is done once the cost of the message is spent."""
        request = Request("recv", peer, tag, view)
        inner = self.inner.irecv(peer, tag, view, traffic)

        def arrived(_: Request) -> None:
            if inner.error is not None:
                self._fail(request, inner.error)
            else:
                self._schedule(tag, len(view), request.complete)

        if inner.done:
            arrived(inner)
        else:
            inner.on_done = arrived
        return request

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        self._run_due()
        if self._due:
            left_s = max(0.0, self._due[0][0] - self.inner.now_s)
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        self.inner.progress(timeout_s)
        self._run_due()

    def abort(self, reason: str) -> None:
        """See Transport."""
        while self._due:
            heapq.heappop(self._due)[-1]()
        self.inner.abort(reason)

    def close(self) -> None:
        """See Transport. Sends whose cost is being spent still leave."""
        while self._due:
            self.progress(None)
        self.inner.close()

    def forget(self, peer: int) -> None:
        """See Wrapper."""
        self._forgotten[peer] += 1
        super().forget(peer)
        self._lost.pop(peer, None)

    def _schedule(self, tag: int, size_bytes: int, action: Callable[[], None]) -> None:
        """Run `action` once this message's cost is spent, after all earlier ones, and it is handed over."""
        note = tag == CONTROL_TAG
        cost_s = size_bytes * self._per_byte_s + (self._note_s if note else self._per_message_s)
        self._busy_until_s = max(self._busy_until_s, self.inner.now_s) + cost_s
        at_s = self._busy_until_s + (0.0 if note else self._handover_s)
        heapq.heappush(self._due, (at_s, next(self._number), action))

    def _run_due(self) -> None:
        due = self._due
        while due and due[0][0] <= self.inner.now_s:
            heapq.heappop(due)[-1]()

    def _complete_with(self, request: Request, inner: Request) -> None:
        """Complete or fail the request as the inner one does."""

        def ended(_: Request) -> None:
            if inner.error is not None:
                self._fail(request, inner.error)
            else:
                request.complete()

        if inner.done:
            ended(inner)
        else:
            inner.on_done = ended

    def _fail(self, request: Request, error: TransportError) -> None:
        if isinstance(error, PeerLost):
            self._lost.setdefault(request.peer, error)
        request.fail(error)
