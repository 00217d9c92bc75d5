"""The conformance suite of algorithms: the testbed's own pass, and each kind of mistake is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.comm.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL_V,
    COLLECTIVES,
    Collective,
    Plan,
    PlanRequest,
    Round,
    RowsAlgorithm,
    Transfer,
    even,
)
from testbed.comm.collectives.plan_check import WrongPlan
from testbed.contrib.conformance import Nonconforming, check_algorithm
from testbed.plugins import PluginError
from tests.unit.comm.collective_runs import ALGORITHMS

WHOLE = ((0, 1),)
FIRST = (Transfer(0, WHOLE),)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [(name, own) for name, all_own in ALGORITHMS.items() for own in all_own]
)
def test_the_testbeds_own_conform(collective: str, algorithm: str) -> None:
    check_algorithm(algorithm, collective, sizes=(1, 2, 3, 5, 8))


@pytest.mark.parametrize("algorithm", [*ALL_TO_ALL_V.algorithms, "auto"])
def test_the_testbeds_own_of_uneven_rows_conform(algorithm: str) -> None:
    check_algorithm(algorithm, "all_to_all_v", sizes=(1, 2, 3, 5, 8))


def to_eights(count: int, most: int) -> int:
    return min(most, -(-count // 8) * 8)


def test_one_of_ones_own_for_uneven_rows_conforms() -> None:
    """Rows in blocks of eight, as grouped matrix products take them, from two peers at a time."""
    check_algorithm(RowsAlgorithm(to_eights, concurrency=2), sizes=(1, 2, 5, 9))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (RowsAlgorithm(lambda count, most: count // 2), r"sent\(1, 7\): got 0, expected 1 to 7"),
        (RowsAlgorithm(lambda count, most: most + 1), r"sent\(0, 0\): got 1, expected 0 to 0"),
        (RowsAlgorithm(to_eights, posts_ahead=True), r"sent\(0, 7\): got 0, expected 7, known ahead"),
        (
            RowsAlgorithm(to_eights, concurrency=0),
            r"rows received by rank 0: got \[0, 5\], expected \[0, 3\]",
        ),
    ],
)
def test_mistakes_with_uneven_rows_are_told(algorithm: RowsAlgorithm, message: str) -> None:
    with pytest.raises(Nonconforming, match=message):
        check_algorithm(algorithm, sizes=[2], numels=[0, 7, 64])


def test_an_algorithm_is_of_the_collective_that_it_is_checked_for() -> None:
    with pytest.raises(
        ValueError, match="algorithm: got a Algorithm, expected a RowsAlgorithm for all_to_all_v"
    ):
        check_algorithm(star, "all_to_all_v")
    with pytest.raises(
        ValueError, match="algorithm: got a RowsAlgorithm, expected a Algorithm for all_reduce"
    ):
        check_algorithm(RowsAlgorithm(to_eights), "all_reduce")


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
            r"deaf of all_reduce, 2 ranks in buildings \[0, 0\]: rank 1 waits forever for rank 0, round 2 of 2",
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
