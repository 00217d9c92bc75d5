"""Faults that a rank injects into itself: which, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from testbed.comm.collectives import collective_of
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.workload.job.launch_spec import MISMATCH, ORDER, SIZE, SKIP, SLOW, SLOW_IO, TYPE, RankFault
from testbed.workload.plan import GroupCollective

OTHER_TYPE = {"bfloat16": "float32", "float16": "float32"}  # of another size, as careless mixtures have it
USUAL_OTHER_TYPE = "bfloat16"


@dataclass
class _Lasting:
    """A fault and its span, by CLOCK_MONOTONIC; used: whether it has had its step, where it has one."""

    fault: RankFault
    begin_s: float
    end_s: float
    used: bool = False


class RankFaults:
    """Of one rank; without any it does nothing. Seconds of CLOCK_MONOTONIC."""

    def __init__(self, faults: Iterable[RankFault] = ()) -> None:
        self._faults = tuple(faults)
        self._variant = ""
        self._lasting: list[_Lasting] = []
        self._skipped: set[int] = set()
        self._places: dict[int, int] = {}
        self._mismatched: dict[int, str] = {}

    @classmethod
    def of(cls, rank: int, faults: Iterable[RankFault]) -> RankFaults:
        """Those of one rank among all."""
        return cls(fault for fault in faults if fault.rank == rank)

    def step(self, variant: str, trial: int, start_s: float) -> None:
        """A step starts at this moment: what has begun by then and waits for a step has this one. Trials count from 0.

        Another variant undoes all.
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
        """How many times as long computing takes that begins now."""
        return math.prod(lasting.fault.factor for lasting in self._active(SLOW, now_s))

    def control_delay_s(self, now_s: float) -> float:
        """How much longer the control part takes of an operation that begins now."""
        return sum(lasting.fault.delay_s for lasting in self._active(SLOW_IO, now_s))

    @property
    def slow_io(self) -> bool:
        """Whether control parts ever take longer."""
        return any(fault.action == SLOW_IO for fault in self._faults)

    def _active(self, action: str, now_s: float) -> list[_Lasting]:
        return [
            lasting
            for lasting in self._lasting
            if lasting.fault.action == action and lasting.begin_s <= now_s < lasting.end_s
        ]

    def skips(self, place: int) -> bool:
        """Whether the rank does not begin an operation of its plan in this step, nor anything else from then on."""
        return place in self._skipped

    def place(self, place: int) -> int:
        """Which operation of its plan it does in place of one."""
        return self._places.get(place, place)

    def mismatch(self, place: int) -> str:
        """In what its collective differs from the others'; "" where it does not."""
        return self._mismatched.get(place, "")


def mismatched(
    operation: GroupCollective, what: str, dtype: str, rank: int, size: int
) -> tuple[GroupCollective, CollectiveArrays]:
    """A collective of another size, or of another type and so of other bytes, and arrays of its own for it.

    rank, size: in its group.
    """
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
    """About half of it; twice, where no half can be had."""
    if operation.uneven:
        halves = tuple(tuple(count // 2 for count in row) for row in operation.rows())
        return replace(operation, counts=(), returns=False, table=halves)
    cut = collective_of(operation.collective).parts(size)
    numel = operation.numel // 2 // cut * cut
    return replace(operation, numel=numel or 2 * operation.numel)
