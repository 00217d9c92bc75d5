"""A rank of a job with elastic replicas; the replicas agree on steps through a coordinator."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable
from typing import Any

from testbed.comm.collectives import Communicator
from testbed.comm.replicas import ReplicaGroup, Session, SessionSettings
from testbed.comm.transport import TrafficClass, TransportError
from testbed.measure.ranks.executor import Executor, PlanOutcome
from testbed.measure.ranks.rank import Rank
from testbed.measure.ranks.telemetry import HostMonitor, SocketSampler
from testbed.workload.job.endpoints import JoinedRank, join_job
from testbed.workload.job.launch_spec import JobSpec
from testbed.workload.plan import GroupCollective

REASON_S = 5.0  # time for the coordinator to report a failure's cause, after it should have detected it


class ReplicaRank(Rank):
    """A rank of an elastic replica. Its records survive its death; `line` connects it to the coordinator."""

    def __init__(
        self,
        job: JobSpec,
        rank: int,
        progress: Callable[[dict[str, Any]], None],
        line: socket.socket,
        incarnation: int = 0,
        ring: mmap.mmap | None = None,
    ) -> None:
        super().__init__(job, rank, progress, ring=ring, incarnation=incarnation)
        assert job.replication is not None
        self.replication = job.replication
        self.line = line
        self._given_bytes = self._checkpoint_bytes = 0  # up to the last record, including bytes between steps

    def run(self) -> None:
        """Connect and run all steps in which the replica takes part.

        Raises:
            RankDismissed: If the coordinator has excluded the replica, or the job is over.
            TransportError: If the rank fails otherwise.
        """
        joined = join_job(self.job.wiring, self.rank, self.incarnation)
        self.transport = joined.transport
        self.session: Session | None = None
        self._write([{"rank": self.rank, "operation": "bootstrap", **joined.bootstrap.to_dict()}])
        try:
            self._run(joined)
        except TransportError:
            left = self.session and self.session.wait_for_dismissal(
                self.replication.policy.detect_s + REASON_S
            )
            if left is None:
                raise
            raise left from None
        finally:
            if self.session is not None:
                self.session.close()
            self.transport.close()

    def _run(self, joined: JoinedRank) -> None:
        job = self.job
        self.communicator = self._everybody(joined.costs)
        if not self.incarnation:
            self.communicator.barrier()
            self._write(self._calibrate())
        self.host_monitor = HostMonitor(joined.sockets)
        with SocketSampler(self.rank, joined.sockets, job.telemetry_interval_s) as sampler:
            self.session = session = self._make_session()
            self.executor = self._make_executor()
            index = session.wait_for_step().step
            sockets: list[dict[str, Any]] = []
            try:
                while index < len(job.steps):
                    self._step(index, job.steps[index])
                    self._write(self.samples)
                    self.samples = []
                    index = session.member.step
                sockets = joined.sockets.socket_info()
            finally:
                readings = {"sockets": sockets, "readings": sampler.records}
                self._write([{"rank": self.rank, "operation": "sockets", **readings}])

    def _make_session(self) -> Session:
        spec = self.replication
        place = next(ranks.index(self.rank) for ranks in spec.replicas if self.rank in ranks)
        checkpoint = spec.checkpoint_elements[place] if spec.checkpoint_elements else 0
        settings = SessionSettings(
            spec.heartbeat_s,
            spec.ring,
            spec.state_elements[place] * 4,
            TrafficClass(spec.dscp),
            checkpoint * 4,
            spec.policy.checkpoint_every,
        )
        return Session(self.communicator.engine, self.line, spec.replicas, self.incarnation, settings)

    def _make_executor(self) -> Executor:
        """Create the executor without sending messages to other ranks, since some may be missing."""
        plan, session = self.job.plan, self.session
        assert session is not None
        mates = self.replication.replicas[session.replica]
        classes = sorted({0, *plan.dscps.values()})
        of_class = {
            dscp: self.communicator.split_as(
                number, range(self.size), f"dscp {dscp}", traffic=TrafficClass(dscp), fails_with=mates
            )
            for number, dscp in enumerate(classes, 1)
        }
        collectives = [op for op in plan.ranks[self.rank] if isinstance(op, GroupCollective)]
        dscps = {op.group: plan.dscp(op) for op in collectives}
        groups: dict[int, Communicator] = {}
        lasting: dict[int, ReplicaGroup] = {}
        for index, (name, members) in enumerate(plan.groups):
            if self.rank not in members:
                continue
            number, traffic = 1 + len(classes) + index, TrafficClass(dscps.get(index, 0))
            if self.replication.tolerant and not set(members) <= set(mates):
                timeout_s = self.job.wiring.timeout_s
                lasting[index] = ReplicaGroup(session, members, number, timeout_s, traffic, name)
            else:
                groups[index] = self.communicator.split_as(number, members, name, traffic=traffic)
        self._slow_down({*of_class.values(), *groups.values()})
        timeout_s = self.job.wiring.timeout_s
        made = Executor(plan, of_class, groups, self.job.dtype, timeout_s, None, self.faults, lasting)
        made.computing_share = self.job.wiring.software.computing_share
        return made

    def _sleep(self, seconds: float) -> None:
        self.communicator.engine.sleep(seconds, None)

    def _agree_on_step(self) -> float:
        return self._live_session.agree_on_start()

    @property
    def _live_session(self) -> Session:
        assert self.session is not None
        return self.session

    @property
    def _announces(self) -> bool:
        session = self._live_session
        return session.replica == session.members[0] and session.place == 0

    @property
    def _ranks_in_step(self) -> int:
        return sum(len(self.replication.replicas[member]) for member in self._live_session.members)

    def _run_plan(self, start_s: float, algorithm: str) -> PlanOutcome:
        self._stops_before = len(self._live_session.stops)
        done = super()._run_plan(start_s, algorithm)
        self._summed = self._live_session.finish()
        return done

    def _step_fields(self, done: PlanOutcome) -> dict[str, Any]:
        session, summed = self._live_session, self._summed.values()
        done.wrong += session.caught_up_wrong
        given_bytes, checkpoint_bytes = self._given_bytes, self._checkpoint_bytes
        self._given_bytes, self._checkpoint_bytes = session.sent_bytes, session.checkpoint_bytes
        return {
            "incarnation": self.incarnation,
            "epoch": max((one.epoch for one in summed), default=session.member.epoch),
            "replicas": sorted({member for one in summed for member in one.members}),
            "stopped_s": [end_s - begin_s for begin_s, end_s in session.stops[self._stops_before :]],
            "given_bytes": self._given_bytes - given_bytes,
            "checkpoint_bytes": self._checkpoint_bytes - checkpoint_bytes,
        }
