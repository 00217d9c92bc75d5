"""The ring all-reduce that a job runs alone on its network before and after its steps, cut short if it is long.

In full, n ranks send n messages in each of 2 (n - 1) rounds; with 128 ranks that took most of the startup time. The
first rounds already use every path as all rounds would. The contents of the arrays are meaningless afterwards.
"""

from __future__ import annotations

from testbed.comm.collectives.algorithms.all_reduce import RING_CHANNELS, ring
from testbed.comm.collectives.plan import Plan, first_rounds
from testbed.comm.collectives.registry import ALL_REDUCE, Algorithm, PlanRequest

MOST_ROUNDS = 32  # all rounds of 17 ranks
TIMES = 5  # repetitions before the steps and after them if congestion windows have to open
WARM_TIMES = 2  # repetitions if all take the same time


def baseline_rounds(ranks: int) -> int:
    """Return the number of rounds; in each, every rank sends to the next one."""
    return min(2 * max(0, ranks - 1), MOST_ROUNDS)


def baseline_times(exact: bool, lossy: bool, warms_up: bool) -> int:
    """Return the number of repetitions before the steps; the fastest one counts.

    Args:
        exact: Whether the job runs under the virtual clock.
        lossy: Whether links lose packets.
        warms_up: See `TransportKind`.
    """
    return WARM_TIMES if exact and not lossy and not warms_up else TIMES


def baseline_is_whole(ranks: int) -> bool:
    """Return whether the baseline has all rounds of a ring all-reduce."""
    return 2 * (ranks - 1) <= MOST_ROUNDS


def _first_rounds_of_ring(request: PlanRequest) -> Plan:
    return first_rounds(ring(request), MOST_ROUNDS)


BASELINE_RING = Algorithm(ALL_REDUCE, _first_rounds_of_ring, RING_CHANNELS, name="ring, its first rounds")
