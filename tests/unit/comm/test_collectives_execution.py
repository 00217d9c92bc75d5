"""What carrying out a plan keeps in memory."""

from __future__ import annotations

import weakref
from typing import Any, cast

import numpy as np

from testbed.comm.collectives.arrays import Array, Blocks
from testbed.comm.collectives.plan import Round, Transfer, even
from testbed.comm.collectives.plan_executor import Group, execute_plan
from testbed.comm.collectives.progress_engine import Position
from testbed.comm.transport import Request


class Sending:
    """A member whose messages are sent one later; it knows which of them are still in memory."""

    def __init__(self) -> None:
        self.requests: list[weakref.ref[Any]] = []
        self.under_way: Request | None = None
        self.most = 0

    def send(self, peer: int, tag: int, view: memoryview, record: object) -> Request:
        """See Group."""
        if self.under_way is not None:
            self.under_way.complete()
        self.under_way = Request("send", peer, tag, view)
        packed = cast(Array, view.obj)
        self.requests.append(weakref.ref(packed if packed.base is None else packed.base))
        self.most = max(self.most, sum(alive() is not None for alive in self.requests))
        return self.under_way


def test_what_was_packed_for_a_message_goes_once_that_is_sent() -> None:
    rounds = 40
    strand = (Round("x", (Transfer(1, ((0, 1), (2, 3))),)),) * rounds
    array = np.zeros(4000, "float32")
    member = Sending()
    data = Blocks(array, array, even(4).bounds(array.size))
    for _ in execute_plan(cast(Group, member), even(4, (strand,)), data, 0, Position()):
        pass
    assert len(member.requests) == rounds
    assert member.most <= 3
