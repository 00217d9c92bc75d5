"""The ring all-reduce that a job does alone on its network, before and after its steps, broken off where it is long.

Whole, n ranks send n messages in each of 2 (n - 1) rounds: with 128 ranks most of what starting them took. In a part of
the rounds every rank uses its path as in all of them. What is in the arrays afterwards is of no use.
"""

from __future__ import annotations

from testbed.comm.collectives.algorithms.all_reduce import RING_CHANNELS, ring
from testbed.comm.collectives.plan import Plan, first_rounds
from testbed.comm.collectives.registry import ALL_REDUCE, Algorithm, PlanRequest

MOST_ROUNDS = 32  # all that 17 ranks have
TIMES = 5  # that it is done before the steps, and after them: windows open meanwhile
WARM_TIMES = 2  # where all times are alike


def baseline_rounds(ranks: int) -> int:
    """How many rounds it has, in each of which every rank sends to the next one."""
    return min(2 * max(0, ranks - 1), MOST_ROUNDS)


def baseline_times(exact: bool, lossy: bool, warms_up: bool) -> int:
    """How many times it is done before the steps, of which the quickest counts.

    exact: by the virtual clock. lossy: whether links lose packets. warms_up: see TransportKind.
    """
    return WARM_TIMES if exact and not lossy and not warms_up else TIMES


def baseline_is_whole(ranks: int) -> bool:
    """Whether these are all rounds of a ring all-reduce."""
    return 2 * (ranks - 1) <= MOST_ROUNDS


def _begun(request: PlanRequest) -> Plan:
    return first_rounds(ring(request), MOST_ROUNDS)


BASELINE_RING = Algorithm(ALL_REDUCE, _begun, RING_CHANNELS, name="ring, its first rounds")
