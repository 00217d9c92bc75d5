"""Faults that a rank injects into itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from testbed.comm.collectives import collective_of
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.workload.job.launch_spec import MISMATCH, ORDER, SIZE, SKIP, SLOW, SLOW_IO, TYPE, RankFault
from testbed.workload.plan import GroupCollective

OTHER_TYPE = {
    "bfloat16": "float32",
    "float16": "float32",
}  # a type of another size, as in wrongly configured mixed precision
USUAL_OTHER_TYPE = "bfloat16"


@dataclass
class _Lasting:
    """A fault and its span on CLOCK_MONOTONIC; `used` is true if a one-step fault has been applied."""

    fault: RankFault
    begin_s: float
    end_s: float
    used: bool = False


class RankFaults:
    """The faults of one rank, possibly none; times are in seconds of CLOCK_MONOTONIC."""

    def __init__(self, faults: Iterable[RankFault] = ()) -> None:
        self._faults = tuple(faults)
        self._variant = ""
        self._lasting: list[_Lasting] = []
        self._skipped: set[int] = set()
        self._places: dict[int, int] = {}
        self._mismatched: dict[int, str] = {}

    @classmethod
    def of(cls, rank: int, faults: Iterable[RankFault]) -> RankFaults:
        """Return the faults of one rank among those of all ranks."""
        return cls(fault for fault in faults if fault.rank == rank)

    def step(self, variant: str, trial: int, start_s: float) -> None:
        """Prepare for a step that starts at `start_s`; due one-step faults apply to this step.

        A change of variant removes all earlier faults. Trials count from 0.
        """
        if variant != self._variant or trial == 0:
            self._variant, self._lasting = variant, []
        for fault in self._faults:
            if fault.step == trial:
                begin_s = start_s + fault.after_s
                end_s = math.inf if fault.for_s is None else begin_s + fault.for_s
                self._lasting.append(_Lasting(fault, begin_s, end_s))
        self._skipped, self._places, self._mismatched = set(), {}, {}
        for lasting in self._lasting:
            fault = lasting.fault
            if lasting.begin_s > start_s or lasting.used:
                continue
            lasting.used = True
            if fault.action == SKIP:
                self._skipped.add(fault.place)
            elif fault.action == MISMATCH and fault.what == ORDER:
                self._places |= {fault.place: fault.other, fault.other: fault.place}
            elif fault.action == MISMATCH:
                self._mismatched[fault.place] = fault.what

    def slowdown(self, now_s: float) -> float:
        """Return the factor by which a computation that starts now takes longer."""
        return math.prod(lasting.fault.factor for lasting in self._active(SLOW, now_s))

    def control_delay_s(self, now_s: float) -> float:
        """Return the extra delay of the control part of an operation that starts now."""
        return sum(lasting.fault.delay_s for lasting in self._active(SLOW_IO, now_s))

    @property
    def slow_io(self) -> bool:
        """Whether any fault delays control parts."""
        return any(fault.action == SLOW_IO for fault in self._faults)

    def _active(self, action: str, now_s: float) -> list[_Lasting]:
        return [
            lasting
            for lasting in self._lasting
            if lasting.fault.action == action and lasting.begin_s <= now_s < lasting.end_s
        ]

    def skips(self, place: int) -> bool:
        """Return whether the rank hangs at an operation of its plan in this step."""
        return place in self._skipped

    def place(self, place: int) -> int:
        """Return the operation of the plan that the rank runs in place of the given one."""
        return self._places.get(place, place)

    def mismatch(self, place: int) -> str:
        """Return the property in which a collective differs from that of the other ranks; "" if it does not differ."""
        return self._mismatched.get(place, "")


def make_mismatched(
    operation: GroupCollective, what: str, dtype: str, rank: int, size: int
) -> tuple[GroupCollective, CollectiveArrays]:
    """Return a collective of another size or type, and its arrays; `rank` and `size` refer to its group."""
    if what == TYPE:
        dtype = OTHER_TYPE.get(dtype, USUAL_OTHER_TYPE)
    else:
        assert what == SIZE, what
        operation = _smaller(operation, size)
    arrays = CollectiveArrays(operation.collective, operation.numel, dtype, rank, size)
    if operation.uneven:
        arrays.use_rows(operation.rows())
    return operation, arrays


def _smaller(operation: GroupCollective, size: int) -> GroupCollective:
    """Return a collective of about half the size, or of twice the size if it cannot be halved."""
    if operation.uneven:
        halves = tuple(tuple(count // 2 for count in row) for row in operation.rows())
        return replace(operation, counts=(), returns=False, table=halves)
    cut = collective_of(operation.collective).parts(size)
    numel = operation.numel // 2 // cut * cut
    return replace(operation, numel=numel or 2 * operation.numel)
