"""Pipeline schedules: whole, in time as their papers' formulas say, within their memory, readable from files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.net.paths import Network, Path
from testbed.prediction.simulation import simulate
from testbed.prediction.timeline import Deadlock, Timeline, peak_activation_bytes
from testbed.spec import parallelism
from testbed.workload.parallelism import DIMENSIONS, EXPERT, PIPELINE, make_mesh
from testbed.workload.pipeline_plan import plan_job
from testbed.workload.plan import JobPlan
from testbed.workload.plan_options import Options
from testbed.workload.schedules import (
    SCHEDULES,
    Costs,
    Kind,
    Schedule,
    ScheduleError,
    ScheduleRequest,
    find_schedule,
    implied_actions,
    make_schedule,
    read_csv,
    schedule_of,
    write_csv,
)
from testbed.workload.schedules.greedy import Limits, greedy
from testbed.workload.stages import Part, Stage

MESSAGE_BYTES = 1e9


def network(ranks: int, latency_s: float = 0.0, busy_s: float = 0.0) -> Network:
    """Ranks in two halves; messages between these take `latency_s`, and the link for `busy_s` each."""
    ample = 1e18
    capacities = {"east to west": MESSAGE_BYTES / busy_s if busy_s else ample}
    capacities["west to east"] = capacities["east to west"]
    paths = {}
    for here in range(ranks):
        for there in range(ranks):
            if here == there:
                continue
            parts = [f"{here} out", f"{there} in"]
            capacities.update(dict.fromkeys(parts, ample))
            crosses = (here < ranks // 2) != (there < ranks // 2)
            if crosses:
                parts.append("east to west" if here < there else "west to east")
            paths[here, there] = Path(latency_s if crosses else 0.0, tuple(parts))
    return Network(capacities, paths)


def planned(schedule: Schedule, ranks: int, costs: Costs, *, early: bool = True) -> JobPlan:
    degrees = {**dict.fromkeys((*DIMENSIONS, EXPERT), 1), PIPELINE: ranks}
    stage = Stage((Part(costs.forward_s, costs.input_s, costs.weight_s),), MESSAGE_BYTES, 1.0)
    stages = [stage] * len(schedule.owners)
    options = Options(4, 1e9, early_receives=early)
    return plan_job(make_mesh(degrees, ranks, 1), schedule, stages, options)


def carried_out(name: str, ranks: int, microbatches: int, costs: Costs, chunks: int = 1) -> Timeline:
    schedule = make_schedule(name, ScheduleRequest(ranks, microbatches, chunks, 1.0, costs))
    return simulate(planned(schedule, ranks, costs), network(ranks), 4)


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 2), (4, 4), (4, 12), (8, 16)])
def test_every_schedule_does_all_of_its_work_and_comes_to_an_end(
    name: str, ranks: int, microbatches: int
) -> None:
    costs = Costs(1.0, 0.9, 0.8, (0.5,) * (ranks - 1), (0.1,) * (ranks - 1))
    chunks = find_schedule(name).chunks or 2
    schedule = make_schedule(name, ScheduleRequest(ranks, microbatches, chunks, 1.0, costs))
    assert len(schedule.orders) == ranks
    timeline = simulate(planned(schedule, ranks, costs), network(ranks, 0.5, 0.1), 4)
    assert timeline.step_time_s >= 0.999 * microbatches * chunks * 2.7
    assert schedule_of(name, read_csv(write_csv(schedule.orders)), microbatches) == schedule


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_bubbles_are_those_of_the_papers(ranks: int, microbatches: int) -> None:
    both = Costs(1.0, 1.0, 1.0)
    work = microbatches * 3.0
    for name in ("GPipe", "1F1B"):
        bubble = (ranks - 1) * 3.0  # arXiv:2104.04473, section 2.2: (p - 1)(t_f + t_b)
        assert carried_out(name, ranks, microbatches, both).step_time_s == pytest.approx(work + bubble)
    halves = Costs(0.5, 0.5, 0.5)
    interleaved = carried_out("Interleaved1F1B", ranks, microbatches, halves, 2).step_time_s
    assert interleaved == pytest.approx(work + (ranks - 1) * 3.0 / 2)  # the same: a v-th of it
    # arXiv:2401.10241, table 1: (p - 1)(t_f + t_b - t_w) for ZB-H1, of whose order ours is a play
    assert carried_out("ZBH1", ranks, microbatches, both).step_time_s <= work + (ranks - 1) * 2.0


def test_zbv_has_no_bubble_but_that_of_its_first_forwards() -> None:
    ranks, microbatches = 4, 12
    took = carried_out("ZBVZeroBubble", ranks, microbatches, Costs(1.0, 1.0, 1.0)).step_time_s
    assert took == pytest.approx(microbatches * 2 * 3.0 + ranks - 1)


def test_memory_is_what_the_schedules_promise() -> None:
    ranks, microbatches = 4, 12
    peaks = {}
    for name in ("GPipe", "1F1B", "ZBH1", "CrossUD", "ZBVZeroBubble", "CrossWave"):
        costs = Costs(1.0, 1.0, 1.0)
        schedule = make_schedule(name, ScheduleRequest(ranks, microbatches, 1, 1.0, costs))
        plan = planned(schedule, ranks, costs)
        peaks[name] = peak_activation_bytes(plan, simulate(plan, network(ranks), 4).spans)
    assert peaks["GPipe"] == [microbatches] * ranks
    assert peaks["1F1B"] == peaks["CrossUD"] == [4, 3, 2, 1]
    assert max(peaks["ZBH1"]) <= ranks
    for name in ("ZBVZeroBubble", "CrossWave"):  # of half the size
        assert max(peaks[name]) <= 2 * ranks


# CrossPipe, arXiv:2507.00217, table 5: seconds per microbatch, by (latency, time on the link) over a forward pass
PAPER = {
    (0, 0): {"1F1B": 0.151, "ZBH1": 0.133, "ZBVZeroBubble": 0.118, "CrossUD": 0.137, "CrossWave": 0.119},
    (2, 2): {"1F1B": 0.321, "ZBH1": 0.309, "ZBVZeroBubble": 0.473, "CrossUD": 0.196, "CrossUDSub": 0.198},
}


@pytest.mark.parametrize("pair", list(PAPER))
def test_crosspipes_table_comes_out(pair: tuple[int, int]) -> None:
    ranks, microbatches, forward_s = 8, 16, 0.038
    latency_s, busy_s = (ratio * forward_s for ratio in pair)
    hops = [latency_s * (hop == 3) for hop in range(7)], [busy_s * (hop == 3) for hop in range(7)]
    took = {}
    for name in PAPER[pair]:
        chunks = find_schedule(name).chunks or 1
        gradient_s = 0.0334 / chunks
        costs = Costs(forward_s / chunks, gradient_s, gradient_s, tuple(hops[0]), tuple(hops[1]))
        schedule = make_schedule(name, ScheduleRequest(ranks, microbatches, 1, 1.0, costs))
        plan = planned(schedule, ranks, costs, early=name.startswith("Cross"))
        took[name] = simulate(plan, network(ranks, latency_s, busy_s), 4).step_time_s / microbatches
    for name, seconds_each in PAPER[pair].items():
        assert took[name] == pytest.approx(seconds_each, rel=0.05), name


@given(
    ranks=st.integers(1, 5),
    microbatches=st.integers(1, 9),
    chunks=st.integers(1, 2),
    extra=st.integers(0, 6),
    parts=st.integers(1, 3),
    times=st.tuples(*[st.sampled_from([0.5, 1.0, 1.7])] * 4),
)
@settings(max_examples=60, deadline=None)
def test_who_plays_keeps_to_its_memory(
    ranks: int, microbatches: int, chunks: int, extra: int, parts: int, times: tuple[float, ...]
) -> None:
    owners = [*range(ranks), *(reversed(range(ranks)) if chunks == 2 else ())]
    forward_s, input_s, weight_s, latency_s = times
    costs = Costs(forward_s, input_s, weight_s, (latency_s,) * ranks, (latency_s / 2,) * ranks)
    room = chunks + extra
    orders = greedy(owners, microbatches, costs, Limits((room,) * ranks, parts=parts))
    schedule = schedule_of("play", orders, microbatches)
    for order in schedule.orders:
        alive = 0.0
        for action in order:
            alive += (action.kind is Kind.FORWARD) - (action.kind is Kind.BACKWARD_WEIGHT) / action.parts
            assert alive <= room + 1e-9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0B0\n1F0,1X0\n", "line 2: got '1X0', expected a stage, one of F, B, I, W"),
        ("0F0,0B0,0B0\n", "rank 0: got 0B0 twice, expected each action once"),
        ("0F0,0B0\n0F1,0B1\n", "rank 1: got 0F1, expected it on rank 0, which has stage 0"),
        ("0F0,0I0\n", "rank 0, stage 0, microbatch 0: got F, I, expected F and B, or F, I and W"),
        ("0F0,0B0\n2F0,2B0\n", "got stages [0, 2], expected 0, 1, 2 and so on"),
        ("0F0,0B0,0F1,0B1\n", "got 0B1, expected microbatches 0 to 0"),
        ("0F0,0I0,0W0.2/2\n", "line 1: got '0W0.2/2', expected a part from 0 to 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, said: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        schedule_of("mine", read_csv(text), 1)
    assert said in str(raised.value)


def test_pytorchs_own_communication_actions_are_passed_over() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert write_csv(read_csv(text)) == "0F0,0B0\n1F0,1B0\n"
    implied = {"UNSHARD": 1, "SEND_F": 1, "RECV_B": 1, "REDUCE_GRAD": 1, "RECV_F": 1, "SEND_B": 1}
    assert implied_actions(text) == implied


# as PyTorch 2.13 writes ScheduleDualPipeV of 2 ranks and 4 microbatches
DUAL_PIPE_V = """\
0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3
1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3
"""


def test_overlapped_pairs_of_pytorch_come_one_after_the_other() -> None:
    schedule = schedule_of("DualPipeV", read_csv(DUAL_PIPE_V), 4)
    flat = DUAL_PIPE_V.replace("(", "").replace(")OVERLAP_F_B", "").replace(";", ",")
    assert schedule.orders == read_csv(flat)
    assert schedule.owners == (0, 1, 1, 0)
    simulate(planned(schedule, 2, Costs(1.0, 1.0, 1.0)), network(2), 4)
    with pytest.raises(ScheduleError, match="line 1: got '3X1', expected a stage"):
        read_csv("(0F2;3X1)OVERLAP_F_B\n")
    with pytest.raises(ScheduleError, match=r"line 2: got '.0F2;3B1.OVERLAP', expected a stage"):
        read_csv("0F0\n(0F2;3B1)OVERLAP\n")


@pytest.mark.parametrize("text", ["\ufeff0F0,0B0\r\n1F0,1B0\r\n\r\n", '0F0,0B0\n"1F0","1B0"\n\n\n'])
def test_what_spreadsheets_add_to_a_file_is_ignored(text: str) -> None:
    assert write_csv(read_csv(text)) == "0F0,0B0\n1F0,1B0\n"


def test_backward_of_pytorch_25_is_told_from_that_of_later_versions() -> None:
    # PyTorch 2.5: B is the gradient of inputs where W follows, BW both gradients; later versions: I and B
    assert write_csv(read_csv("0F0,0F1,0B0,0W0,0BW1\n")) == "0F0,0F1,0I0,0W0,0B1\n"
    assert write_csv(read_csv("0F0,0F1,0B0,0B1,0W0,0W1\n")) == "0F0,0F1,0I0,0I1,0W0,0W1\n"
    with pytest.raises(ScheduleError, match="rank 0: got 0W0, expected 0I0 before it"):
        schedule_of("mixed", read_csv("0F0,0F1,0B0,0W0,0B1\n"), 2)


def test_an_order_that_never_ends_is_found_before_anything_is_sent() -> None:
    orders = read_csv("0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1\n")
    simulate(planned(schedule_of("turned", orders, 2), 2, Costs(1.0, 1.0, 1.0)), network(2), 4)
    # rank 0 wants the gradient before it has sent what this comes from
    stuck = read_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    with pytest.raises(Deadlock, match="never completes: rank 0 in 0RECV_B1; rank 1 in 1RECV_F1"):
        simulate(planned(schedule_of("stuck", stuck, 2), 2, Costs(1.0, 1.0, 1.0)), network(2), 4)


def test_microbatches_that_interleaving_cannot_share_out_are_refused() -> None:
    with pytest.raises(
        ScheduleError, match="Interleaved1F1B: got 9 microbatches on 4 ranks, expected a multiple of 2"
    ):
        make_schedule("Interleaved1F1B", ScheduleRequest(4, 9, 2, 1.0, Costs(1.0, 1.0, 1.0)))
    with pytest.raises(ScheduleError, match="ZBVZeroBubble: got 3 chunks, expected 2"):
        make_schedule("ZBVZeroBubble", ScheduleRequest(4, 8, 3, 1.0, Costs(1.0, 1.0, 1.0)))


def test_scenarios_name_the_dimensions_that_there_are() -> None:
    assert sorted(DIMENSIONS) == sorted(parallelism.DIMENSIONS)
