"""The compiled steps take what the steps in Python take, operation by operation; and what formulas say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.collectives.registry import COLLECTIVES
from testbed.comm.transport import Software
from testbed.net.paths.network import Network
from testbed.net.paths.network import Path as Way
from testbed.prediction import simulation as preparing
from testbed.prediction.compiled import library
from testbed.prediction.network_columns import NetworkColumns, call_of
from testbed.prediction.network_simulator import NetworkSimulator, Outcome, play
from testbed.prediction.simulation import PreparedStep, play_cached, simulate
from testbed.prediction.step_prediction import prepare_step
from testbed.prediction.timeline import Deadlock, peak_activation_bytes
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation
from tests.unit.workload.test_workload_rank_symmetry import DEGREES, MORE, SCENARIO, SHAPES

POLICIES: Mapping[str, Mapping[str, object]] = {
    "shortest": {},
    "four planes": {"policy": "ecmp", "topology.wan.0.planes": 4},
    "spray": {"policy": "spray", "topology.wan.0.planes": 4, "transport.kind": "striped"},
    "software": {
        "transport.software_cost": {"per_message": "20 us", "per_gigabyte": "3 ms", "handover": "4 us"}
    },
    "small queues": {"topology.wan.0.queue": "100 kB", "topology.wan.0.rate": "5 Gbit/s"},
}


EVERY = [
    (name, algorithm)
    for name, known in COLLECTIVES.items()
    if not known.uneven
    for algorithm in known.algorithms
]


def step_of(shape: tuple[int, ...], more: Mapping[str, object]) -> PreparedStep:
    degrees = {f"{name}_degree": many for name, many in zip(DEGREES, shape, strict=True)}
    scenario = load_scenario(SCENARIO).changed({"workload.parallelism": degrees, **more}, "a test")
    return prepare_step(job_of(scenario, Scale()), "ring", packets=0)


def loop_of(step: PreparedStep) -> Outcome | None:
    on = NetworkSimulator(step.network, len(step.plan.ranks), step.itemsize, step.software)
    return on.play(step.plan, folded=step.folded)


def check(step: PreparedStep) -> None:
    outcome, timeline = loop_of(step), step.play()
    assert outcome is not None
    spans = np.array([span for own in timeline.spans for span in own]).T
    assert outcome.begun_s == pytest.approx(spans[0], rel=1e-9, abs=1e-12)
    assert outcome.ended_s == pytest.approx(spans[1], rel=1e-9, abs=1e-12)
    assert outcome.step_time_s == pytest.approx(timeline.step_time_s, rel=1e-12)
    assert outcome.alive == pytest.approx(peak_activation_bytes(step.plan, timeline.spans))


@pytest.mark.parametrize("folded", [False, True], ids=["messages", "flows"])
@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_is_played_as_in_python(
    shape: tuple[int, ...], more: Mapping[str, object], folded: bool
) -> None:
    check(replace(step_of(shape, more), folded=folded))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "CrossUDSub"])
def test_networks_are_what_they_are_in_python(schedule: str, policy: Mapping[str, object]) -> None:
    more = {"workload.schedule.name": schedule, **policy}
    step = step_of((2, 2, 2, 1, 1), more)
    if step.network.stripe_settings:
        assert loop_of(step) is None
    else:
        check(step)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=map(" ".join, EVERY))
def test_collectives_go_by_their_plans(collective: str, algorithm: str) -> None:
    """Of channels, stages, strands and rounds side by side, as many as there are."""
    operation = GroupCollective("c", "c", "c", (), 0, collective, 8 * 1000, algorithm)
    plan = JobPlan(((operation,),) * 8, (("all", tuple(range(8))),), buildings=(0,) * 4 + (1,) * 4)
    outcome = play(plan, NetworkColumns(one_plane(8), 8, 4), Software())
    assert outcome is not None
    assert outcome.step_time_s == pytest.approx(simulate(plan, one_plane(8), 4).step_time_s, rel=1e-12)


def one_plane(ranks: int, rate: float = 1e6, latency_s: float = 1e-3) -> Network:
    """Every rank by its own card, through a core that is no quicker than a card."""
    cards = {f"{way} {rank}": rate for rank in range(ranks) for way in ("out", "in")}
    pairs = [(one, other) for one in range(ranks) for other in range(ranks) if one != other]
    paths = {(a, b): Way(latency_s, (f"out {a}", f"in {b}")) for a, b in pairs}
    return Network(cards, paths, send_buffer_bytes=1e9)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_takes_what_its_formula_says(ranks: int) -> None:
    """2 (n - 1) rounds of latency and an n-th of the bytes (Thakur, Rabenseifner, Gropp 2005, section 4.4)."""
    elements, rate, latency_s = 1000 * ranks, 1e6, 1e-3
    operation = GroupCollective("c", "c", "c", (), 0, "all_reduce", elements, "ring")
    plan = JobPlan(((operation,),) * ranks, (("all", tuple(range(ranks))),))
    outcome = play(plan, NetworkColumns(one_plane(ranks, rate, latency_s), ranks, 4), Software())
    assert outcome is not None
    expected_s = 2 * (ranks - 1) * (latency_s + elements * 4 / ranks / rate)
    assert outcome.step_time_s == pytest.approx(expected_s, rel=1e-9)


def test_a_play_leaves_nothing_to_the_next_one() -> None:
    """Pools that grew are used again, by plays of any size, and by each thread for itself."""
    large, small = (step_of(shape, {}) for shape in ((4, 2, 1, 1, 1), (1, 8, 1, 1, 1)))
    alone = [loop_of(step) for step in (small, large)]
    after = [loop_of(step) for step in (large, small, small, large)]
    with ThreadPoolExecutor(2) as threads:
        beside = list(threads.map(loop_of, [small, large] * 8))
    for found, step in zip((*after, *beside), (large, small, small, large, *[small, large] * 8), strict=True):
        expected = alone[step is large]
        assert found is not None
        assert expected is not None
        assert np.array_equal(found.ended_s, expected.ended_s)
        assert np.array_equal(found.worked_s, expected.worked_s)


def test_a_collective_is_read_once_for_all_networks() -> None:
    operation = GroupCollective("c", "c", "c", (), 0, "all_reduce", 8000, "ring")
    plans = [
        JobPlan(((own,),) * 8, (("all", tuple(range(8))),))
        for own in (operation, replace(operation, name="d", stream="d"), replace(operation, numel=4000))
    ]
    calls = [
        call_of(plan, own, 4) for plan in plans for own in plan.ranks[0] if isinstance(own, GroupCollective)
    ]
    assert calls[0] is calls[1]
    assert calls[0].kinds != calls[2].kinds


@st.composite
def jobs(drawn: st.DrawFn) -> JobPlan:
    """Messages between four ranks, computing among them, each waiting for some of what is before it."""
    plans: list[list[Operation]] = [[] for _ in range(4)]

    def after(rank: int) -> tuple[int, ...]:
        places = st.sampled_from(range(max(1, len(plans[rank]))))
        return tuple(drawn(st.sets(places, max_size=2))) if plans[rank] else ()

    for number in range(drawn(st.integers(1, 14))):
        one, other = drawn(st.permutations(range(4)))[:2]
        numel = drawn(st.integers(1, 5000))
        for rank, peer, sends in ((one, other, True), (other, one, False)):
            stream = (
                drawn(st.sampled_from(["messages", f"message {number}"])) if sends else f"message {number}"
            )
            made = Message(f"m{number}", stream, "p2p", after(rank), peer, numel, number, sends)
            plans[rank].append(made)
        rank = drawn(st.integers(0, 3))
        duration_s = drawn(st.sampled_from([0.0, 0.001, 0.004]))
        plans[rank].append(Computing("c", "compute", "forward", after(rank), duration_s=duration_s))
    return JobPlan(tuple(map(tuple, plans)), holds_receivers=drawn(st.booleans()))


@settings(deadline=None)
@given(jobs(), st.sampled_from([1e9, 3000.0]), st.sampled_from([0.0, 2e-4]), st.booleans())
def test_any_job_of_messages_is_played_as_in_python(
    plan: JobPlan, buffer_bytes: float, message_s: float, routed: bool
) -> None:
    network = replace(one_plane(4), send_buffer_bytes=buffer_bytes, routed=routed)
    network = replace(network, queues=dict.fromkeys(network.capacities, 10_000.0) if routed else {})
    check(PreparedStep(plan, network, 4, Software(message_s=message_s), folded=False))


def test_what_never_ends_is_said_by_the_model_in_python() -> None:
    wait = Message("never", "m", "p2p", (), 1, 10, 0, sends=False)
    plan = JobPlan(((wait,), ()))
    assert play(plan, NetworkColumns(one_plane(2), 2, 4), Software()) is None
    with pytest.raises(Deadlock, match="rank 0 in never"):
        play_cached(PreparedStep(plan, one_plane(2), 4, Software(), folded=False))


@pytest.mark.parametrize(
    "more",
    [
        {"topology.wan.0.loss": "0.1 %"},
        {"transport.congestion_control": "bbr"},
        {"transport.protocol": "rendezvous"},
        {"transport.software_cost.launch": "5 us"},
        {"workload.parallelism.tensor_communication": "overlapped_ring"},
    ],
    ids=str,
)
def test_what_is_out_of_the_ordinary_is_left_to_python(more: Mapping[str, object]) -> None:
    assert loop_of(step_of((2, 1, 1, 4, 1), more)) is None


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where nothing is kept yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.load_library.cache_clear()
    yield tmp_path
    library.load_library.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "got"),
    [(None, "none"), ("echo no headers >&2; exit 1", "no headers"), ("echo '#' > /dev/null", "No such file")],
    ids=["none", "fails", "makes none"],
)
def test_without_a_compiler_the_error_says_what_to_install(
    compiler: str | None, got: str, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of((2, 2, 2, 1, 1), {})
    programs = tmp_path / "programs"
    programs.mkdir()
    if compiler is not None:
        (programs / "cc").write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(preparing, "_known", {})
    for prediction in (lambda: play_cached(step), step.play):
        with pytest.raises(
            library.NoCompilerError, match=rf"got .*{got}.*, expected a C compiler(.|\n)*apt install"
        ):
            prediction()
    assert not list(elsewhere.rglob("flows-*"))


def test_without_a_cache_it_is_compiled_for_this_process_alone(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/sys")  # not even root can make a folder there
    step = step_of((2, 2, 2, 1, 1), {})
    assert step.play().spans == step.play().spans
    assert library.environment() == {}
    assert not Path(library.load_library()._name).exists()


def test_another_process_is_told_where_the_library_is(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = library.environment()
    library.load_library.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/sys")
    monkeypatch.setenv(*environment.popitem())
    assert Path(library.load_library()._name).is_relative_to(elsewhere)


def test_it_is_compiled_once(elsewhere: Path) -> None:
    library.load_library()
    (kept,) = elsewhere.rglob("*.so")
    made_ns = kept.stat().st_mtime_ns
    library.load_library.cache_clear()
    library.load_library()
    assert kept.stat().st_mtime_ns == made_ns
