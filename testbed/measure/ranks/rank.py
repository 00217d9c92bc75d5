"""A rank of a training job, which connects to its peers, runs the steps, times every operation and checks every sum.

The timed part of a step excludes filling the gradients, agreeing on a common start and checking the result.
"""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from testbed.clock import STEP_ALIGNMENT_S, clock_here, sleep_until
from testbed.comm.collectives import CollectiveTimeout, Communicator
from testbed.comm.collectives.baseline_ring import BASELINE_RING
from testbed.comm.flight_recorder import COMPLETED, Recorder
from testbed.comm.transport import OperationCosts, TrafficClass, TransportError
from testbed.measure.ranks.collective_buffers import zeros
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

BEAT_NS = round(STEP_ALIGNMENT_S * 1e9)  # alignment of step starts in a guest
MOST_AHEAD_NS = 3_000_000_000  # maximum delay from the agreement on a start to the start
EXACT_S = 20e-6
EVERYONE, WAITING = 0, "wait_for_start"  # group and operation in the flight recorder


class PlanExecutor(Protocol):
    """The interface that runs a rank's plan once per step; see Executor."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations of the last step."""

    def prepare(self, salt: int) -> None:
        """Fill the data to send."""

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """Run the whole plan once."""


class Rank:
    """One rank of a job. Its samples are written between steps, so that a live view can show them.

    Args:
        job: The job.
        rank: The rank.
        progress: Called with events: on rank 0 before each step, and on all ranks at the end of each step.
        credit_sockets: Sockets for receive credits; empty if messages do not wait for receivers.
        ring: Memory of its flight recorder; None for no recording.
        incarnation: Number of times that the rank was killed and restarted.
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
        # a restarted rank emulates a new, healthy machine
        self.faults = RankFaults.of(rank, () if incarnation else job.rank_faults)

    def run(self) -> None:
        """Connect, run all steps, and write the measurements to `<output>/rank-<n>.jsonl`."""
        job = self.job
        self._file.unlink(missing_ok=True)  # left by a killed incarnation; the current one repeats all steps
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
        """Wait until all ranks have read their sockets."""
        self.communicator.barrier()

    @property
    def _file(self) -> Path:
        return Path(self.job.output) / f"rank-{self.rank}.jsonl"

    def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        with self._file.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _everybody(self, costs: OperationCosts | None) -> Communicator:
        """Return the communicator of all ranks."""
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
        """Delay the start of operations on these communicators if the rank has a slow-I/O fault."""
        if self.faults.slow_io:
            for communicator in communicators:
                communicator.control_delay = lambda: self.faults.control_delay_s(time.monotonic())

    def _make_executor(self) -> PlanExecutor:
        """Create the communicators of all traffic classes and groups, and the executor."""
        plan = self.job.plan
        of_class = {0: self.communicator}  # each traffic class has its own connections
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
            # creating a group is collective: a rank that is in no group of this name joins with a group of only itself
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
        """Run the isolated ring all-reduce several times (the first ones grow TCP's windows), and return its records.

        `again` is true after the steps, when it should take the same time as before.
        """
        if not self.job.calibration_numel or self.size == 1:
            return []
        array = zeros(self.job.calibration_numel, self.job.dtype)
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
        """Agree with all ranks on a start in the near future: the latest proposal wins.

        Under the virtual clock the start is a multiple of BEAT_NS. The kernel's ticks then fall on the same offsets in
        every step, however often programs have read the time before. So full queues drop the same packets.
        """
        before = time.monotonic_ns()
        proposal = np.array([before], dtype=np.int64)
        self.communicator.all_reduce(proposal, op="max")
        took_ns = time.monotonic_ns() - before
        margin = np.array([took_ns], dtype=np.int64)
        self.communicator.all_reduce(margin, op="max")
        # a long agreement may include waiting for the last rank, so the margin for the next one is limited
        start_ns = int(proposal[0]) + min(3 * int(margin[0]), MOST_AHEAD_NS) + 10_000_000
        if clock_here() == "free":
            start_ns += -start_ns % BEAT_NS
        return start_ns / 1e9

    def _wait_until(self, start_s: float) -> None:
        """Wait until the start, exact to the nanosecond under the virtual clock (waits on sockets are coarser).

        The flight recorder records the wait, since a waiting rank does not compute.
        """
        record = self.recorder.begin(EVERYONE, 0, WAITING, time.monotonic()) if self.recorder else None
        exact_s = EXACT_S if clock_here() == "free" else 0.0
        self._sleep(start_s - exact_s - time.monotonic())
        if exact_s:
            sleep_until(start_s)
            self.communicator.progress()  # otherwise message costs would count from a time before the start
        if record is not None:
            record.ended(COMPLETED, time.monotonic())

    def _sleep(self, seconds: float) -> None:
        self.communicator.sleep(seconds)

    def _step(self, index: int, step: Step) -> None:
        self.executor.prepare(salt=index * 1000)
        start_s = self._agree_on_step()
        if self._announces:
            fields = {"index": index, "variant": step.variant, "trial": step.trial, "start_s": start_s}
            self.progress({"event": "step", **fields})
        self.faults.step(step.variant, step.trial, start_s)
        self.host_monitor.begin()
        self._wait_until(start_s)
        sent_before = self._sent()
        done = self._run_plan(start_s, step.algorithm)
        end_s = time.monotonic()
        if step.trial >= 0:
            self.progress({"event": "ended", "index": index, "rank": self.rank, "of": self._ranks_in_step})
        sent = {peer: count - sent_before.get(peer, 0) for peer, count in self._sent().items()}
        seen = self.host_monitor.end(start_s, end_s)
        done.run_checks()
        fields = {"sent_bytes": sent, **self._step_fields(done), **seen}
        self._record(index, step, (start_s, end_s), done, fields)

    def _agree_on_step(self) -> float:
        """Agree on the step's start with all ranks that take part in it."""
        return self._agree_on_start()

    @property
    def _announces(self) -> bool:
        """Whether this rank reports the starts of steps."""
        return self.rank == 0

    @property
    def _ranks_in_step(self) -> int:
        """The number of ranks that take part in the step."""
        return self.size

    def _run_plan(self, start_s: float, algorithm: str) -> PlanOutcome:
        return self.executor.run(start_s, algorithm)

    def _step_fields(self, done: PlanOutcome) -> dict[str, Any]:
        """Return further fields of the step's sample, after its checks."""
        return {}

    def _record(
        self, index: int, step: Step, span: tuple[float, float], done: PlanOutcome, seen: dict[str, Any]
    ) -> None:
        """Add the samples of a measured step; `seen` are further fields, with the bytes sent to each peer."""
        if step.trial < 0:
            return
        sent = seen.pop("sent_bytes")
        head = {"variant": step.variant, "trial": step.trial, "step": index, "rank": self.rank}
        itemsize = np.dtype(self.job.dtype).itemsize
        for number, (operation, own) in enumerate(zip(self.executor.operations, done.spans, strict=True)):
            # only collectives, since messages may have to wait for their receivers
            late_s = done.late_s.get(number) if isinstance(operation, GroupCollective) else None
            self.samples.append(operation_sample(head, operation, number, own, itemsize, self.shared, late_s))
        elements = done.wrong, done.checked
        self.samples.append(step_sample(head, step.variant, span, sent, elements, seen))

    def _sent(self) -> dict[int, int]:
        return {peer: counters.bytes_sent for peer, counters in self.transport.counters.items()}
