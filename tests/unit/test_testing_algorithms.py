"""The conformance suite of algorithms: the testbed's own pass, and each kind of mistake is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVES,
    Collective,
    Plan,
    PlanRequest,
    Round,
    Transfer,
    even,
)
from testbed.collectives.checking import WrongPlan
from testbed.plugins import PluginError
from testbed.testing import check_algorithm
from tests.unit.collective_runs import ALGORITHMS

WHOLE = ((0, 1),)
FIRST = (Transfer(0, WHOLE),)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [(name, own) for name, all_own in ALGORITHMS.items() for own in all_own]
)
def test_the_testbeds_own_conform(collective: str, algorithm: str) -> None:
    check_algorithm(algorithm, collective, sizes=(1, 2, 3, 5, 8))


def others(request: PlanRequest) -> tuple[Transfer, ...]:
    return tuple(Transfer(peer, WHOLE) for peer in range(1, request.size))


@ALL_REDUCE.algorithm()
def star(request: PlanRequest) -> Plan:
    if request.rank == 0:
        rounds = (Round("in", (), others(request), True), Round("out", others(request)))
    else:
        rounds = (Round("in", FIRST), Round("out", (), FIRST))
    return even(1, (rounds,))


@ALL_REDUCE.algorithm()
def deaf(request: PlanRequest) -> Plan:
    if request.rank == 0:
        return even(1, ((Round("in", (), others(request), True),),))
    return even(1, ((Round("in", FIRST), Round("out", (), FIRST)),))


@ALL_REDUCE.algorithm()
def forgetful(request: PlanRequest) -> Plan:
    rounds = (Round("in", (), others(request), True),) if request.rank == 0 else (Round("in", FIRST),)
    return even(1, (rounds,))


@ALL_REDUCE.algorithm()
def overwrites(request: PlanRequest) -> Plan:
    if request.rank == 0:
        rounds = (Round("in", (), others(request)), Round("out", others(request)))
    else:
        rounds = (Round("in", FIRST), Round("out", (), FIRST))
    return even(1, (rounds,))


@ALL_REDUCE.algorithm()
def raises(request: PlanRequest) -> Plan:
    return even(1 // (request.size - 1), ())


@ALL_GATHER.algorithm()
def uncut(request: PlanRequest) -> Plan:
    return even(1, ((),))


def test_one_of_ones_own_conforms() -> None:
    check_algorithm(star)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            deaf,
            r"deaf of all_reduce, 2 ranks in buildings \[0, 0\]: rank 1 waits for ever for rank 0, round 2 of 2",
        ),
        (forgetful, "rank 1 ends without what rank 0 has for block 0"),
        (overwrites, "rank 0 ends without what rank 0 has for block 0"),
        (uncut, "cuts: expected one at each of the 2 blocks of the collective"),
    ],
)
def test_mistakes_are_told_with_file_and_line(algorithm: Callable[..., Plan], message: str) -> None:
    with pytest.raises(WrongPlan, match=message) as caught:
        check_algorithm(algorithm, sizes=[2])  # type: ignore[arg-type]
    assert f"({__file__}, line " in str(caught.value)


def test_what_raises_is_told_with_file_and_line() -> None:
    with pytest.raises(
        PluginError, match=rf"algorithm raises: ZeroDivisionError: .* \({__file__}, line \d+\)"
    ):
        check_algorithm(raises, sizes=[1])


def test_an_all_gathers_algorithm_does_the_reduce_scatter_backwards() -> None:
    @ALL_GATHER.algorithm()
    def direct(request: PlanRequest) -> Plan:
        own = ((request.rank, request.rank + 1),)
        peers = [peer for peer in range(request.size) if peer != request.rank]
        sends = tuple(Transfer(peer, own) for peer in peers)
        receives = tuple(Transfer(peer, ((peer, peer + 1),)) for peer in peers)
        return even(request.size, ((Round("all-gather", sends, receives),),))

    check_algorithm(direct, sizes=[1, 2, 5])
    check_algorithm(direct, "reduce_scatter", sizes=[1, 2, 5])


def test_a_collective_of_ones_own_takes_one_definition() -> None:
    """Everybody gets its neighbour's array on the left, and on the right."""
    halo = Collective(
        "halo",
        blocks=lambda size: size,
        before=lambda rank, size, root: (rank,),
        after=lambda rank, size, root: ((rank - 1) % size, (rank + 1) % size),
    )

    @halo.algorithm()
    def both_sides(request: PlanRequest) -> Plan:
        rank, size = request.rank, request.size
        sides = {(rank - 1) % size, (rank + 1) % size} - {rank}
        sends = tuple(Transfer(peer, ((rank, rank + 1),)) for peer in sides)
        receives = tuple(Transfer(peer, ((peer, peer + 1),)) for peer in sides)
        return even(size, ((Round("halo", sends, receives),),))

    check_algorithm(both_sides)
    assert "halo" not in COLLECTIVES
