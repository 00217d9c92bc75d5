"""`all_reduce(algorithm="ftar")`: over those ranks of a group whose replicas live."""

from __future__ import annotations

from testbed.comm.collectives import Array
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.flight_entries import About, begin_record
from testbed.comm.collectives.operations import check_array, operation_named
from testbed.comm.flight_recorder import Record
from testbed.comm.replicas.member import Summed
from testbed.comm.replicas.messages import Operation
from testbed.comm.replicas.session import Kept, Session
from testbed.comm.transport import BEST_EFFORT, TrafficClass

FTAR = "ftar"


class ReplicaGroup:
    """A rank's fellows in other replicas, as a communicator for all-reduces: `ranks[p]` is replica p's.

    number: tells its messages from those of all other groups and communicators of the transport; the same on all of its
    ranks. size: how many it has when all replicas live.
    """

    def __init__(
        self,
        session: Session,
        ranks: tuple[int, ...],
        number: int,
        timeout_s: float,
        traffic: TrafficClass = BEST_EFFORT,
        name: str = "",
    ) -> None:
        self.session, self.ranks, self.number = session, ranks, number
        self.timeout_s, self.traffic, self.name = timeout_s, traffic, name
        self.rank, self.size = ranks.index(session.engine.transport.rank), len(ranks)
        self.index = session.groups
        session.groups += 1
        self._recorder = session.engine.recorder
        self._recorded = 0
        if self._recorder is not None:
            self._recorder.group(number, name, ranks)

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        algorithm: str = FTAR,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce `array`, in place, over all members of the current view; `avg` divides by their number.

        The result is tentative, and the array the operation's, until the session has finished the step.
        """
        if algorithm != FTAR:
            raise ValueError(f"algorithm: got {algorithm!r}, expected {FTAR} among replicas that come and go")
        check_array(array, "array", writes=True)
        operation_named(op)
        flat = array.reshape(-1)
        operation = self.session.next_operation(self.index)
        kept = Kept(self.ranks, self.number, self.traffic, op, flat.copy(), flat)
        name = f"all_reduce #{operation[1]} of {self.name}" if self.name else f"all_reduce #{operation[1]}"
        engine = self.session.engine
        task = engine.start(name, self.session.begin(operation, kept), record=self._record(flat, op))
        work = Work(engine, task, self.timeout_s if timeout_s is None else timeout_s, operation)
        if not async_op:
            work.wait()
        return work

    def _record(self, array: Array, op: str) -> Record | None:
        """Of the flight recorder, which numbers operations through all steps. What attempts send is not in it."""
        self._recorded += 1
        about = About(array, FTAR, op)
        record = begin_record(self._recorder, self.number, self._recorded, "all_reduce", about)
        if record is not None:
            record.started(record.scheduled_s)
        return record

    def summed(self, operation: Operation) -> Summed:
        """Of whom an operation's sum is, once its step is committed."""
        return self.session.member.committed[operation]
