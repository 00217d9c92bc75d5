"""What ranks do wrong on purpose: out of a scenario's events, at its time, and as their peers see it."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from testbed.comm.collectives import Communicator
from testbed.comm.transport import TransportError
from testbed.measure.ranks.executor import Executor
from testbed.measure.ranks.fault_injection import RankFaults, make_mismatched
from testbed.spec.errors import ConfigError
from testbed.spec.events import EventSpec
from testbed.spec.scale import Scale
from testbed.workload.job.fault_resolution import rank_faults_of
from testbed.workload.job.launch_spec import RankFault
from testbed.workload.plan import Computing, GroupCollective, JobPlan
from tests.unit.measure.ranks import in_memory, over_tcp

NUMEL = 1024
REDUCE = GroupCollective("reduce", "group", "shard", (), 0, "all_reduce", NUMEL)
GATHER = replace(REDUCE, name="gather", collective="all_gather")
BUSY = Computing("busy", "compute", "forward", duration_s=0.02)
OTHERS = replace(REDUCE, group=1)
PLAN = JobPlan(((BUSY, REDUCE, OTHERS, REDUCE, GATHER),) * 2, (("shard", (0, 1)), ("replicate", (0, 1))))
SCALE = Scale(1, 2)


def faults(*events: dict[str, Any], plan: JobPlan = PLAN, seed: int = 1) -> tuple[RankFault, ...]:
    made = [EventSpec.model_validate({"at": "1 s", "target": 1, **values}) for values in events]
    return rank_faults_of(made, plan, seed, SCALE, "file")


def test_events_of_ranks_become_theirs_in_emulated_time() -> None:
    slow, again, io = faults(
        {"action": "rank_slow", "factor": 3, "for": "1 s", "every": "2 s", "times": 2},
        {"action": "link_down", "target": "east-west-0"},
        {"action": "io_slow", "delay": "10 ms", "step": 2},
    )
    assert slow == RankFault(1, "rank_slow", 0, 2.0, 2.0, factor=3)
    assert again == replace(slow, after_s=6.0)
    assert io == RankFault(1, "io_slow", 2, 2.0, delay_s=0.02)
    assert RankFault(**asdict(io)) == io


def test_a_drawn_moment_is_the_events_own() -> None:
    drawn = {"action": "rank_slow", "target": 0, "factor": 2, "random": {"from": "1 s", "to": "9 s"}}
    event = EventSpec.model_validate(drawn)
    (found,) = rank_faults_of([event], PLAN, 7, SCALE)
    assert found.after_s == pytest.approx(2 * event.after_s(7, 0))


@pytest.mark.parametrize(
    ("values", "place", "other"),
    [
        ({"action": "rank_skip"}, 1, 0),
        ({"action": "rank_skip", "operation": 2}, 2, 0),
        ({"action": "rank_skip", "operation": 2, "group": "shard"}, 3, 0),
        ({"action": "rank_mismatch", "what": "size", "operation": 4}, 4, 0),
        ({"action": "rank_mismatch", "what": "order", "operation": 1}, 1, 4),
        ({"action": "rank_mismatch", "what": "order", "operation": 4}, 4, 3),
    ],
)
def test_which_collective_is_meant(values: dict[str, Any], place: int, other: int) -> None:
    (found,) = faults(values)
    assert (found.place, found.other) == (place, other)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"action": "rank_skip", "group": "tensor"},
            "file: events.0.group: got 'tensor', expected a group of rank 1: ",
        ),
        (
            {"action": "rank_skip", "operation": 5},
            "events.0.operation: got 5, expected one of the 4 collectives",
        ),
        (
            {"action": "rank_mismatch", "what": "order", "group": "replicate"},
            "events.0.what: got order, expected size or type: all collectives of rank 1 in replicate are equal",
        ),
    ],
)
def test_a_collective_that_there_is_not_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        faults(values)


def test_each_rank_has_its_own_and_a_span_begins_and_ends() -> None:
    mine = RankFault(1, "rank_slow", 0, after_s=0.5, for_s=1.0, factor=2.0)
    rank = RankFaults.of(1, [mine, replace(mine, rank=0, factor=7.0), replace(mine, after_s=1.0, factor=3.0)])
    rank.step("ring", -1, 90.0)
    assert rank.slowdown(90.7) == 1
    rank.step("ring", 0, 100.0)
    assert [rank.slowdown(100 + s) for s in (0.4, 0.5, 1.0, 1.4, 1.5, 2.0)] == [1, 2, 6, 6, 3, 1]
    rank.step("ring", 1, 101.0)
    assert rank.slowdown(101.2) == 6
    rank.step("tree", -1, 101.0)
    assert rank.slowdown(101.2) == 1
    assert rank.control_delay_s(101.2) == 0


def test_control_parts_take_longer_while_that_lasts() -> None:
    rank = RankFaults([RankFault(0, "io_slow", 1, after_s=0.0, delay_s=0.2)])
    assert rank.slow_io
    rank.step("ring", 0, 100.0)
    assert rank.control_delay_s(100.5) == 0
    rank.step("ring", 1, 101.0)
    assert rank.control_delay_s(101.0) == 0.2


def test_what_waits_for_a_step_has_the_first_that_starts_later_once() -> None:
    rank = RankFaults(
        [
            RankFault(0, "rank_skip", 0, 0.5, place=3),
            RankFault(0, "rank_mismatch", 2, 0.0, what="size", place=1),
        ]
    )
    skipped, different = [], []
    for trial in range(4):
        rank.step("ring", trial, 100.0 + trial)
        skipped.append(rank.skips(3))
        different.append(rank.mismatch(1))
    assert skipped == [False, True, False, False]
    assert different == ["", "", "size", ""]


def carry_out(transport: Any, own: RankFaults, timeout_s: float = 2.0) -> tuple[int, float]:
    """(elements that were wrong, seconds of computing) of one step."""
    communicator = Communicator(transport, timeout_s=timeout_s)
    groups = {}
    for number, (name, members) in enumerate(PLAN.groups):
        made = communicator.split(members, name)
        assert made is not None
        groups[number] = made
    executor = Executor(PLAN, {0: communicator}, groups, "float32", timeout_s, None, own)
    executor.prepare(salt=0)
    communicator.barrier()
    start_s = time.monotonic()
    own.step("ring", 0, start_s)
    done = executor.run(start_s).run_checks()
    communicator.barrier()
    return done.wrong, done.spans[0][1] - done.spans[0][0]


def test_a_slow_rank_computes_so_many_times_as_long() -> None:
    slow = RankFault(1, "rank_slow", 0, 0.0, factor=3.0)
    quick, slowed = in_memory(
        2, lambda transport: carry_out(transport, RankFaults.of(transport.rank, [slow]))
    )
    assert quick == (0, pytest.approx(0.02))
    assert slowed == (0, pytest.approx(0.06))


@pytest.mark.parametrize("what", ["size", "type"])
def test_a_mismatch_is_an_error_at_the_collective_that_it_is_in(what: str) -> None:
    wrong = RankFault(1, "rank_mismatch", 0, 0.0, what=what, place=3)

    def run(transport: Any) -> str:
        try:
            return str(carry_out(transport, RankFaults.of(transport.rank, [wrong])))
        except TransportError as error:
            return str(error)

    for words in over_tcp(2, run):
        assert "all_reduce #2 of shard" in words
        assert re.search(r"got \d+ bytes, expected \d+, as posted", words)


def test_in_another_order_the_two_meet_and_nothing_fits() -> None:
    wrong = RankFault(1, "rank_mismatch", 0, 0.0, what="order", place=3, other=4)

    def run(transport: Any) -> str:
        try:
            return str(carry_out(transport, RankFaults.of(transport.rank, [wrong]), timeout_s=0.5))
        except TransportError as error:
            return str(error)

    first, second = over_tcp(2, run)
    assert "all_reduce #2 of shard (all-gather" in first
    assert re.search(r"waits to receive from rank 1|lost peer 1", first)
    assert "all_reduce #3 of shard" in second  # its gather has gone by, with what the other's reduction sent


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("numel", [16, 32, 4096])
def test_another_size_and_another_type_are_other_bytes(collective: str, numel: int) -> None:
    operation = replace(REDUCE, collective=collective, numel=numel)
    usual = make_mismatched(operation, "type", "bfloat16", 1, 4)[1]
    smaller, arrays = make_mismatched(operation, "size", "float32", 1, 4)
    assert usual.output.dtype == "float32"
    assert smaller.numel != numel
    assert arrays.nbytes == smaller.numel * 4
    assert make_mismatched(operation, "type", "float32", 1, 4)[1].nbytes == numel * 2


def test_uneven_shares_are_halved() -> None:
    operation = GroupCollective("route", "s", "k", (), 0, "all_to_all_v", 64, table=((4, 2), (6, 8)))
    smaller, arrays = make_mismatched(operation, "size", "float32", 0, 2)
    assert smaller.table == ((2, 1), (3, 4))
    assert arrays.input.size == 3
