"""A scenario's events: their order, what follows from them, and how they are carried out."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from testbed.measure.execution.event_player import (
    EventPlayer,
    affected_parts,
    hosts_beyond_engine,
    network_condition,
    parts_changed_by,
    planned_changes,
    summarise_events,
)
from testbed.net.fabric.faults import Condition
from testbed.spec.events import DrawnEvent, EventSpec
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
TWO = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve(Scale(4000, 2))
THREE = load_topology(TOPOLOGIES / "three-buildings.yaml").resolve()


def event(**values: Any) -> EventSpec:
    return EventSpec.model_validate({"at": "1 s", **values})


def test_the_old_key_of_a_direction_says_what_to_write_in_its_place() -> None:
    with pytest.raises(ValidationError, match="a key that was renamed, expected `direction`"):
        event(action="degrade", target="east-west-0", set={"loss": "1 %"}, way="a_to_b")


def test_turns_come_in_order_and_ends_before_beginnings() -> None:
    events = [
        event(action="link_down", target="east-west-0", **{"for": "100 ms", "every": "200 ms", "times": 2}),
        event(at="1.1 s", action="host_pause", target="east1"),
    ]
    assert [(round(change.at_s, 9), change.event, change.begins) for change in planned_changes(events)] == [
        (1.0, 0, True),
        (1.1, 0, False),
        (1.1, 1, True),
        (1.2, 0, True),
        (1.3, 0, False),
    ]


def test_what_goes_down_with_each_kind_of_event() -> None:
    scale = Scale()
    assert network_condition([], TWO, scale) == Condition()
    link = network_condition([event(action="link_down", target="east-west-1")], TWO, scale)
    assert link.links_down == {"east-west-1"}
    plane = network_condition([event(action="plane_down", target=0)], THREE, scale)
    assert plane.links_down == {"north-south-0", "south-coast-0", "coast-north-0"}
    assert network_condition([event(action="switch_down", target="east-edge")], TWO, scale).switches_down == {
        "east-edge"
    }
    assert network_condition([event(action="host_pause", target="east1")], TWO, scale) == Condition()


def test_changes_add_up_and_are_scaled() -> None:
    scale = Scale(4000, 2)
    active = [
        event(action="degrade", target="east-west-0", set={"loss": "1 %", "delay": "5 ms"}),
        event(action="degrade", target="east-west-0", direction="a_to_b", set={"loss": "2 %"}),
    ]
    changed = network_condition(active, TWO, scale).changed
    assert set(changed) == {("east-west-0", "a_to_b"), ("east-west-0", "b_to_a")}
    assert (changed["east-west-0", "a_to_b"].loss, changed["east-west-0", "b_to_a"].loss) == (0.02, 0.01)
    assert changed["east-west-0", "a_to_b"].delay_s == pytest.approx(0.010)
    assert changed["east-west-0", "a_to_b"].rate_bps == TWO.wan[0].a_to_b.rate_bps


def test_what_goes_dark_and_whose_cards_go() -> None:
    scale = Scale()
    dark = network_condition([event(action="link_blackhole", target="east-west-1")], TWO, scale)
    assert dark == Condition(links_dark=frozenset({"east-west-1"}))
    plane = network_condition([event(action="plane_blackhole", target=0)], THREE, scale)
    assert plane.links_dark == {"north-south-0", "south-coast-0", "coast-north-0"}
    cards = [event(action="nic_down", target="east1"), event(action="host_kill", target="west2")]
    assert network_condition(cards, TWO, scale) == Condition(cards_down=frozenset({"east1", "west2"}))
    assert network_condition([event(action="rank_kill", target=1)], TWO, scale) == Condition()


def test_a_card_is_changed_by_its_cable_each_way() -> None:
    scale, nic = Scale(4000, 2), TWO.hosts[0].nic
    lossy = network_condition(
        [event(action="nic_loss", target="east1", loss="2 %", direction="in")], TWO, scale
    ).changed
    assert {key: direction.loss for key, direction in lossy.items()} == {("east1-east-leaf", "b_to_a"): 0.02}
    slow = event(action="nic_degrade", target="east1", set={"rate": "100 Gbit/s", "delay": "1 ms"})
    both = network_condition([slow, event(action="nic_loss", target="east1", loss="1 %")], TWO, scale).changed
    assert set(both) == {("east1-east-leaf", "a_to_b"), ("east1-east-leaf", "b_to_a")}
    changed = both["east1-east-leaf", "a_to_b"]
    assert changed.rate_bps == pytest.approx(100e9 / 8000)
    assert changed.delay_s == pytest.approx(0.002)
    assert changed.loss == 0.01
    assert changed.queue_bytes == nic.queue_bytes


def test_events_of_a_step_come_with_it() -> None:
    events = [
        event(action="link_down", target="east-west-0"),
        event(step=2, at="10 ms", action="host_pause", target="east1", **{"for": "5 ms"}),
    ]
    assert [change.event for change in planned_changes(events)] == [0]
    assert planned_changes(events, step=1, start_s=7.0) == []
    assert [(round(c.at_s, 9), c.event, c.begins) for c in planned_changes(events, step=2, start_s=7.0)] == [
        (7.01, 1, True),
        (7.015, 1, False),
    ]


def test_what_events_touch() -> None:
    assert affected_parts([event(action="host_pause", target="east1")], TWO) == (set(), set())
    links, buildings = affected_parts([event(action="link_down", target="south-coast-0")], THREE)
    assert (links, buildings) == ({"south-coast-0"}, {"south", "coast"})
    links, buildings = affected_parts([event(action="switch_down", target="north-leaf")], THREE)
    assert links == {"north-south-0", "coast-north-0"}
    assert buildings == {"north", "south", "coast"}
    silent = [
        event(action="link_blackhole", target="south-coast-0"),
        event(action="nic_down", target="north1"),
    ]
    assert affected_parts(silent, THREE) == ({"south-coast-0"}, {"south", "coast"})
    assert parts_changed_by(silent, THREE) == ({"south-coast-0"}, set(), {"north1"})
    kills = [event(action="rank_kill", target=1), event(action="host_kill", target="north2")]
    assert parts_changed_by(kills, THREE) == (set(), set(), {"north2"})


class Recorder:
    """Stands in for a fabric's faults: notes what condition is asked for."""

    def __init__(self) -> None:
        self.conditions: list[Condition] = []
        self.told: list[int] = []
        self.due_s: float | None = None
        self.played = self.settled = 0

    def apply_due(self) -> None:
        self.played += 1

    def flush(self) -> None:
        self.settled += 1

    def apply(self, wanted: Condition) -> None:
        self.conditions.append(wanted)


def player(
    events: list[EventSpec], pid: int = 0, returned: list[int] | None = None
) -> tuple[EventPlayer, Recorder]:
    recorder = Recorder()
    hosts = [host.name for host in TWO.hosts]
    made = EventPlayer(
        events,
        TWO,
        Scale(1, 2),
        recorder,  # type: ignore[arg-type]
        hosts,
        lambda rank: pid,
        recorder.told.append,
        lambda ranks: None if returned is None else returned.extend(ranks),
    )
    return made, recorder


def test_events_come_at_their_dilated_times_in_every_variant_and_are_undone_at_its_end() -> None:
    playing, recorder = player(
        [
            event(at="10 ms", action="link_down", target="east-west-0"),
            event(at="900 s", action="plane_down", target=1),
        ]
    )
    playing.step("ring", -1, time.monotonic())
    assert playing.due_s is None
    origin_s = time.monotonic()
    playing.step("ring", 0, origin_s)
    assert playing.due_s == pytest.approx(origin_s + 0.020)
    playing.play()
    assert recorder.conditions == []
    time.sleep(0.025)
    playing.play()
    assert [entry.links_down for entry in recorder.conditions] == [{"east-west-0"}]
    playing.step("hierarchical", -1, time.monotonic())
    assert recorder.conditions[-1] == Condition()
    playing.finish()
    came, missed = playing.log
    assert (came["variant"], came["action"], came["begins"]) == ("ring", "link_down", True)
    assert came["planned_s"] == 0.010
    assert 0.010 <= came["actual_s"] < 0.2
    assert (missed["action"], missed["actual_s"]) == ("plane_down", None)
    record = summarise_events(playing.log, "ring")
    assert (record["planned"], record["came"]) == (2, 1)
    assert record["late_max_s"] == came["actual_s"] - 0.010
    assert summarise_events(playing.log, "hierarchical") == {"planned": 0, "came": 0, "late_max_s": 0}


def test_what_switches_see_later_is_waited_for_and_seen_at_the_variants_end() -> None:
    playing, recorder = player([event(at="900 s", action="link_down", target="east-west-0")])
    recorder.due_s = 5.0
    playing.step("ring", 0, time.monotonic())
    assert playing.due_s == 5.0
    playing.play()
    # what a former variant left was seen before this one began
    assert (recorder.played, recorder.settled) == (1, 1)
    playing.finish()
    assert recorder.settled == 2


def test_a_paused_host_stands_still_until_the_end() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        playing, _ = player([event(at="0 s", action="host_pause", target="east1")], process.pid)
        playing.step("ring", 0, time.monotonic())
        playing.play()
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        playing.finish()
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])
    finally:
        process.kill()
        process.wait()


def test_what_waits_for_a_step_never_comes_without_it_and_what_was_drawn_need_not() -> None:
    drawn = DrawnEvent.model_construct(at_s=900.0, action="rank_kill", target=0)
    playing, _ = player([event(step=3, action="nic_down", target="east1"), drawn])
    playing.step("ring", 0, time.monotonic())
    playing.step("ring", 1, time.monotonic())
    playing.finish()
    (missed,) = playing.log
    assert (missed["event"], missed["planned_s"], missed["actual_s"]) == (0, None, None)
    assert summarise_events(playing.log, "ring")["planned"] == 1


def test_a_step_sets_its_own_events_going() -> None:
    playing, recorder = player([event(step=1, at="0 s", action="nic_down", target="east1")])
    playing.step("ring", 0, time.monotonic())
    assert playing.due_s is None
    start_s = time.monotonic() + 0.01
    playing.step("ring", 1, start_s)
    assert playing.due_s == pytest.approx(start_s)
    time.sleep(0.015)
    playing.play()
    assert recorder.conditions == [Condition(cards_down=frozenset({"east1"}))]
    assert playing.log[0]["planned_s"] == pytest.approx(playing.log[0]["actual_s"], abs=0.05)


@pytest.mark.parametrize(("action", "target"), [("rank_kill", 1), ("host_kill", "east2")])
def test_who_is_killed_returns_after_its_time_and_its_death_is_explained_once(
    action: str, target: int | str
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        returned: list[int] = []
        kill = event(at="0 s", action=action, target=target, **{"for": "10 ms"})
        playing, recorder = player([kill], process.pid, returned)
        playing.step("ring", 0, time.monotonic())
        playing.play()
        assert process.wait(10) == -9
        assert recorder.told == ([1] if action == "rank_kill" else [])  # of a machine nobody is told
        assert playing.explains_death(1)
        assert not playing.explains_death(1)
        assert not playing.nobody_left
        assert returned == []
        time.sleep(0.025)
        playing.play()
        assert returned == [1]
        dark = [condition.cards_down for condition in recorder.conditions]
        assert dark == [{"east2"} if action == "host_kill" else set(), set()]
    finally:
        process.kill()
        process.wait()


def test_when_all_are_killed_for_good_nobody_is_left() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        ranks = len(TWO.hosts)
        playing, _ = player(
            [event(at="0 s", action="rank_kill", target=rank) for rank in range(ranks)], process.pid
        )
        playing.step("ring", 0, time.monotonic())
        assert not playing.nobody_left
        playing.play()
        assert playing.nobody_left
    finally:
        process.kill()
        process.wait()


def test_a_job_that_is_set_back_meets_its_events_once() -> None:
    playing, recorder = player(
        [event(step=1, at="0 s", action="nic_down", target="east1", **{"for": "1 ms"})]
    )
    for trial in (0, 1, 0, 1):
        playing.step("ring", trial, time.monotonic())
        time.sleep(0.003)
        playing.play()
    assert len(recorder.conditions) == 2
    playing.step("tree", 0, time.monotonic())
    playing.step("tree", 1, time.monotonic())
    playing.play()
    assert len(recorder.conditions) == 3
    playing.finish()
    assert [entry["variant"] for entry in playing.log] == ["ring", "ring", "tree"]


def test_what_an_engine_does_not_carry_is_named() -> None:
    events = [
        event(action="nic_loss", target="east1", loss="1 %"),
        event(action="nic_degrade", target="east2", set={"rate": "1 Gbit/s"}),
        event(action="nic_degrade", target="west1", set={"delay": "1 ms"}),
        event(action="degrade", target="east-west-0", set={"loss": "1 %"}),
    ]
    assert hosts_beyond_engine(events, TWO, "userspace") == ["east1", "west1"]
    assert hosts_beyond_engine(events, TWO, "netem") == []
