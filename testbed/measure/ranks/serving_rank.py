"""A rank that serves requests; they are dispatched as they arrive.

The rank where requests arrive dispatches them. It notifies serving ranks with a note that precedes the first message on
the same connection; a node's host forwards the note to its accelerators. Work that is lost with a rank is not redone.
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
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
from testbed.workload.plan import Computing, Message, Operation, Pause

# the tag space of point-to-point messages of the last, unused communicator
_TAGS = POINT_TO_POINT | (COMMUNICATORS - 1) << COMMUNICATOR_BIT
_SERVE, _OVER = b"serve", b"over"
_NOTE = struct.Struct("<4I")


def done_file(rank: int) -> str:
    """Return the name of the file in which a rank logs its completed operations."""
    return f"served-{rank}.jsonl"


DISPATCHED_FILE = "dispatched.jsonl"
"""The file in which the dispatching rank logs its decisions, step by step."""


class ServingExecutor:
    """The executor of one serving rank; `operations` and the outcome of `run` cover the completed operations.

    Args:
        dispatching: The job's dispatch settings.
        transport: The rank's transport, which must support notes to peers.
        dtype: Type of all elements.
        timeout_s: Time without progress, in seconds, after which the step fails.
        faults: Faults that this rank injects.
        folder: Directory of the logs.
        at_once: Whether to flush the log after every operation, for ranks that may be killed.
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
        peer_events = find_peer_events(transport)
        if peer_events is None:
            raise TransportError("dispatch on arrival needs a transport with notes to peers, such as tcp")
        self._peer_events = peer_events
        self._node = next((own for own in dispatching.nodes if self.rank in own), ())

    @property
    def decides(self) -> bool:
        """Whether requests arrive at this rank, which then dispatches them."""
        return self.rank == self.dispatching.entry

    def prepare(self, salt: int) -> None:
        """Prepare a step, outside its timed part; `salt` is a thousand times the step's number."""
        self._salt, self._step = salt, salt // 1000
        self._spare: dict[int, list[Array]] = {}
        self._notes: deque[tuple[int, bytes]] = deque()
        self._lost: deque[int] = deque()
        on_note, on_peer_lost = self._peer_events.on_note, self._peer_events.on_peer_lost

        def note(peer: int, data: bytes) -> None:
            if data.startswith((_SERVE, _OVER)):
                self._notes.append((peer, data))
            elif on_note is not None:
                on_note(peer, data)

        self._peer_events.on_note = note
        self._peer_events.on_peer_lost = lambda error: self._lost.append(error.peer)
        self._before = on_note, on_peer_lost

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """Serve requests until the dispatching rank ends the step.

        Raises:
            TransportError: If the dispatching rank is lost, or nothing progresses within the timeout.
            NoServerError: If no server is left.
        """
        dispatching = self.dispatching
        self._tracker = DependencyTracker(list(dispatching.start.ranks[self.rank]) if self.decides else [])
        self._done = PlanOutcome([])
        self._timed = TimedOperations()
        self._since: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._rooms: dict[int, Array] = {}
        self._completed: deque[tuple[int, Request, float]] = deque()
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
                if self._handle_events(now_s):
                    self._moved_s = now_s
                elif not self._over:
                    self._wait(now_s)
        self._peer_events.on_note, self._peer_events.on_peer_lost = self._before
        return self._outcome()

    # ---- executing

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

        def on_done(request: Request) -> None:
            self._completed.append((index, request, time.monotonic()))

        if request.done:
            on_done(request)
        else:
            request.on_done = on_done

    def _room(self, numel: int) -> Array:
        """Return an unused array, filled with the pattern."""
        if spare := self._spare.get(numel):
            return spare.pop()
        room = np.zeros(numel, self.dtype)
        fill(room, FIRST, self._salt)
        return room

    def _handle_events(self, now_s: float) -> bool:
        """Handle all events so far, and return whether there were any."""
        over = sorted(self._timed.over(now_s).items(), key=lambda one: one[1])
        for index, end_s in over:
            self._ended(index, end_s)
        moved = bool(over or self._completed or self._notes or self._lost)
        while self._completed:
            index, request, end_s = self._completed.popleft()
            self._finish_message(index, request, end_s)
        while self._notes:
            self._handle_note(*self._notes.popleft())
        while self._lost:
            self._handle_loss(self._lost.popleft())
        if self._dispatcher is not None:
            again = self._dispatcher.due(now_s)
            self._send(again)
            moved = moved or bool(again)
            if self._dispatcher.over:
                self._end()
        return moved

    def _finish_message(self, index: int, request: Request, end_s: float) -> None:
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

    # ---- dispatching

    def _send(self, sendings: Iterable[Sending]) -> None:
        for sending in sendings:
            key = self.dispatching.key(sending)
            self._take_on(key, sending.number, sending.at_s)
            node = self.dispatching.nodes[key[1]]
            self._notify(key, sending.number, node if self.rank in node else node[:1])

    def _notify(self, key: PieceKey, number: int, candidates: Collection[int]) -> None:
        """Send a note to all candidates that take part in a piece of work."""
        for rank in self.dispatching.ranks(key):
            if rank in candidates and rank != self.rank:
                self._peer_events.send_note(rank, _SERVE + _NOTE.pack(*key, number))

    def _take_on(self, key: PieceKey, number: int, now_s: float) -> None:
        plan = self._tracker.plan
        part = self._growing.part(key, number, self.rank, plan)
        self._since |= dict.fromkeys(range(len(plan), len(plan) + len(part)), now_s)
        self._tracker.extend(part)

    def _handle_note(self, peer: int, data: bytes) -> None:
        if data.startswith(_OVER):
            self._over = True
            return
        size, node, turn, number = _NOTE.unpack(data[len(_SERVE) :])
        self._take_on((size, node, turn), number, time.monotonic())
        if self._node and self.rank == self._node[0]:
            self._notify((size, node, turn), number, self._node)

    def _handle_loss(self, peer: int) -> None:
        """Handle a lost connection; raise TransportError if the job cannot continue without the peer."""
        if peer == self.dispatching.entry:
            raise PeerLost(self.rank, peer, "requests arrive there")
        if self._dispatcher is not None:
            self._send(self._dispatcher.lose(self._behind(peer), time.monotonic()))

    def _behind(self, peer: int) -> list[int]:
        """Return the servers that are lost if this peer is lost."""
        found = []
        for number, server in enumerate(self.dispatching.servers):
            node = self.dispatching.nodes[server.node]
            ranks = [node[0], *(node[1 + turn] for turn in server.turns)]
            if peer in (ranks if self.rank in node else ranks[:1]):
                found.append(number)
        return found

    def _end(self) -> None:
        """Notify all ranks that the step is over, and log the decisions."""
        self._over = True
        for rank in range(self.transport.size):
            if rank != self.rank:
                self._peer_events.send_note(rank, _OVER)
        self.transport.progress(0.0)
        assert self._dispatcher is not None
        line = {
            "step": self._step,
            "dispatched": asdict(self._dispatcher.found),
            "answers": {number: list(marks) for number, marks in self._growing.answers.items()},
        }
        with (self.folder / DISPATCHED_FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")

    # ---- waiting and logging

    def _wait(self, now_s: float) -> None:
        """Wait until something may have happened; raise TransportTimeout if nothing has for too long."""
        dues_s = [self._timed.next_s, self._dispatcher.due_s if self._dispatcher else None]
        known = [due_s for due_s in dues_s if due_s is not None]
        if not known and not self._rooms:
            self.transport.progress(self.timeout_s)  # nothing to do until a note arrives
            return
        until_s = min(known, default=self._moved_s + self.timeout_s)
        if not known and until_s <= now_s:
            waiting = {self._tracker.plan[index] for index in self._rooms}
            peers = sorted({one.peer for one in waiting if isinstance(one, Message)})
            raise TransportTimeout(self.rank, peers, "requests of", self.timeout_s)
        self.transport.progress(max(0.0, until_s - now_s))

    def _write(self, index: int) -> None:
        """Log a completed operation."""
        operation = self._tracker.plan[index].to_document()
        times = {"start_s": self._begun[index], "end_s": self._ends[index]}
        line = {"step": self._step, "index": index, "operation": operation, **times}
        self._journal.write(json.dumps(line) + "\n")

    def _outcome(self) -> PlanOutcome:
        """Return the outcome of the completed operations, which become the plan of this step."""
        plan = self._tracker.plan
        places = {index: place for place, index in enumerate(sorted(self._ends))}
        self.operations = [
            replace(plan[index], after=tuple(places[one] for one in plan[index].after)) for index in places
        ]
        self._done.spans = [(self._begun[index], self._ends[index]) for index in places]
        return self._done


class ServingRank(Rank):
    """A rank of a serving job; if the job survives kills, there is no barrier at the end."""

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
