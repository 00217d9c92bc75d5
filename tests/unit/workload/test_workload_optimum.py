"""The schedule that is searched for: as good as trying everything, never worse than those with names, repeatable."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.measure.execution.guests import _with_schedule
from testbed.prediction.dry_run import dry_runs
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.schedules import (
    Action,
    Costs,
    Kind,
    ScheduleRequest,
    SearchResult,
    check_orders,
    make_schedule,
    read_csv,
)
from testbed.workload.schedules import optimal as optimal_module
from testbed.workload.schedules.action_times import peak_activations, time_orders
from testbed.workload.schedules.base import SCHEDULES
from testbed.workload.schedules.cp_sat import JobShop
from testbed.workload.schedules.optimal import activation_limit, find_optimal, lower_bound_s

KINDS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nobody's cache, and nothing known from other tests."""
    monkeypatch.setattr(optimal_module, "folder", lambda: tmp_path / "schedules")
    monkeypatch.setattr(optimal_module, "_known", {})
    return tmp_path / "schedules"


def searched(costs: Costs, ranks: int, microbatches: int, memory: float = 1.0) -> SearchResult:
    request = ScheduleRequest(ranks, microbatches, 1, memory, costs, effort=2.0)
    return find_optimal(request, request.loop)


def every_order(stages: list[int], microbatches: int) -> Iterator[tuple[Action, ...]]:
    """Of one rank, with microbatches in any order: backward behind forward, weights behind inputs."""
    actions = [
        Action(stage, kind, number) for stage in stages for number in range(microbatches) for kind in KINDS
    ]
    for order in itertools.permutations(actions):
        place = {action: index for index, action in enumerate(order)}
        if all(
            place[Action(stage, KINDS[0], number)]
            < place[Action(stage, KINDS[1], number)]
            < place[Action(stage, KINDS[2], number)]
            for stage in stages
            for number in range(microbatches)
        ):
            yield order


@pytest.mark.parametrize(
    "costs",
    [
        Costs(1.0, 1.0, 1.0),
        Costs(1.0, 0.9, 0.8, (2.0,), (0.5,)),
        Costs(0.7, 1.3, 0.4, (0.2,), (1.5,)),
        Costs(1.0, 0.9, 0.8, (1.0,), (0.0,), ((1.0, 0.9, 0.8), (1.6, 1.5, 1.2))),
    ],
)
@pytest.mark.parametrize("memory", [0.5, 1.0])
def test_nothing_that_can_be_tried_is_quicker(costs: Costs, memory: float) -> None:
    request = ScheduleRequest(2, 2, 1, memory, costs)
    room, best_s = activation_limit(request), float("inf")
    fitting = [
        [order for order in every_order([rank], 2) if peak_activations([order]) <= room] for rank in range(2)
    ]
    for orders in itertools.product(*fitting):
        timed = time_orders([0, 1], orders, costs)
        if timed is not None:
            best_s = min(best_s, timed.step_s)
    found = searched(costs, 2, 2, memory)
    assert found.step_s == pytest.approx(best_s, rel=1e-9)
    assert best_s * (1 - 2e-3) <= found.bound_s <= best_s


@given(
    ranks=st.integers(2, 4),
    microbatches=st.integers(1, 6),
    chunks=st.integers(1, 2),
    memory=st.sampled_from([0.5, 1.0, 2.0]),
    times=st.tuples(*[st.sampled_from([0.0, 0.4, 1.0, 2.3])] * 2),
)
@settings(max_examples=8, deadline=None)
def test_it_is_whole_within_memory_and_no_slower_than_what_is_known(
    ranks: int, microbatches: int, chunks: int, memory: float, times: tuple[float, float]
) -> None:
    latency_s, busy_s = times
    costs = Costs(1.0, 0.9, 0.8, (latency_s,) * (ranks - 1), (busy_s,) * (ranks - 1))
    request = ScheduleRequest(ranks, microbatches, chunks, memory, costs, effort=0.5)
    owners = request.loop if chunks == 1 else request.there_and_back
    found = find_optimal(request, owners)
    assert check_orders(found.orders, microbatches) == tuple(owners)
    assert peak_activations(found.orders) <= activation_limit(request)
    timed = time_orders(owners, found.orders, costs)
    assert timed is not None
    assert timed.step_s == pytest.approx(found.step_s)
    assert found.bound_s <= found.step_s <= min(step_s for _, step_s in found.known)


def test_a_schedule_by_other_costs_is_a_place_to_begin() -> None:
    """CrossWave that knows only of the ways between buildings may be quicker than one that knows of all."""
    latencies = tuple(1.0 if hop % 2 else 0.0 for hop in range(7))
    all_hops = Costs(0.5, 0.44, 0.44, latencies, (0.068,) * 7)
    far_alone = Costs(0.5, 0.44, 0.44, latencies, (0.0,) * 7)
    waves = {}
    for costs in (all_hops, far_alone):
        wave = make_schedule("CrossWave", ScheduleRequest(8, 16, 1, 2.0, costs))
        timed = time_orders(wave.owners, wave.orders, all_hops)
        assert timed is not None
        waves[costs] = timed.step_s
    request = ScheduleRequest(8, 16, 2, 2.0, all_hops, effort=0.1, named=far_alone)
    found = find_optimal(request, request.there_and_back)
    assert dict(found.known)["CrossWave"] == min(waves.values())
    assert found.step_s <= min(waves.values())


def test_the_same_is_found_again() -> None:
    costs = Costs(1.0, 0.9, 0.8, (0.0, 2.0), (0.0, 0.6))
    first, second = (searched(costs, 3, 12) for _ in range(2))
    assert first == second


def test_a_long_step_is_searched_window_by_window() -> None:
    ranks, microbatches = 6, 60
    latencies, times = (0.0, 0.0, 2.0, 0.0, 0.0), (0.0, 0.0, 0.6, 0.0, 0.0)
    request = ScheduleRequest(
        ranks, microbatches, 1, 1.0, Costs(1.0, 0.9, 0.8, latencies, times), effort=0.05
    )
    found = find_optimal(request, request.loop)
    assert 3 * ranks * microbatches > 1000
    assert check_orders(found.orders, microbatches) == tuple(request.loop)
    assert peak_activations(found.orders) <= activation_limit(request)
    assert found.bound_s <= found.step_s <= found.known[0][1]


def test_what_was_found_is_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(1.0, 0.9, 0.8, (1.0, 1.0), (0.2, 0.2))
    first = make_schedule("optimal", ScheduleRequest(3, 4, 1, 1.0, costs, effort=0.3))
    assert len(list(own_cache.glob("*.json"))) == 1
    monkeypatch.setattr(optimal_module, "_known", {})
    monkeypatch.setattr("testbed.workload.schedules.optimal.find_optimal", None)
    again = make_schedule("optimal", ScheduleRequest(3, 4, 1, 1.0, costs, effort=0.3))
    assert (again, again.searched) == (first, first.searched)
    monkeypatch.undo()


def test_a_search_that_is_interrupted_ends_at_once_and_keeps_nothing(own_cache: Path) -> None:
    hops = (0.0,) * 3 + (2.0,) + (0.0,) * 3
    costs = Costs(0.5, 0.45, 0.45, hops, hops)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            make_schedule("optimal", ScheduleRequest(8, 16, 2, 1.0, costs, effort=1000.0))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert not own_cache.exists()


def test_a_cache_that_cannot_be_read_is_done_without(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(1.0, 0.9, 0.8, (1.0,), (0.2,))
    first = make_schedule("optimal", ScheduleRequest(2, 2, 1, 1.0, costs, effort=0.3))
    (file,) = own_cache.glob("*.json")
    file.write_text('{"orders": "0F0')
    monkeypatch.setattr(optimal_module, "_known", {})
    assert make_schedule("optimal", ScheduleRequest(2, 2, 1, 1.0, costs, effort=0.3)) == first


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("Interleaved1F1B", "LoopedBFS")])
@pytest.mark.parametrize("microbatches", [3, 8])
def test_times_of_orders_are_the_models(name: str, microbatches: int) -> None:
    changes = {
        "workload.schedule.name": name,
        "workload.schedule.microbatches": microbatches,
        "workload.schedule.receives": "early",
        "workload.schedule.time_limit": "1 s",
    }
    (tried,) = dry_runs(pipeline().changed(changes, "alone"), Scale()).values()
    training = tried.workload.training
    assert training is not None
    stages, hops = len(training.schedule.owners), 7
    each = 8 / stages
    costs = Costs(
        0.038 * each,
        0.0334 * each,
        0.0334 * each,
        tuple(0.076 * (hop == 3) for hop in range(hops)),
        tuple(0.0757 if hop == 3 else 0.00259 for hop in range(hops)),
    )
    timed = time_orders(training.schedule.owners, training.schedule.orders, costs)
    assert timed is not None
    assert timed.step_s == pytest.approx(tried.timeline.step_time_s, rel=0.02)


def pipeline(*changes: str) -> Scenario:
    return load_scenario(Path("scenarios/optimal-schedule.yaml"), changes)


def test_crosspipes_pair_takes_a_fifth_less_than_its_best_schedule() -> None:
    """Two latencies and two times on the link: what CrossPipe's table 5 has at 0.196 s a microbatch."""
    tried = dry_runs(pipeline("workload.schedule.time_limit=30 s"), Scale())
    optimal, best_known = tried["optimal"], tried["crossudsub"]
    assert optimal.timeline.step_time_s < 0.82 * best_known.timeline.step_time_s
    training = optimal.workload.training
    assert training is not None
    assert training.schedule.searched is not None
    assert training.schedule.searched.step_s == pytest.approx(
        training.schedule.searched.bounds_s[1], rel=2e-3
    )
    assert optimal.timeline.step_time_s == pytest.approx(training.schedule.searched.step_s, rel=2e-3)


def test_over_four_data_centers_crosswave_is_no_slower_than_1f1b() -> None:
    latencies = tuple(4.0 * (hop % 2) for hop in range(7))
    wave = make_schedule(
        "CrossWave", ScheduleRequest(8, 16, 1, 1.0, Costs(0.5, 0.45, 0.45, latencies, (0.0,) * 7))
    )
    plain = make_schedule("1F1B", ScheduleRequest(8, 16, 1, 1.0, Costs(1.0, 0.9, 0.9, latencies, (0.0,) * 7)))
    took = [
        time_orders(one.owners, one.orders, Costs(1 / n, 0.9 / n, 0.9 / n, latencies, (0.0,) * 7))
        for one, n in ((wave, 2), (plain, 1))
    ]
    assert took[0] is not None
    assert took[1] is not None
    assert took[0].step_s < took[1].step_s


def test_a_guest_gets_it_as_a_file(tmp_path: Path) -> None:
    scenario = pipeline("workload.schedule.microbatches=4", "workload.schedule.time_limit=2 s").variant(
        "optimal"
    )
    given = _with_schedule(scenario, Scale(), tmp_path)
    assert given.workload.schedule is not None
    assert given.workload.schedule.file == str(tmp_path / "optimal.csv")
    assert check_orders(read_csv((tmp_path / "optimal.csv").read_text()), 4)
    other = pipeline().variant("1f1b")
    assert _with_schedule(other, Scale(), tmp_path) is other


# ---- bounds that need no search


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 8),
    st.sampled_from([1, 1.5, 2, 4]),
    st.tuples(*[st.floats(0.2, 3) for _ in range(3)]),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), min_size=4, max_size=4),
)
def test_nothing_that_is_known_takes_less_than_the_bound_without_a_search(
    ranks: int,
    microbatches: int,
    memory: float,
    stage_s: tuple[float, float, float],
    hops: list[tuple[float, float]],
) -> None:
    latency_s, busy_s = (tuple(hop[number] for hop in hops[: ranks - 1]) for number in (0, 1))
    costs = Costs(*stage_s, latency_s, busy_s)
    for chunks in (1, 2):
        request = ScheduleRequest(ranks, microbatches, chunks, memory, costs, effort=0.0)
        owners = request.loop if chunks == 1 else request.there_and_back
        found = find_optimal(request, owners)
        shop = JobShop(tuple(owners), microbatches, costs, activation_limit(request))
        assert lower_bound_s(shop) <= found.step_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("costs", "memory", "least"),
    [
        (Costs(1, 1, 1), 2.0, 0.95),  # ranks have no time for more
        (Costs(1, 1, 1, (0.5,), (4,)), 2.0, 0.95),  # nor has the link
        (Costs(1, 1, 1, (20,), (0,)), 1.0, 0.85),  # two are alive at a time, each for a way there and back
    ],
)
def test_the_bound_is_near_what_is_found(costs: Costs, memory: float, least: float) -> None:
    request = ScheduleRequest(2, 8, 1, memory, costs, effort=4.0)
    found = find_optimal(request, request.loop)
    shop = JobShop(tuple(request.loop), 8, costs, activation_limit(request))
    assert least * found.step_s <= lower_bound_s(shop) <= found.step_s * (1 + 1e-9)
