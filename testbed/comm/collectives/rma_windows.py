"""Windows: memory that the members of a communicator write into directly, with the names of torchcomms.

Modelled on MPI's remote memory access and NCCLX's windows (arXiv:2510.20171). `new_window` exchanges all windows in
one all-gather. From then on a put is one message, which needs no receive, announcement or slot, and a signal is an
empty message. The scenario's protocol does not affect them.
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

_FIELDS = 3  # exchanged for each window: its number at the owner, its elements, bytes per element


class WindowOperations(RankGroup):
    """Window operations of a communicator."""

    def new_window(self, array: Array, timeout_s: float | None = None) -> Window:
        """Expose this rank's `array` for writes by all members, and get access to theirs.

        Every rank of the communicator calls it, each with any number of elements, all of one type. Sends 24 bytes
        per member. Raises TransportError if a custom transport does not support puts.
        """
        check_array(array, "array", writes=True)
        carrier = find_one_sided(self.transport)
        if carrier is None:
            raise TransportError(
                f"rank {self.transport.rank}: window: its transport supports no puts, expected one with `exposed`"
            )
        assert isinstance(carrier, OneSided)
        # first, because a member that knows the window may write to it
        number = carrier.exposed.add(as_bytes(array), self.ranks)
        windows = np.zeros((self.size, _FIELDS), np.int64)
        windows[self.rank] = number, array.size, array.itemsize
        plan = self._plan("all_gather", "far_first", windows[0].nbytes)
        flat = windows.reshape(-1)

        def steps(tag: int, position: Position) -> Steps:
            return self._blocks(plan, flat, flat, tag, position)

        about = OperationInfo(array, plan.algorithm)
        try:
            self._collective("new_window", steps, False, timeout_s, about)
            sizes = sorted(set(windows[:, 2].tolist()))
            if sizes != [array.itemsize]:
                raise ValueError(
                    f"array: got elements of {sizes} bytes on the ranks, expected one type on all"
                )
        except BaseException:
            carrier.exposed.remove(number)
            raise
        return Window(self, carrier, carrier.exposed, array, windows)


class Window:
    """This rank's window and access to those of the other members.

    `array` is this rank's memory, which peers write into. Puts and signals to one rank arrive in the order in which
    they were started, and a signal is delivered only after all earlier puts are in place; there is no order between
    different ranks. Writes into an array that is being read, or twice to one place without a signal in between,
    have undefined results. All operations return a Work, as the communicator's do, and fail with it.
    """

    def __init__(
        self,
        members: WindowOperations,
        carrier: Transport,
        exposed: ExposedWindows,
        array: Array,
        windows: Array,
    ) -> None:
        self.array = array
        self._members, self._carrier, self._exposed = members, carrier, exposed
        self._numbers: list[int] = windows[:, 0].tolist()
        self._sizes: list[int] = windows[:, 1].tolist()

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
        """Write `array` into rank `dst`'s window, starting at its element `offset`.

        Done when `array` may be reused; the target learns of it through `signal` or `fence`. Raises ValueError,
        naming window, offset and size, if the array does not fit.
        """
        members = self._members
        check_array(array, "array", like=self.array)
        number, size = self._known(dst)
        if not 0 <= offset <= size - array.size:
            raise ValueError(
                f"put into window {number} of rank {dst}: got {array.size} elements at offset {offset}, "
                f"expected them within its {size}"
            )
        target, view = members.ranks[dst], as_bytes(array)
        tag = put_tag(number, offset * array.itemsize)
        record = members._begin_record("put", 0, OperationInfo(array), target, number)

        def steps() -> Steps:
            if record is not None:
                record.sent(target, len(view), members.transport.now_s)
            if view:
                yield (self._carrier.isend(target, tag, view, members.traffic),)

        return self._begin(f"put to rank {dst}, window {number}", steps(), async_op, timeout_s, record)

    def signal(self, dst: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Signal rank `dst` that all earlier puts to it are in place."""
        members = self._members
        number, _ = self._known(dst)
        target, tag = members.ranks[dst], signal_tag(number)
        record = members._begin_record("signal", 0, OperationInfo(), target, number)

        def steps() -> Steps:
            if record is not None:
                record.sent(target, 0, members.transport.now_s)
            yield (self._carrier.isend(target, tag, NOTHING, members.traffic),)

        return self._begin(f"signal to rank {dst}, window {number}", steps(), async_op, timeout_s, record)

    def wait_signal(self, peer: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Wait for a signal from rank `peer`; each signal completes one `wait_signal`."""
        members = self._members
        self._known(peer, "peer")
        source, number = members.ranks[peer], self._numbers[members.rank]
        record = members._begin_record("wait_signal", 0, OperationInfo(), source, number)

        def steps() -> Steps:
            if record is not None:
                record.expected(source, 0, members.transport.now_s)
            yield (self._carrier.irecv(source, signal_tag(number), NOTHING, members.traffic),)
            if record is not None:
                record.received(source, 0, members.transport.now_s)

        title = f"wait_signal from rank {peer}, window {number}"
        return self._begin(title, steps(), async_op, timeout_s, record)

    def fence(self, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Wait until all members have called it and all earlier puts of all members are in place, as `MPI_Win_fence`.

        Every member sends every other member an empty message.
        """
        members = self._members
        own = self._numbers[members.rank]

        def steps(tag: int, position: Position) -> Steps:
            transport, record = self._carrier, position.record
            waits = []
            for peer, rank in enumerate(members.ranks):
                if peer == members.rank:
                    continue
                if record is not None:
                    record.sent(rank, 0, transport.now_s)
                    record.expected(rank, 0, transport.now_s)
                waits.append(transport.irecv(rank, signal_tag(own, FENCE), NOTHING, members.traffic))
                waits.append(
                    transport.isend(rank, signal_tag(self._numbers[peer], FENCE), NOTHING, members.traffic)
                )
            yield tuple(waits)
            if record is not None:
                for rank in members.ranks:
                    if rank != transport.rank:
                        record.received(rank, 0, transport.now_s)

        return members._collective("fence", steps, async_op, timeout_s, OperationInfo())

    def free(self, timeout_s: float | None = None) -> None:
        """Close the window after a `fence`; a later put makes its sender lose this rank. Every rank calls it."""
        self.fence(timeout_s=timeout_s)
        self._exposed.remove(self._numbers[self._members.rank])

    def _begin(
        self, name: str, steps: Steps, async_op: bool, timeout_s: float | None, record: Record | None
    ) -> Work:
        """Start an operation without a control part, because registration and exchange happened with the window."""
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
        """Return a member's window: its number at the owner, and its elements."""
        members = self._members
        if not 0 <= rank < members.size or rank == members.rank:
            raise ValueError(f"{name}: got {rank}, expected another rank of 0 to {members.size - 1}")
        return self._numbers[rank], self._sizes[rank]
