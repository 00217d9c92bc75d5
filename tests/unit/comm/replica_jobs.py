"""Jobs of replicas that lose ranks: over memory with a thread for each rank, over loopback TCP with processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from testbed.comm.collectives.progress_engine import Engine
from testbed.comm.replicas import Membership, Policy, ReplicaGroup, RingSettings, Session, SessionSettings
from testbed.comm.replicas.coordinator import Coordinator, Switchboard
from testbed.comm.transport import MemoryNetwork, PeerCounters, Request, Transport, TransportError
from tests.unit.measure.ranks import Places

NUMEL = 1000
FIRST_GROUP = 7  # number of a group's messages
HEARTBEAT_S = 0.1
Counters = dict[int, PeerCounters]


class Killed(BaseException):
    """This rank's thread stops here."""


class Mortal:
    """A transport whose rank stops at its n-th call, whatever that is."""

    def __init__(self, inner: Transport, calls: int | None) -> None:
        self.inner, self.left = inner, calls
        self.rank, self.size, self.counters = inner.rank, inner.size, inner.counters

    @property
    def now_s(self) -> float:
        return self.inner.now_s

    def isend(self, *arguments: Any) -> Request:
        self._count()
        return self.inner.isend(*arguments)

    def irecv(self, *arguments: Any) -> Request:
        self._count()
        return self.inner.irecv(*arguments)

    def progress(self, timeout_s: float | None = 0.0) -> None:
        self._count()
        self.inner.progress(timeout_s)

    def wake(self) -> None:
        self.inner.wake()

    def abort(self, reason: str) -> None:
        self.inner.abort(reason)

    def close(self) -> None:
        self.inner.close()

    def forget(self, peer: int) -> None:
        self.inner.forget(peer)  # type: ignore[attr-defined]

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


@dataclass
class Outcome:
    """What a rank has seen: of whom each sum of each step was, by what it was off; how long it stood still."""

    members: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    wrong: int = 0
    stalls_s: list[float] = field(default_factory=list)
    left: str = ""
    sent_bytes: int = 0
    caught_up_bytes: int = 0
    checkpoints: list[int] = field(default_factory=list)


def contribution(replica: int, step: int, operation: int) -> np.ndarray[Any, Any]:
    """Whole numbers, so small that sums and means over up to 8 are exact."""
    return (np.arange(NUMEL, dtype=np.float32) % 61 + step + operation) * (1 << replica)


def steps_of(
    transport: Transport,
    line: socket.socket,
    replicas: Sequence[Sequence[int]],
    steps: int,
    operations: int = 2,
    incarnation: int = 0,
    ring: RingSettings = RingSettings(512, 2),  # noqa: B008
    state_bytes: int = 0,
    checkpoint_bytes: int = 0,
    checkpoint_every: int = 1,
) -> Outcome:
    """All steps that a rank is in, each with so many all-reduces under way at once."""
    outcome = Outcome()
    engine = Engine(transport)
    settings = SessionSettings(
        HEARTBEAT_S,
        ring,
        state_bytes,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_every=checkpoint_every,
    )
    session = Session(engine, line, replicas, incarnation, settings)
    ranks = tuple(row[session.place] for row in replicas)
    group = ReplicaGroup(session, ranks, FIRST_GROUP, timeout_s=60.0)
    try:
        step = session.wait_for_step().step
        while step < steps:
            arrays = [contribution(session.replica, step, number) for number in range(operations)]
            begins = engine.timer(session.agree_on_start())
            session.wait(partial(getattr, begins, "done"))
            works = [group.all_reduce(array, op="avg", async_op=True) for array in arrays]
            for work in works:
                session.wait(work.is_completed)
            committed = session.finish()
            summed = [committed[work.result] for work in works]
            for number, (array, one) in enumerate(zip(arrays, summed, strict=True)):
                parts = [contribution(member, step, number) for member in one.members]
                expected = np.sum(parts, axis=0) / np.float32(len(one.members))
                outcome.wrong += int(np.count_nonzero(array != expected))
            outcome.members.append(tuple(one.members for one in summed))
            outcome.epochs.append(max(one.epoch for one in summed))
            step = session.member.step
    except Killed:
        session.client.freeze()
        raise
    except TransportError:
        assert session.member.dismissed is not None, "only a dismissed rank ends early"
        outcome.left = session.member.dismissed.reason
    outcome.stalls_s = [end_s - start_s for start_s, end_s in session.stops]
    outcome.sent_bytes = sum(counters.bytes_sent for counters in transport.counters.values())
    outcome.caught_up_bytes = session.caught_up_bytes
    outcome.wrong += session.caught_up_wrong
    outcome.checkpoints = session.checkpoints
    session.close()
    return outcome


class Job:
    """A coordinator in a thread, and what it wrote."""

    def __init__(self, replicas: int, ranks: int, policy: Policy) -> None:
        self.replicas = [tuple(range(number * ranks, (number + 1) * ranks)) for number in range(replicas)]
        self.policy = policy
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.switchboard = Switchboard(ours)
        self._records = io.StringIO()
        coordinator = Coordinator(Membership(self.replicas, policy), theirs, self._records)
        self._thread = threading.Thread(target=coordinator.run, daemon=True)
        self._thread.start()

    def end(self) -> list[dict[str, Any]]:
        """What was written down, when all ranks have hung up."""
        self.switchboard.close()
        self._thread.join(20.0)
        assert not self._thread.is_alive(), "the coordinator does not end"
        return [json.loads(line) for line in self._records.getvalue().splitlines()]


def in_threads_with_a_kill(
    replicas: int, ranks: int, policy: Policy, victim: int, calls: int | None, silent: bool
) -> tuple[list[Outcome | None], list[dict[str, Any]]]:
    """Outcomes by rank, None of the victim's, and the coordinator's records.

    calls: of its transport, after which it stops; None: never. silent: neither peers nor the coordinator are told.
    """
    job = Job(replicas, ranks, policy)
    size = replicas * ranks
    network = MemoryNetwork(size)
    found: list[Outcome | None] = [None] * size
    errors: list[BaseException] = []
    kept: list[socket.socket] = []

    def rank_thread(rank: int, line: socket.socket) -> None:
        transport = Mortal(network.transports[rank], calls if rank == victim else None)
        quiet = socket.socket(fileno=socket.dup(line.fileno()))  # keeps the line open
        try:
            found[rank] = steps_of(transport, line, job.replicas, policy.steps)
        except Killed:
            if not silent:
                transport.abort("it was killed")
                line.shutdown(socket.SHUT_RDWR)
            return
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            kept.append(quiet)
        transport.close()

    lines = [job.switchboard.connect(rank, 0) for rank in range(size)]
    threads = [
        threading.Thread(target=rank_thread, args=(rank, line), daemon=True)
        for rank, line in enumerate(lines)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive(), "a rank hangs"
    for line in (*lines, *kept):
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()
    assert not errors, errors
    return found, job.end()


class Processes:
    """A job over loopback TCP, each rank a process that is forked anew whenever it has died or had to leave."""

    def __init__(self, replicas: int, ranks: int, policy: Policy, **options: Any) -> None:
        self.job = Job(replicas, ranks, policy)
        self.places = Places(replicas * ranks)
        self.options = options
        self.incarnations = dict.fromkeys(range(replicas * ranks), -1)
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.pids: dict[int, int] = {}
        self._pipes: dict[int, tuple[int, int]] = {}
        self._ending = False
        for rank in self.incarnations:
            self.fork(rank)

    def fork(self, rank: int) -> None:
        """The next incarnation."""
        self.incarnations[rank] += 1
        incarnation = self.incarnations[rank]
        line = self.job.switchboard.connect(rank, incarnation)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                transport = self.places.transport(rank, incarnation=incarnation)
                outcome = steps_of(
                    transport,
                    line,
                    self.job.replicas,
                    self.job.policy.steps,
                    incarnation=incarnation,
                    **self.options,
                )
                transport.close()
                os.write(write_end, pickle.dumps(outcome))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        line.close()
        os.close(write_end)
        self.pids[rank] = pid
        self._pipes[read_end] = rank, incarnation

    def run(self, kills: Sequence[tuple[float, int]], return_s: float | None, limit_s: float = 20.0) -> None:
        """Until nobody is left; kills: when, from now on, and whom. return_s: from an end to the next incarnation."""
        due = [(time.monotonic() + after_s, "kill", rank) for after_s, rank in kills]
        end_s = time.monotonic() + limit_s
        while self._pipes or (not self._ending and any(what == "fork" for _, what, _ in due)):
            now_s = time.monotonic()
            assert now_s < end_s, f"ranks hang: {sorted(self._pipes.values())}"
            for one in sorted(one for one in due if one[0] <= now_s):
                due.remove(one)
                if one[1] == "kill" and one[2] in self.pids:
                    os.kill(self.pids[one[2]], signal.SIGKILL)
                elif one[1] == "fork" and not self._ending:
                    self.fork(one[2])
            for pipe in select.select(list(self._pipes), [], [], 0.005)[0]:
                rank, incarnation = self._pipes.pop(pipe)
                with os.fdopen(pipe, "rb") as stream:
                    told = stream.read()
                os.waitpid(self.pids.pop(rank), 0)
                outcome: Outcome | None = pickle.loads(told) if told else None
                if outcome is not None:
                    self.outcomes[rank, incarnation] = outcome
                    self._ending = self._ending or not outcome.left
                if return_s is not None and (outcome is None or outcome.left):
                    due.append((time.monotonic() + return_s, "fork", rank))

    def end(self) -> list[dict[str, Any]]:
        """The coordinator's records."""
        records = self.job.end()
        self.places.close()
        return records

    def kill_rest(self) -> None:
        """After something went wrong."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
