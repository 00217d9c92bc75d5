"""Windows: memory that a communicator's members write into without asking its owner, under torchcomms' names.

After MPI's remote memory access and NCCLX's windows (arXiv:2510.20171): `new_window` tells all members of all windows,
in one all-gather; from then on a put is one message, which no receive, announcement or slot is needed for, and a signal
an empty one. Which protocol a scenario has makes no difference to them.
"""

from __future__ import annotations

import numpy as np

from testbed.comm.collectives.arrays import NOTHING, Array, as_bytes, check_array
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.group import OperationInfo, RankGroup
from testbed.comm.collectives.progress_engine import Position, Steps
from testbed.comm.flight_recorder import Record
from testbed.comm.transport import Transport, TransportError
from testbed.comm.transport.onesided import (
    FENCE,
    ExposedWindows,
    OneSided,
    find_one_sided,
    put_tag,
    signal_tag,
)

_TOLD = 3  # of each member's window: its number there, its elements, bytes of an element


class WindowOperations(RankGroup):
    """What members of a communicator do with windows."""

    def new_window(self, array: Array, timeout_s: float | None = None) -> Window:
        """Have all members write into this rank's `array` from now on, and this one into theirs.

        Every rank of the communicator calls it, with as many elements as it likes, of one type. Sends 24 bytes for each
        member; TransportError where a transport of somebody's own does not take puts.
        """
        check_array(array, "array", writes=True)
        carrier = find_one_sided(self.transport)
        if carrier is None:
            raise TransportError(
                f"rank {self.transport.rank}: window: its transport takes no puts, expected one that has `exposed`"
            )
        assert isinstance(carrier, OneSided)
        # first: whoever has heard of it may write
        number = carrier.exposed.add(as_bytes(array), self.ranks)
        told = np.zeros((self.size, _TOLD), np.int64)
        told[self.rank] = number, array.size, array.itemsize
        plan = self._plan("all_gather", "far_first", told[0].nbytes)
        flat = told.reshape(-1)

        def steps(tag: int, position: Position) -> Steps:
            return self._blocks(plan, flat, flat, tag, position)

        about = OperationInfo(array, plan.algorithm)
        try:
            self._collective("new_window", steps, False, timeout_s, about)
            sizes = sorted(set(told[:, 2].tolist()))
            if sizes != [array.itemsize]:
                raise ValueError(
                    f"array: got elements of {sizes} bytes on the ranks, expected one type on all"
                )
        except BaseException:
            carrier.exposed.remove(number)
            raise
        return Window(self, carrier, carrier.exposed, array, told)


class Window:
    """This rank's window, and what it knows of the others'. `array`: this rank's, which peers write into.

    Puts and signals to one rank arrive in the order in which they were begun, and a signal is had only when all puts
    before it are in place; those to different ranks know nothing of each other. Whoever writes into an array that is
    being read, or twice to one place without a signal in between, gets what he asked for. All operations return a Work,
    as the communicator's do, and fail with it.
    """

    def __init__(
        self,
        members: WindowOperations,
        carrier: Transport,
        exposed: ExposedWindows,
        array: Array,
        told: Array,
    ) -> None:
        self.array = array
        self._members, self._carrier, self._exposed = members, carrier, exposed
        self._numbers: list[int] = told[:, 0].tolist()
        self._sizes: list[int] = told[:, 1].tolist()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each member's window."""
        return tuple(self._sizes)

    def put(
        self,
        array: Array,
        dst: int,
        offset: int = 0,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Write `array` into rank `dst`'s window, from its element `offset` on.

        Done when `array` may be used again; the other side is told by `signal`, or by `fence`. ValueError, naming
        window, offset and size, for what does not fit.
        """
        members = self._members
        check_array(array, "array", like=self.array)
        number, size = self._known(dst)
        if not 0 <= offset <= size - array.size:
            raise ValueError(
                f"put into window {number} of rank {dst}: got {array.size} elements at offset {offset}, "
                f"expected them within its {size}"
            )
        there, view = members.ranks[dst], as_bytes(array)
        tag = put_tag(number, offset * array.itemsize)
        record = members._begin_record("put", 0, OperationInfo(array), there, number)

        def steps() -> Steps:
            if record is not None:
                record.sent(there, len(view), members.transport.now_s)
            if view:
                yield (self._carrier.isend(there, tag, view, members.traffic),)

        return self._begin(f"put to rank {dst}, window {number}", steps(), async_op, timeout_s, record)

    def signal(self, dst: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Have rank `dst` know that all puts to it that were begun before this are in place."""
        members = self._members
        number, _ = self._known(dst)
        there, tag = members.ranks[dst], signal_tag(number)
        record = members._begin_record("signal", 0, OperationInfo(), there, number)

        def steps() -> Steps:
            if record is not None:
                record.sent(there, 0, members.transport.now_s)
            yield (self._carrier.isend(there, tag, NOTHING, members.traffic),)

        return self._begin(f"signal to rank {dst}, window {number}", steps(), async_op, timeout_s, record)

    def wait_signal(self, peer: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Done when a signal of rank `peer`'s has come that no other `wait_signal` has had; each has one."""
        members = self._members
        self._known(peer, "peer")
        there, number = members.ranks[peer], self._numbers[members.rank]
        record = members._begin_record("wait_signal", 0, OperationInfo(), there, number)

        def steps() -> Steps:
            if record is not None:
                record.expected(there, 0, members.transport.now_s)
            yield (self._carrier.irecv(there, signal_tag(number), NOTHING, members.traffic),)
            if record is not None:
                record.received(there, 0, members.transport.now_s)

        words = f"wait_signal from rank {peer}, window {number}"
        return self._begin(words, steps(), async_op, timeout_s, record)

    def fence(self, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Done when all members have called it and all puts that any began before are in place, as `MPI_Win_fence`.

        An empty message from each to each.
        """
        members = self._members
        own = self._numbers[members.rank]

        def steps(tag: int, position: Position) -> Steps:
            transport, record = self._carrier, position.record
            waits = []
            for peer, there in enumerate(members.ranks):
                if peer == members.rank:
                    continue
                if record is not None:
                    record.sent(there, 0, transport.now_s)
                    record.expected(there, 0, transport.now_s)
                waits.append(transport.irecv(there, signal_tag(own, FENCE), NOTHING, members.traffic))
                waits.append(
                    transport.isend(there, signal_tag(self._numbers[peer], FENCE), NOTHING, members.traffic)
                )
            yield tuple(waits)
            if record is not None:
                for there in members.ranks:
                    if there != transport.rank:
                        record.received(there, 0, transport.now_s)

        return members._collective("fence", steps, async_op, timeout_s, OperationInfo())

    def free(self, timeout_s: float | None = None) -> None:
        """`fence`, and nobody writes any more: a put that comes later loses its sender. Every rank calls it."""
        self.fence(timeout_s=timeout_s)
        self._exposed.remove(self._numbers[self._members.rank])

    def _begin(
        self, name: str, steps: Steps, async_op: bool, timeout_s: float | None, record: Record | None
    ) -> Work:
        """An operation without a control part: what it needs was registered, and told, with the window."""
        members, engine = self._members, self._members.engine
        if record is not None:
            record.started(record.scheduled_s)
        name = f"{name} of {members.name}" if members.name else name
        task = engine.start(name, steps, None, members._scope, record)
        work = Work(engine, task, members.timeout_s if timeout_s is None else timeout_s)
        if not async_op:
            work.wait()
        return work

    def _known(self, rank: int, name: str = "dst") -> tuple[int, int]:
        """A member's window: its number there, its elements."""
        members = self._members
        if not 0 <= rank < members.size or rank == members.rank:
            raise ValueError(f"{name}: got {rank}, expected another rank of 0 to {members.size - 1}")
        return self._numbers[rank], self._sizes[rank]
