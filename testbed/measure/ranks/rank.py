"""One rank: connects to its peers, then runs the job's steps, timing every action and checking every sum.

Filling the gradients, agreeing on a common start and checking the result lie outside the timed part of a step.
"""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from testbed.clock import STEP_ALIGNMENT_S, clock_here, private_memory, sleep_until
from testbed.comm.collectives import Array, CollectiveTimeout, Communicator
from testbed.comm.collectives.baseline_ring import BASELINE_RING
from testbed.comm.flight_recorder import COMPLETED, Recorder
from testbed.comm.transport import OperationCosts, TrafficClass, TransportError
from testbed.measure.ranks.executor import CreditSockets, Executor, PlanOutcome, ReceiveCredits
from testbed.measure.ranks.fault_injection import RankFaults
from testbed.measure.ranks.telemetry import (
    HostMonitor,
    SocketSampler,
    operation_sample,
    retransmitted_segments,
    shared_streams,
    step_sample,
)
from testbed.workload.job.endpoints import join_job
from testbed.workload.job.launch_spec import JobSpec, Step
from testbed.workload.plan import EVERYBODY, Block, GroupCollective, Operation

BEAT_NS = round(STEP_ALIGNMENT_S * 1e9)  # of a guest's clock
MOST_AHEAD_NS = 3_000_000_000  # that a step begins after all ranks have come to it
EXACT_S = 20e-6
EVERYONE, WAITING = 0, "wait_for_start"  # in the flight recorder


class PlanExecutor(Protocol):
    """What carries a rank's plan out, step after step; see Executor."""

    @property
    def operations(self) -> Sequence[Operation]:
        """Those of the last step."""

    def prepare(self, salt: int) -> None:
        """Fill what is going to be sent."""

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """All of the plan, once."""


class Rank:
    """Runs one rank's share of a job. `progress(event)` is called on rank 0 before each step starts, on all at its end.

    What it measured is written down step by step, between steps, for who watches.

    ring: memory for its flight recorder. incarnation: how many times the rank was killed before, and returned.
    """

    def __init__(
        self,
        job: JobSpec,
        rank: int,
        progress: Callable[[dict[str, Any]], None],
        credit_sockets: CreditSockets = (),
        ring: mmap.mmap | None = None,
        incarnation: int = 0,
    ) -> None:
        self.job = job
        self.credit_sockets = credit_sockets
        self.recorder = None if ring is None else Recorder(ring, rank)
        self.rank = rank
        self.incarnation = incarnation
        self.progress = progress
        self.size = len(job.wiring.ranks)
        self.shared = shared_streams(job.plan.ranks[rank])
        self.samples: list[dict[str, Any]] = []
        # who returns is a new machine, and well
        self.faults = RankFaults.of(rank, () if incarnation else job.rank_faults)

    def run(self) -> None:
        """Connect, run all steps, write what was measured to `<output>/rank-<n>.jsonl`."""
        job = self.job
        self._file.unlink(missing_ok=True)  # of one that was killed, all of whose steps this one does
        joined = join_job(job.wiring, self.rank, self.incarnation)
        self.transport = joined.transport
        self.communicator = self._everybody(joined.costs)
        self.credits: ReceiveCredits | None = None
        try:
            self.communicator.barrier()
            self.executor = self._make_executor()
            calibration = self._calibrate()
            self.host_monitor = HostMonitor(joined.sockets)
            with SocketSampler(self.rank, joined.sockets, job.telemetry_interval_s) as sampler:
                for index, step in enumerate(job.steps):
                    self._step(index, step)
                    self._write(self.samples)
                    self.samples = []
            if job.calibrate_again:
                calibration += self._calibrate(again=True)
            sockets = joined.sockets.socket_info()
            self._wait_for_all()
        except CollectiveTimeout as error:
            state = joined.sockets.describe_state({*error.receives_from, *error.sends_to})
            raise TransportError(f"{error}; {state}") from error
        finally:
            self.transport.close()
            if self.credits is not None:
                self.credits.close()
        lines = [*calibration]
        lines.append(
            {"rank": self.rank, "operation": "sockets", "sockets": sockets, "readings": sampler.records}
        )
        lines.append({"rank": self.rank, "operation": "bootstrap", **joined.bootstrap.to_dict()})
        self._write(lines)

    def _wait_for_all(self) -> None:
        """Nobody leaves before all have looked."""
        self.communicator.barrier()

    @property
    def _file(self) -> Path:
        return Path(self.job.output) / f"rank-{self.rank}.jsonl"

    def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        """To the end of this rank's file."""
        with self._file.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _everybody(self, costs: OperationCosts | None) -> Communicator:
        """Of all ranks, on this rank's transport."""
        wiring = self.job.wiring
        made = Communicator(
            self.transport,
            self.job.plan.near or wiring.buildings,
            timeout_s=wiring.timeout_s,
            tuning=self.job.plan.tuning,
            recorder=self.recorder,
        )
        made.engine.costs = costs
        return made

    def _slow_down(self, communicators: Iterable[Communicator]) -> None:
        """Have operations of these take longer to begin, where that is among what this rank does wrong."""
        if self.faults.slow_io:
            for communicator in communicators:
                communicator.control_delay = lambda: self.faults.control_delay_s(time.monotonic())

    def _make_executor(self) -> PlanExecutor:
        """Communicators of all classes of traffic and groups, and what carries the plan out with them."""
        plan = self.job.plan
        of_class = {0: self.communicator}  # messages of each class have connections of their own
        for dscp in sorted({*plan.dscps.values()} - {0}):
            made = self.communicator.split(range(self.size), f"dscp {dscp}", traffic=TrafficClass(dscp))
            assert made is not None
            of_class[dscp] = made
        groups: dict[int, Communicator] = {}
        collectives = [op for op in plan.ranks[self.rank] if isinstance(op, GroupCollective | Block)]
        dscps = {op.group: plan.dscp(op) for op in collectives}
        for name in dict.fromkeys(name for name, _ in plan.groups):
            same = [(number, who) for number, (own, who) in enumerate(plan.groups) if own == name]
            if name == EVERYBODY:
                groups |= {number: of_class[dscps[number]] for number, _ in same}
                continue
            # all ranks take part in making a group; who is in none of this name says so with itself
            number, members = next(
                ((number, who) for number, who in same if self.rank in who), (-1, (self.rank,))
            )
            made = self.communicator.split(members, name, traffic=TrafficClass(dscps.get(number, 0)))
            if number >= 0:
                assert made is not None
                groups[number] = made
        if plan.holds_receivers:
            self.credits = ReceiveCredits(self.credit_sockets, self.rank, self.transport.wake)
        self._slow_down({*of_class.values(), *groups.values()})
        timeout_s = self.job.wiring.timeout_s
        executor = Executor(plan, of_class, groups, self.job.dtype, timeout_s, self.credits, self.faults)
        executor.computing_share = self.job.wiring.software.computing_share
        return executor

    def _calibrate(self, again: bool = False) -> list[dict[str, Any]]:
        """A ring all-reduce alone on the network, again and again: the first ones open TCP's windows.

        again: after the steps, when the same should take the same.
        """
        if not self.job.calibration_numel or self.size == 1:
            return []
        array = _zeros(self.job.calibration_numel, self.job.dtype)
        records = []
        for attempt in range(self.job.calibrations):
            start_s = self._agree_on_start()
            self._wait_until(start_s)
            resent = retransmitted_segments()
            self.communicator.all_reduce(array, algorithm=BASELINE_RING)
            times = {
                "start_s": start_s,
                "end_s": time.monotonic(),
                "resent": retransmitted_segments() - resent,
            }
            head = {"rank": self.rank, "operation": "calibration", "attempt": attempt, "again": again}
            head["resent_before"] = resent
            records.append({**head, **times})
        return records

    def _agree_on_start(self) -> float:
        """A moment, not far ahead, that all ranks of this machine agree on: the latest proposal wins.

        Under the virtual clock a whole BEAT: the kernel's ticks then fall alike in every step, however many times
        programs have looked at the time before it, and so do the packets that a full queue drops.
        """
        before = time.monotonic_ns()
        proposal = np.array([before], dtype=np.int64)
        self.communicator.all_reduce(proposal, op="max")
        took_ns = time.monotonic_ns() - before
        margin = np.array([took_ns], dtype=np.int64)
        self.communicator.all_reduce(margin, op="max")
        # what took long may be that others waited for the last rank, which says nothing of how long they take to agree
        start_ns = int(proposal[0]) + min(3 * int(margin[0]), MOST_AHEAD_NS) + 10_000_000
        if clock_here() == "free":
            start_ns += -start_ns % BEAT_NS
        return start_ns / 1e9

    def _wait_until(self, start_s: float) -> None:
        """Till then; under the virtual clock to the nanosecond, since waiting for sockets goes by microseconds.

        The flight recorder has it: who waits does not compute.
        """
        record = self.recorder.begin(EVERYONE, 0, WAITING, time.monotonic()) if self.recorder else None
        exact_s = EXACT_S if clock_here() == "free" else 0.0
        self._sleep(start_s - exact_s - time.monotonic())
        if exact_s:
            sleep_until(start_s)
            self.communicator.progress()  # else what messages cost counts from before that
        if record is not None:
            record.ended(COMPLETED, time.monotonic())

    def _sleep(self, seconds: float) -> None:
        self.communicator.sleep(seconds)

    def _step(self, index: int, step: Step) -> None:
        self.executor.prepare(salt=index * 1000)
        start_s = self._agree_on_start()
        if self.rank == 0:
            self._tell_step(index, step, start_s)
        self.faults.step(step.variant, step.trial, start_s)
        self.host_monitor.begin()
        self._wait_until(start_s)
        sent_before = self._sent()
        done = self.executor.run(start_s, step.algorithm)
        end_s = time.monotonic()
        self._tell_end(index, step, self.size)
        sent = {peer: count - sent_before.get(peer, 0) for peer, count in self._sent().items()}
        seen = self.host_monitor.end(start_s, end_s)
        done.look()
        self._record(index, step, (start_s, end_s), done, {"sent_bytes": sent, **seen})

    def _tell_step(self, index: int, step: Step, start_s: float) -> None:
        said = {"index": index, "variant": step.variant, "trial": step.trial, "start_s": start_s}
        self.progress({"event": "step", **said})

    def _tell_end(self, index: int, step: Step, ranks: int) -> None:
        """Say that this rank has ended a measured step; ranks: how many are in it."""
        if step.trial >= 0:
            self.progress({"event": "ended", "index": index, "rank": self.rank, "of": ranks})

    def _record(
        self, index: int, step: Step, span: tuple[float, float], done: PlanOutcome, seen: dict[str, Any]
    ) -> None:
        """What came of a step, for those that count; seen: beside its times, with the bytes sent to each peer."""
        if step.trial < 0:
            return
        sent = seen.pop("sent_bytes")
        head = {"variant": step.variant, "trial": step.trial, "step": index, "rank": self.rank}
        itemsize = np.dtype(self.job.dtype).itemsize
        for number, (operation, own) in enumerate(zip(self.executor.operations, done.spans, strict=True)):
            # messages may have to wait for their receivers
            late_s = done.late_s.get(number) if isinstance(operation, GroupCollective) else None
            self.samples.append(operation_sample(head, operation, number, own, itemsize, self.shared, late_s))
        elements = done.wrong, done.checked
        self.samples.append(step_sample(head, step.variant, span, sent, elements, seen))

    def _sent(self) -> dict[int, int]:
        """Payload bytes sent so far per peer."""
        return {peer: counters.bytes_sent for peer, counters in self.transport.counters.items()}


def _zeros(numel: int, dtype: str) -> Array:
    return np.frombuffer(private_memory(numel * np.dtype(dtype).itemsize), dtype=dtype, count=numel)
