"""What ranks report is held against second witnesses; steps against their siblings and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.comm.transport.sockets import WireCounts
from testbed.measure.execution.job_run import LinkSample, StepClock
from testbed.measure.execution.rank_evidence import RankEvidence
from testbed.measure.execution.shard_records import shift_times
from testbed.measure.fidelity.cross_check_invariants import (
    Claim,
    CollectiveStart,
    ComputeTime,
    StepEnd,
    StepStart,
    begun_at_once,
    bytes_witnessed,
    common_start,
    compute_as_asked,
    step_ends_witnessed,
)
from testbed.measure.fidelity.timing_invariants import StepTime, model_error, steps_alike
from testbed.measure.ranks.telemetry import HostCounts, kernel_observations
from testbed.measure.results.summary import StepResult
from testbed.net.fabric.running_fabric import FabricCounters
from testbed.net.links.link_engine import DirectionStats, EngineStats
from testbed.net.links.protocol_counters import read_protocol_counts
from testbed.prediction.model_accuracy import stated_error
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of

SCENARIOS = Path(__file__).parents[3] / "scenarios"
HOSTS = ["east1", "west1"]


def step(rank: int, sent: int, received: int | None, trial: int = 0) -> dict[str, Any]:
    """A rank's record of a step in which it exchanges something with the only other one."""
    peer = str(1 - rank)
    found = {"step": trial + 1, "trial": trial, "rank": rank, "sent_bytes": {peer: sent}}
    return found if received is None else {**found, "received_bytes": {peer: received}}


# ---- bytes


def test_bytes_that_the_receivers_kernel_took_in_are_witnessed() -> None:
    found = bytes_witnessed(HOSTS, [step(0, 1000, 1020), step(1, 1000, 1020)])
    assert found.ok is True
    assert "all 2000 bytes" in found.sentence


def test_bytes_that_no_kernel_took_in_are_named_with_both_ranks() -> None:
    honest = [step(0, 1000, 1020), step(1, 1000, 1020)]
    found = bytes_witnessed(HOSTS, [*honest, step(0, 3_145_728, 160, 1), step(1, 160, 160, 1)])
    assert (found.ok, found.severity) == (False, "untrusted")
    assert found.sentence.startswith(
        "In trial 1 rank 0 on east1 reports 3145728 bytes sent to rank 1 on west1,"
    )
    assert found.sentence.endswith("whose kernel received 160 from it.")


def test_more_bytes_than_a_rank_reports_are_named_but_headers_are_not() -> None:
    assert bytes_witnessed(HOSTS, [step(0, 1_000_000, 0), step(1, 0, 1_000_000 + 100_000)]).ok is True
    found = bytes_witnessed(HOSTS, [step(0, 1_000_000, 0), step(1, 0, 2_000_000)])
    assert found.ok is False


def test_datagrams_may_come_more_than_once_but_none_may_be_missing() -> None:
    twice = [step(0, 1_000_000, 0), step(1, 0, 2_000_000)]
    assert bytes_witnessed(HOSTS, twice, repeats=True).ok is True
    found = bytes_witnessed(HOSTS, [*twice, step(0, 1000, 0, 1), step(1, 0, 900, 1)], repeats=True)
    assert (found.ok, found.severity) == (False, "untrusted")
    assert found.sentence == (
        "In trial 1 rank 0 on east1 reports 1000 bytes sent to rank 1 on west1, which received 900 from it."
    )


NIC_TEXT = "The rank reports {} bytes received; its NIC received {}."


def test_counts_that_are_forged_together_exceed_what_cards_carried() -> None:
    forged = [step(0, 1000, 1000), step(1, 1000, 1000)]
    assert bytes_witnessed(HOSTS, forged, [Claim(NIC_TEXT, 1000, 1100)]).ok is True
    found = bytes_witnessed(HOSTS, forged, [Claim(NIC_TEXT, 1000, 700)])
    assert found.ok is False
    assert found.sentence == "The rank reports 1000 bytes received; its NIC received 700."
    assert bytes_witnessed(HOSTS, forged, [Claim("{} and {}", 1000, 1080)]).ok is True


def test_where_the_kernel_does_not_tell_bytes_are_not_known() -> None:
    assert bytes_witnessed(HOSTS, [step(0, 1000, None), step(1, 1000, None)]).ok is None


# ---- computing


def test_computing_is_to_take_what_the_plan_asks_for() -> None:
    honest = ComputeTime(0, "east1", 0, "forward", 0.04, 0.04, 0.04)
    half = ComputeTime(1, "west1", 2, "forward", 0.02, 0.04, 0.04)
    assert compute_as_asked([honest]).ok is True
    found = compute_as_asked([honest, half])
    assert (found.ok, found.severity, found.measured) == (False, "untrusted", "-20 ms")
    assert found.sentence == ("In trial 2 rank 1 on west1 took 20 ms for forward; the plan asks for 40 ms.")
    assert compute_as_asked([]).ok is None
    said = replace(honest, followed_s=0.02)  # of which an operation that waits for it knows better
    found = compute_as_asked([said])
    assert (found.ok, found.measured) == (False, "-20 ms")
    assert found.sentence.endswith(
        " took 40 ms for forward; the plan asks for 40 ms. The operation that waits for it started after 20 ms."
    )
    assert compute_as_asked([replace(honest, followed_s=0.04)]).ok is True


@pytest.mark.parametrize(
    ("took_s", "most_s", "ok"), [(0.05, 0.05, True), (0.05, 0.04, False), (9, float("inf"), True)]
)
def test_computing_may_take_longer_where_it_is_slowed_down(took_s: float, most_s: float, ok: bool) -> None:
    assert compute_as_asked([ComputeTime(0, "east1", 0, "forward", took_s, 0.04, most_s)]).ok is ok


def test_a_collective_is_begun_as_soon_as_it_can_be() -> None:
    honest, late = (
        CollectiveStart(0, "east1", 0, "all_reduce", 1e-7),
        CollectiveStart(1, "west1", 2, "all_reduce", 0.002),
    )
    assert begun_at_once([honest], exact=True).ok is True
    found = begun_at_once([honest, late], exact=True)
    assert (found.ok, found.severity) == (False, "untrusted")
    assert found.sentence == "In trial 2 rank 1 on west1 started all_reduce 2 ms later than it could."
    assert begun_at_once([late], exact=False).ok is None


# ---- ends and starts


def end(trial: int = 0, **seen: float) -> StepEnd:
    """An end of a step of 80 ms, honest but for what is given."""
    witnessed = {"operations_s": 5.08, "heard_s": 5.08, "last_byte_s": 5.08, **seen}
    return StepEnd(1, "west1", trial, 0.08, 5.08, **witnessed)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"operations_s": 5.088}, "8 ms before its last operation ended"),
        ({"heard_s": 5.088}, "8 ms before its launcher was notified"),
        ({"heard_s": 5.077}, "3 ms after its launcher was notified"),
        ({"last_byte_s": 5.088}, "8 ms before its kernel received the last of its data"),
    ],
)
def test_an_end_that_another_witness_contradicts_is_named(seen: dict[str, float], words: str) -> None:
    assert step_ends_witnessed([end()], exact=True).ok is True
    found = step_ends_witnessed([end(), end(**seen, trial=2)], exact=True)
    assert (found.ok, found.severity) == (False, "untrusted")
    assert (
        f"In trial 2 rank 1 on west1 reports that its step ended after 80 ms, which is {words}."
        == found.sentence
    )


def test_by_the_real_clock_a_launcher_that_is_late_once_accuses_nobody() -> None:
    """Of one rank it hears soon enough."""
    assert step_ends_witnessed([end(heard_s=5.3), end(heard_s=5.081)], exact=False).ok is True
    assert step_ends_witnessed([end(last_byte_s=5.3), end(heard_s=5.3)], exact=False).ok is True
    found = step_ends_witnessed([end(heard_s=5.3), end(heard_s=5.2)], exact=False)
    assert (found.ok, found.severity) == (False, "caution")


def test_a_tick_of_the_kernel_is_no_lie() -> None:
    assert step_ends_witnessed([end(last_byte_s=5.0815)], exact=True).ok is True


def test_a_start_is_the_one_that_was_agreed_on() -> None:
    honest = StepStart(0, 5.0, 4.98, {0: 5.0, 1: 5.0})
    assert common_start(HOSTS, [honest], exact=True).ok is True
    found = common_start(HOSTS, [honest, StepStart(1, 6.0, 5.9, {0: 6.0, 1: 6.008})], exact=True)
    assert found.ok is False
    assert "In trial 1 rank 1 on west1 reports a start that is 8 ms from" in found.sentence
    found = common_start(HOSTS, [StepStart(1, 6.0, 5.9, {0: 6.0, 1: 6.0}, {0: 6.0, 1: 5.995})], exact=False)
    assert found.ok is False
    assert "In trial 1 rank 1 on west1 began 5 ms before the start" in found.sentence


@pytest.mark.parametrize(
    ("exact", "late_s", "status"), [(True, 0.002, "untrusted"), (False, 0.002, ""), (False, 0.2, "caution")]
)
def test_a_step_that_began_before_it_was_announced_began_by_another_clock(
    exact: bool, late_s: float, status: str
) -> None:
    found = common_start(HOSTS, [StepStart(3, 6.0, 6.0 + late_s, {0: 6.0, 1: 6.0})], exact)
    assert (found.severity if found.ok is False else "") == status


def test_a_step_clock_keeps_what_launchers_heard() -> None:
    clock = StepClock()
    for event in (
        {"event": "step", "index": 3, "start_s": 5.0, "heard_s": 4.9},
        {"event": "ended", "index": 3, "ranks": 1, "of": 2, "heard_s": {"0": 5.5}},
        {"event": "ended", "index": 3, "ranks": 1, "of": 2, "heard_s": {"1": 5.6}},  # of another machine
        {"event": "done"},
    ):
        clock.record(event)
    assert clock.starts == {3: (5.0, 4.9)}
    assert clock.ends == {3: {0: 5.5, 1: 5.6}}


def test_a_rank_says_what_its_kernel_took_in_from_each_peer_and_when_last() -> None:
    host = read_protocol_counts()
    before = HostCounts(host, None, {1: WireCounts(bytes_in=500), 2: WireCounts(bytes_in=9)})
    after = HostCounts(
        host, None, {1: WireCounts(bytes_in=1500, quiet_s=0.25), 2: WireCounts(bytes_in=9, quiet_s=0.1)}
    )
    assert kernel_observations(before, after, 8.0) == {"received_bytes": {"1": 1000}, "last_byte_s": 7.75}
    assert kernel_observations(HostCounts(host, None), after, 8.0) == {}
    assert list(shift_times([{"end_s": 8.0, "last_byte_s": 7.75}], 5.0)) == [
        {"end_s": 3.0, "last_byte_s": 2.75}
    ]


# ---- siblings and the model


def steps(*times_s: float, resent: int = 0) -> list[StepTime]:
    """The last one has sent so many segments again."""
    last = len(times_s) - 1
    return [StepTime(trial, time_s, resent if trial == last else 0) for trial, time_s in enumerate(times_s)]


def test_a_step_that_differs_from_its_siblings_is_named() -> None:
    assert steps_alike(steps(0.0724, 0.0721, 0.0721)).ok is True
    assert steps_alike(steps(0.0721, 0.0721, 0.0755, 0.0721)).ok is False


def test_the_more_alike_steps_are_the_less_one_may_differ() -> None:
    same = (0.0724, 0.0721, 0.0721, 0.0721, 0.0721, 0.0721)
    assert steps_alike(steps(*same, 0.0723)).ok is True
    assert steps_alike(steps(*same, 0.0727)).ok is False
    assert steps_alike(steps(*same, 0.0708, 0.0711)).ok is False  # two that are alike
    assert steps_alike(steps(*same, 0.0727), dropped=7).ok is True
    growing = (0.0707, 0.0698, 0.0692, 0.0696, 0.0686)
    assert steps_alike(steps(*growing)).ok is True
    found = steps_alike(steps(0.0721, 0.0721, 0.134, 0.0721))
    assert (found.ok, found.severity) == (False, "caution")
    assert "The step of trial 2 took 134 ms, the median of 4 steps 72.1" in found.sentence


def test_steps_may_drift_while_windows_grow_but_not_far() -> None:
    assert steps_alike(steps(0.0722, 0.0711, 0.0700, 0.0690, 0.0681)).ok is True
    assert steps_alike(steps(0.0721, 0.0721, 0.0721, 0.0766, 0.0766)).ok is False
    assert steps_alike(steps(0.0699, 0.0724, 0.0721, 0.0721)).ok is True  # the first one is special
    assert steps_alike(steps(0.0721, 0.0721, 0.0721, 0.0699)).ok is False


def test_which_packets_queues_drop_makes_steps_differ() -> None:
    """Without a drop by the topology's own queues nothing explains that segments were sent again."""
    uneven = steps(0.0721, 0.0721, 0.134, resent=7)
    assert steps_alike(uneven, dropped=12).ok is True
    assert steps_alike(uneven, dropped=0).ok is False
    # a clean run, whose fourth of five steps overflowed the WAN's queue and left windows smaller
    left = steps(0.08174, 0.08044, 0.0821, 0.08386)
    assert steps_alike(left, dropped=30).ok is True
    assert steps_alike(left).ok is False


def test_steps_need_not_be_alike_where_chance_has_a_part() -> None:
    assert steps_alike(steps(1.0, 2.0), "Links lose packets.").ok is None
    assert steps_alike(steps(1.0)).ok is None


@pytest.mark.parametrize(
    ("times_s", "singly", "named"),
    [
        ((1.0, 1.01, 1.02), True, ""),
        ((0.94, 0.93, 0.94), True, "The median step took 940 ms"),
        ((1.0, 1.0, 1.07), True, "The step of trial 2 took 1070 ms"),
        ((1.0, 1.0, 1.07), False, ""),
    ],
)
def test_farther_from_the_model_than_its_stated_error(
    times_s: tuple[float, ...], singly: bool, named: str
) -> None:
    found = model_error(steps(*times_s), 1.0, 0.05, exact=True, singly=singly)
    assert found.ok is (not named)
    assert found.sentence.startswith(named)
    assert found.severity == "caution"


def test_by_the_real_clock_steps_may_be_slower_but_not_quicker() -> None:
    assert model_error(steps(1.2, 1.3), 1.0, 0.05, exact=False).ok is True
    assert model_error(steps(0.9, 0.9), 1.0, 0.05, exact=False).ok is False


def test_without_a_stated_error_nothing_is_held_against_the_model() -> None:
    assert model_error(steps(1.0), None, 0.05, exact=True).ok is None
    assert model_error(steps(1.0), 2.0, None, exact=True).ok is None


@pytest.mark.parametrize(
    ("name", "changes", "by_packets", "by_fluid"),
    [
        ("quickstart", {}, 0.048, 0.089),
        ("quickstart", {"topology.wan.0.loss": "0.1 %"}, 0.096, 0.532),
        ("controller/windows", {}, 0.079, 0.775),
        ("controller/windows", {"transport.kind": "mptcp"}, None, None),
        ("decode", {}, None, None),
        ("inference/one-card", {}, None, None),
    ],
)
def test_what_error_is_stated_goes_by_the_scenario_and_how_it_is_played(
    name: str, changes: dict[str, Any], by_packets: float | None, by_fluid: float | None
) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    if changes:
        scenario = scenario.changed(changes, "")
    assert stated_error(scenario, by_packets=True) == by_packets
    assert stated_error(scenario, by_packets=False) == by_fluid


def test_state_that_a_replica_gives_away_may_be_under_way_when_its_step_is_over() -> None:
    ends = {"hosts": 1, "nic": {"rate": "1 Gbit/s"}}
    topology = {
        "name": "pair",
        "buildings": {"east": ends, "west": ends},
        "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
    }
    job = job_of(
        load_scenario(
            {
                "name": "pair",
                "topology": topology,
                "workload": {"collectives": [{"collective": "all_reduce", "size": "1 MB"}]},
            }
        ),
        Scale(),
    )

    def reading(time_s: float, edge: str, sent_bytes: int) -> LinkSample:
        account = DirectionStats(0, 0, 0, sent_bytes, 0, 0, 0, 0, 0, 0, 0, 0)
        both = {("east-west-0", way): account for way in ("a_to_b", "b_to_a")}
        return LinkSample(time_s, FabricCounters((), {}, 0), EngineStats(time_s, both), edge)

    links = [reading(1.0, "start", 0), reading(2.0, "end", 700), reading(3.0, "start", 700)]
    links.append(reading(4.0, "end", 1500))
    steps = [
        StepResult(number, "ring", number, start_s, start_s + 1.0, 0.0, {(0, 1): sent, (1, 0): 700}, 0, 0)
        for number, start_s, sent in ((0, 1.0, 1500), (1, 3.0, 700))
    ]
    for given, trials in ((800, [1, 1]), (0, [0, 0, 1, 1])):
        samples = [{"step": 0, "operation": "step", "given_bytes": given}]
        witnesses_ = RankEvidence(job, samples, StepClock(), {}, links, exact=True)
        said = [claim.text for claim in witnesses_._links(steps)]
        assert [f"In trial {trial} " in text for trial, text in zip(trials, said, strict=True)] == [
            True
        ] * len(trials)
