"""A rank that serves requests, dispatched as they arrive.

The rank where requests arrive decides; those that serve hear of a sending by a note, which goes ahead of its first
message on the same connection, and from the host of a node to its cards. What is lost with a rank that has gone stays
undone.
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from testbed.comm.collectives import Array, fill
from testbed.comm.collectives.group import COMMUNICATOR_BIT, COMMUNICATORS, POINT_TO_POINT
from testbed.comm.transport import PeerLost, Transport, TransportError
from testbed.comm.transport.base import Request, TransportTimeout, find_peer_events
from testbed.measure.ranks.executor import FIRST, PlanOutcome, TimedOperations, check_message
from testbed.measure.ranks.fault_injection import RankFaults
from testbed.measure.ranks.rank import Rank
from testbed.workload.dependency_tracker import DependencyTracker
from testbed.workload.dispatch import Dispatching, GrowingPlan, PieceKey, Sending
from testbed.workload.plan import Computing, Message, Operation, Pause, operation_document

# of point-to-point messages of a communicator that there is none of
_TAGS = POINT_TO_POINT | (COMMUNICATORS - 1) << COMMUNICATOR_BIT
_SERVE, _OVER = b"serve", b"over"
_NOTE = struct.Struct("<4I")


def done_file(rank: int) -> str:
    """Where a rank writes down what it has done, operation by operation."""
    return f"served-{rank}.jsonl"


DISPATCHED_FILE = "dispatched.jsonl"
"""Where the rank that decides writes down what it has decided, step by step."""


class ServingExecutor:
    """Of one rank, step after step; `operations` and what `run` returns are of what was done in the end.

    folder: where it is written down. at_once: whether as soon as something is done, for ranks that may be killed.
    """

    def __init__(
        self,
        dispatching: Dispatching,
        transport: Transport,
        dtype: str,
        timeout_s: float,
        faults: RankFaults,
        folder: Path,
        at_once: bool,
    ) -> None:
        self.dispatching, self.transport, self.rank = dispatching, transport, transport.rank
        self.dtype, self.timeout_s, self.faults = dtype, timeout_s, faults
        self.folder, self.at_once = folder, at_once
        self.operations: list[Operation] = []
        tells = find_peer_events(transport)
        if tells is None:
            raise TransportError("dispatch on arrival needs a transport that tells peers of it, such as tcp")
        self._tells = tells
        self._node = next((own for own in dispatching.nodes if self.rank in own), ())

    @property
    def decides(self) -> bool:
        """Whether requests arrive here."""
        return self.rank == self.dispatching.entry

    def prepare(self, salt: int) -> None:
        """Outside of the time that is measured. salt: a thousand times the step's number."""
        self._salt, self._step = salt, salt // 1000
        self._spare: dict[int, list[Array]] = {}
        self._told: deque[tuple[int, bytes]] = deque()
        self._lost: deque[int] = deque()
        notes, losses = self._tells.on_note, self._tells.on_peer_lost

        def note(peer: int, data: bytes) -> None:
            if data.startswith((_SERVE, _OVER)):
                self._told.append((peer, data))
            elif notes is not None:
                notes(peer, data)

        self._tells.on_note = note
        self._tells.on_peer_lost = lambda error: self._lost.append(error.peer)
        self._before = notes, losses

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """All that comes, until who decides says that it is over. TransportError, NoServerError."""
        dispatching = self.dispatching
        self._tracker = DependencyTracker(list(dispatching.start.ranks[self.rank]) if self.decides else [])
        self._done = PlanOutcome([])
        self._timed = TimedOperations()
        self._since: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._rooms: dict[int, Array] = {}
        self._came: deque[tuple[int, Request, float]] = deque()
        self._growing = GrowingPlan(dispatching)
        self._dispatcher = dispatching.dispatcher() if self.decides else None
        self._start_s = self._moved_s = start_s
        self._over = False
        with (self.folder / done_file(self.rank)).open(
            "a", buffering=1 if self.at_once else -1
        ) as self._journal:
            while not self._over:
                self._start_ready()
                now_s = time.monotonic()
                if self._move(now_s):
                    self._moved_s = now_s
                elif not self._over:
                    self._wait(now_s)
        self._tells.on_note, self._tells.on_peer_lost = self._before
        return self._leave_out_undone()

    # ---- what is done

    def _start_ready(self) -> None:
        tracker = self._tracker
        while tracker.ready:
            index = tracker.ready.pop(0)
            operation = tracker.plan[index]
            since_s = self._since.get(index, self._start_s)
            begun_s = max((self._ends[earlier] for earlier in tracker.before[index]), default=since_s)
            begun_s = self._begun[index] = max(begun_s, since_s)
            if isinstance(operation, Computing):
                self._timed.compute(index, begun_s, operation.duration_s * self.faults.slowdown(begun_s))
            elif isinstance(operation, Pause):
                self._timed.pause(index, begun_s, operation.duration_s)
            else:
                assert isinstance(operation, Message)
                self._exchange(index, operation)

    def _exchange(self, index: int, operation: Message) -> None:
        room = self._rooms[index] = self._room(operation.numel)
        view, tag = room.view(np.uint8).data, _TAGS | operation.tag
        if operation.sends:
            room[0] = operation.tag + 1
            request = self.transport.isend(operation.peer, tag, view)
        else:
            request = self.transport.irecv(operation.peer, tag, view)

        def come(request: Request) -> None:
            self._came.append((index, request, time.monotonic()))

        if request.done:
            come(request)
        else:
            request.on_done = come

    def _room(self, numel: int) -> Array:
        """An array that no message uses, with the pattern in it."""
        if spare := self._spare.get(numel):
            return spare.pop()
        room = np.zeros(numel, self.dtype)
        fill(room, FIRST, self._salt)
        return room

    def _move(self, now_s: float) -> bool:
        """Take note of all that has happened; whether anything has."""
        over = sorted(self._timed.over(now_s).items(), key=lambda one: one[1])
        for index, end_s in over:
            self._ended(index, end_s)
        moved = bool(over or self._came or self._told or self._lost)
        while self._came:
            index, request, end_s = self._came.popleft()
            self._exchanged(index, request, end_s)
        while self._told:
            self._hear(*self._told.popleft())
        while self._lost:
            self._lose(self._lost.popleft())
        if self._dispatcher is not None:
            again = self._dispatcher.due(now_s)
            self._send(again)
            moved = moved or bool(again)
            if self._dispatcher.over:
                self._end()
        return moved

    def _exchanged(self, index: int, request: Request, end_s: float) -> None:
        operation = self._tracker.plan[index]
        assert isinstance(operation, Message)
        if request.error is not None:
            if not isinstance(request.error, PeerLost):
                raise request.error
            self._lost.append(operation.peer)
            return
        room = self._rooms.pop(index)
        if not operation.sends:
            check_message(room, operation.tag, self._salt, self._done)
        self._spare.setdefault(operation.numel, []).append(room)
        self._ended(index, end_s)

    def _ended(self, index: int, end_s: float) -> None:
        self._ends[index] = end_s
        self._tracker.done(index)
        self._write(index)
        if self._dispatcher is None:
            return
        if index < len(self.dispatching.sizes):  # a batch is closed
            self._send([self._dispatcher.send(index, end_s)])
        elif index in self._growing.answered:
            self._dispatcher.answered(self._growing.answered[index], end_s)

    # ---- what is decided

    def _send(self, sendings: Iterable[Sending]) -> None:
        for sending in sendings:
            key = self.dispatching.key(sending)
            self._take_on(key, sending.number, sending.at_s)
            node = self.dispatching.nodes[key[1]]
            self._tell(key, sending.number, node if self.rank in node else node[:1])

    def _tell(self, key: PieceKey, number: int, whom: Collection[int]) -> None:
        """Those who have a part in it."""
        for rank in self.dispatching.ranks(key):
            if rank in whom and rank != self.rank:
                self._tells.send_note(rank, _SERVE + _NOTE.pack(*key, number))

    def _take_on(self, key: PieceKey, number: int, now_s: float) -> None:
        plan = self._tracker.plan
        part = self._growing.part(key, number, self.rank, plan)
        self._since |= dict.fromkeys(range(len(plan), len(plan) + len(part)), now_s)
        self._tracker.extend(part)

    def _hear(self, peer: int, data: bytes) -> None:
        if data.startswith(_OVER):
            self._over = True
            return
        size, node, turn, number = _NOTE.unpack(data[len(_SERVE) :])
        self._take_on((size, node, turn), number, time.monotonic())
        if self._node and self.rank == self._node[0]:
            self._tell((size, node, turn), number, self._node)

    def _lose(self, peer: int) -> None:
        """A connection is gone. TransportError where nothing can go on without the peer."""
        if peer == self.dispatching.entry:
            raise PeerLost(self.rank, peer, "requests arrive there")
        if self._dispatcher is not None:
            self._send(self._dispatcher.lose(self._behind(peer), time.monotonic()))

    def _behind(self, peer: int) -> list[int]:
        """The servers that are gone with a rank that this one speaks to."""
        found = []
        for number, server in enumerate(self.dispatching.servers):
            node = self.dispatching.nodes[server.node]
            ranks = [node[0], *(node[1 + turn] for turn in server.turns)]
            if peer in (ranks if self.rank in node else ranks[:1]):
                found.append(number)
        return found

    def _end(self) -> None:
        """Tell everybody that it is over."""
        self._over = True
        for rank in range(self.transport.size):
            if rank != self.rank:
                self._tells.send_note(rank, _OVER)
        self.transport.progress(0.0)
        assert self._dispatcher is not None
        line = {
            "step": self._step,
            "dispatched": self._dispatcher.found.to_document(),
            "answers": {number: list(marks) for number, marks in self._growing.answers.items()},
        }
        with (self.folder / DISPATCHED_FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")

    # ---- time, and what is left of it

    def _wait(self, now_s: float) -> None:
        """Until something may have happened. TransportTimeout where nothing has for too long."""
        dues_s = [self._timed.next_s, self._dispatcher.due_s if self._dispatcher else None]
        known = [due_s for due_s in dues_s if due_s is not None]
        if not known and not self._rooms:
            self.transport.progress(self.timeout_s)  # nothing to do until somebody says so
            return
        until_s = min(known, default=self._moved_s + self.timeout_s)
        if not known and until_s <= now_s:
            waiting = {self._tracker.plan[index] for index in self._rooms}
            peers = sorted({one.peer for one in waiting if isinstance(one, Message)})
            raise TransportTimeout(self.rank, peers, "requests of", self.timeout_s)
        self.transport.progress(max(0.0, until_s - now_s))

    def _write(self, index: int) -> None:
        """Down, that this is done."""
        operation = operation_document(self._tracker.plan[index])
        times = {"start_s": self._begun[index], "end_s": self._ends[index]}
        line = {"step": self._step, "index": index, "operation": operation, **times}
        self._journal.write(json.dumps(line) + "\n")

    def _leave_out_undone(self) -> PlanOutcome:
        """What was done, as the plan that this step has had."""
        plan = self._tracker.plan
        places = {index: place for place, index in enumerate(sorted(self._ends))}
        self.operations = [
            replace(plan[index], after=tuple(places[one] for one in plan[index].after)) for index in places
        ]
        self._done.spans = [(self._begun[index], self._ends[index]) for index in places]
        return self._done


class ServingRank(Rank):
    """As Rank; where the job survives kills, nobody waits for all in the end."""

    def _make_executor(self) -> ServingExecutor:
        job = self.job
        assert job.dispatching is not None
        return ServingExecutor(
            job.dispatching,
            self.transport,
            job.dtype,
            job.wiring.timeout_s,
            self.faults,
            Path(job.output),
            at_once=job.survives_kills,
        )

    def _wait_for_all(self) -> None:
        if not self.job.survives_kills:
            super()._wait_for_all()
