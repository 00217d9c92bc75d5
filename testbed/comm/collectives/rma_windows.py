"""Windows: memory that the members of a communicator write into directly, with the names of torchcomms.

Modelled on MPI's remote memory access and NCCLX's windows (arXiv:2510.20171). `new_window` exchanges all windows in
one all-gather. From then on a put is one message, which needs no receive, announcement or slot, and a signal is an
empty message. The scenario's protocol does not affect them.
"""

from __future__ import annotations

import numpy as np

from testbed.comm.collectives.arrays import NOTHING, Array, as_bytes, check_array
from testbed.comm.collectives.group import OperationInfo, RankGroup
from testbed.comm.collectives.plan_executor import Group
from testbed.comm.collectives.progress_engine import Position, Steps, Work
from testbed.comm.transport import TransportError
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
        try:
            self._execute("new_window", plan, array, flat, flat, False, timeout_s)
            sizes = sorted(set(windows[:, 2].tolist()))
            if sizes != [array.itemsize]:
                raise ValueError(
                    f"array: got elements of {sizes} bytes on the ranks, expected one type on all"
                )
        except BaseException:
            carrier.exposed.remove(number)
            raise
        group = Group(self.engine, self.ranks, self.traffic, carrier)
        return Window(self, group, carrier.exposed, array, windows)


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
        group: Group,
        exposed: ExposedWindows,
        array: Array,
        windows: Array,
    ) -> None:
        self.array = array
        self._members, self._group, self._exposed = members, group, exposed
        self._numbers: list[int] = windows[:, 0].tolist()
        self._sizes: list[int] = windows[:, 1].tolist()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements in each member's window."""
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
        check_array(array, "array", like=self.array)
        number, size = self._known(dst)
        if not 0 <= offset <= size - array.size:
            raise ValueError(
                f"put into window {number} of rank {dst}: got {array.size} elements at offset {offset}, "
                f"expected them within its {size}"
            )
        title, tag = f"put to rank {dst}, window {number}", put_tag(number, offset * array.itemsize)
        return self._message("put", title, number, dst, tag, async_op, timeout_s, array)

    def signal(self, dst: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Signal rank `dst` that all earlier puts to it are in place."""
        number, _ = self._known(dst)
        title = f"signal to rank {dst}, window {number}"
        return self._message("signal", title, number, dst, signal_tag(number), async_op, timeout_s)

    def wait_signal(self, peer: int, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Wait for a signal from rank `peer`; each signal completes one `wait_signal`."""
        self._known(peer, "peer")
        number = self._numbers[self._members.rank]
        title = f"wait_signal from rank {peer}, window {number}"
        return self._message("wait_signal", title, number, peer, signal_tag(number), async_op, timeout_s)

    def fence(self, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Wait until all members have called `fence` and all their earlier puts are in place, like `MPI_Win_fence`.

        Every member sends every other member an empty message.
        """
        members, group = self._members, self._group
        own = self._numbers[members.rank]

        def steps(tag: int, position: Position) -> Steps:
            waits = []
            for peer, number in enumerate(self._numbers):
                if peer != members.rank:
                    waits.append(group.receive(peer, signal_tag(own, FENCE), NOTHING, position.record))
                    waits.append(group.send(peer, signal_tag(number, FENCE), NOTHING, position.record))
            yield tuple(waits)

        return members._collective("fence", steps, async_op, timeout_s, OperationInfo())

    def free(self, timeout_s: float | None = None) -> None:
        """Close the window after a `fence`; a later put ends the connection to its sender. Every rank calls it."""
        self.fence(timeout_s=timeout_s)
        self._exposed.remove(self._numbers[self._members.rank])

    def _message(
        self,
        kind: str,
        title: str,
        number: int,
        peer: int,
        tag: int,
        async_op: bool,
        timeout_s: float | None,
        array: Array | None = None,
    ) -> Work:
        """Start an operation without a control part, because registration and exchange happened with the window."""
        members, group, engine = self._members, self._group, self._members.engine
        target = members.ranks[peer]
        record = engine.record(members._number, 0, kind, array, peer=target, tag=number)
        timeout_s = members.timeout_s if timeout_s is None else timeout_s

        def steps() -> Steps:
            begin = group.receive if kind == "wait_signal" else group.send
            view = NOTHING if array is None else as_bytes(array)
            if array is None or view:
                yield (begin(peer, tag, view, record),)

        if record is not None:
            record.started(record.scheduled_s)
        position = Position(record)
        return Work(engine, title, members.name, steps(), position, timeout_s, members._scope).begin(async_op)

    def _known(self, rank: int, name: str = "dst") -> tuple[int, int]:
        """Return a member's window: its number at the owner, and its elements."""
        members = self._members
        if not 0 <= rank < members.size or rank == members.rank:
            raise ValueError(f"{name}: got {rank}, expected another rank of 0 to {members.size - 1}")
        return self._numbers[rank], self._sizes[rank]
