"""Jitter, loss and settings in force: what passes, what does not, and what is said of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from testbed.measure.fidelity import probe
from testbed.measure.fidelity.invariants import Conservation, emulator_stalls
from testbed.measure.fidelity.link_invariants import (
    DroppingPort,
    drops_only_where_modelled,
    jitter_accuracy,
    loss_accuracy,
    nothing_changed,
    offload_state,
    rules_in_force,
    settings_in_force,
)
from testbed.measure.fidelity.probe import LinkMeasurement
from testbed.spec.link_direction import Direction, LossBursts
from testbed.spec.links import WanLink
from testbed.spec.topology import Topology

PLAIN = Direction(1e9, 0.005, 0.0, 0.0, 1_000_000)


def measured(asked: Direction, spread_s: float, name: str = "east") -> LinkMeasurement:
    return LinkMeasurement(name, "west", 0, "a_to_b", asked, 1e9, 0.005, 0.0, spread_s=spread_s)


@pytest.mark.parametrize(
    ("jitter_s", "distribution", "spread_s", "ok"),
    [
        (0.0, "uniform", 0.0003, True),
        (0.0, "uniform", 0.0006, False),
        (0.004, "uniform", 0.004, True),
        (0.004, "uniform", 0.007, True),
        (0.004, "uniform", 0.009, False),
        (0.004, "uniform", 0.001, False),
        (0.004, "normal", 0.0054, True),
        (0.004, "normal", 0.0022, False),
        (0.004, "pareto", 0.00225, True),
        (0.004, "pareto", 0.0054, False),
        (0.0001, "uniform", 0.0005, True),  # what a machine adds by itself
    ],
)
def test_jitter(jitter_s: float, distribution: str, spread_s: float, ok: bool) -> None:
    asked = dataclasses.replace(PLAIN, jitter_s=jitter_s, jitter_distribution=distribution)
    found = jitter_accuracy([measured(PLAIN, 0.0001, "north"), measured(asked, spread_s)])
    assert found.ok is ok
    if not ok:
        assert "east to west, plane 0" in found.sentence
        assert found.severity == "caution"


@pytest.mark.parametrize(("hiccups", "ok"), [(0, True), (2, True), (3, False)])
def test_a_hiccup_of_the_machine_passes_and_a_link_that_jitters_stays(
    monkeypatch: pytest.MonkeyPatch, hiccups: int, ok: bool
) -> None:
    quiet, rough = [0.005] * 20, [0.005, 0.007] * 10
    tries = [rough] * hiccups + [quiet] * 3
    monkeypatch.setattr(probe, "measure_one_way_delays", lambda *ends: tries.pop(0))
    monkeypatch.setattr(probe, "_rate", lambda *ends: (1e9, True, 0.0, False))
    link = WanLink("east", "west", 0, PLAIN, PLAIN)
    topology = Topology("pair", 1500, (), (link,))
    forth, _ = probe.measure_links(topology, {"east": 1, "west": 2})
    assert jitter_accuracy([forth]).ok is ok


def test_without_links_there_is_nothing_to_judge() -> None:
    assert jitter_accuracy([]).ok is None
    assert loss_accuracy([], []).ok is None


def frames(lost: int, **more: Any) -> Conservation:
    """A million frames into a link of whom this many are lost."""
    fields = {"taken_in": 1_000_000, "dropped": 0, "held": 0, "duplicated": 0, "overrun": 0, **more}
    there = fields["taken_in"] - fields["dropped"] - fields["held"] + fields["duplicated"] - lost
    return Conservation(
        "east-west-0 a_to_b",
        entered=1_000_000,
        crossed=1_000_000,
        given_out=there,
        arrived=there,
        lost=lost,
        **fields,
    )


BURSTS = LossBursts(0.001, 0.1)


@pytest.mark.parametrize(
    ("change", "link", "ok"),
    [
        ({}, frames(0), True),
        ({}, frames(1), False),
        ({}, frames(0, dropped=5000, held=3), True),  # queues drop by design
        ({"loss": 0.01}, frames(10_200), True),
        ({"loss": 0.01}, frames(10_400), False),
        ({"loss": 0.01}, frames(9_600), False),
        ({"loss": 0.01, "duplicate": 0.1}, frames(10_000, duplicated=100_000), True),
        ({"loss_bursts": BURSTS}, frames(10_900), True),  # bursts of ten: wider
        ({"loss_bursts": BURSTS}, frames(13_000), False),
    ],
)
def test_loss(change: dict[str, Any], link: Conservation, ok: bool) -> None:
    found = loss_accuracy([frames(0), link], [PLAIN, dataclasses.replace(PLAIN, **change)])
    assert found.ok is ok, found
    assert "frames on its fibre" in found.sentence


@pytest.mark.parametrize("expected", [0.3, 2.086, 5.0, 40.0, 900.0])
def test_few_losses_alarm_as_rarely_as_many(expected: float) -> None:
    """Of clean directions, by Poisson's distribution; and those that lose four times as many as they should do."""
    asked = dataclasses.replace(PLAIN, loss=expected / 1e6)
    alarms = [lost for lost in range(4000) if loss_accuracy([frames(lost)], [asked]).ok is False]
    share = sum(math.exp(lost * math.log(expected) - expected - math.lgamma(lost + 1)) for lost in alarms)
    assert 0 < share <= 0.001
    assert round(4 * expected + 4) in alarms


@pytest.mark.parametrize(
    ("late_s", "ok", "severity"),
    [(0.0, True, ""), (0.9, True, ""), (1.5, False, "caution"), (4, False, "untrusted")],
)
def test_stalls(late_s: float, ok: bool, severity: str) -> None:
    found = emulator_stalls(late_s, 10.0)
    assert found.ok is ok
    assert ok or found.severity == severity
    assert emulator_stalls(None, 10.0).ok is None
    assert emulator_stalls(0.0, 0.0).ok is True


def test_drops_in_the_kernel() -> None:
    assert drops_only_where_modelled(0).ok is True
    found = drops_only_where_modelled(3)
    assert (found.ok, found.severity) == (False, "untrusted")
    assert "3 packets" in found.sentence


def test_drops_of_queues_inside_buildings_are_named_and_cautioned_unless_their_size_was_given() -> None:
    meant = DroppingPort(place="the port of east-leaf to east1", queue_bytes=64_000, given=True, drops=7)
    found = drops_only_where_modelled(0, [meant])
    assert (found.ok, found.measured) == (True, "0 packets")
    assert "dropped packets: 7 in all steps" in found.sentence
    others = [
        DroppingPort(place=f"the port of east-leaf to east{n}", queue_bytes=64_000, given=False, drops=n)
        for n in (5, 4, 3, 2)
    ]
    found = drops_only_where_modelled(0, [*others, meant])
    assert (found.ok, found.severity, found.measured) == (False, "caution", "14 packets")
    assert "5 at the port of east-leaf to east5" in found.sentence
    assert "and 1 other port" in found.sentence
    assert drops_only_where_modelled(1, others).severity == "untrusted"


def test_rules_that_were_put_right_were_wrong_for_a_while() -> None:
    assert rules_in_force([]).ok is True
    found = rules_in_force(["tb1e0: missing: to west", "tb1e1: missing: to east"])
    assert (found.ok, found.measured, found.severity) == (False, "repaired 2 times", "untrusted")
    assert "tb1e0: missing: to west" in found.sentence


def test_settings_in_force() -> None:
    assert settings_in_force(None).ok is True
    assert settings_in_force(None).sentence.startswith("The settings of the network were")
    found = offload_state("east1: eth0: tx-checksumming: asked for off")
    assert found.ok is False
    assert "east1: eth0" in found.sentence
    assert found.severity == "untrusted"


def test_nothing_changed_names_what_was_and_what_is_left_out() -> None:
    assert nothing_changed([]).ok is True
    change = "east-leaf: class 1:10 of p3: rate 12500000 -> 6250000 bytes/s"
    found = nothing_changed([(3.21, change)], ["east-west-0"])
    assert (found.ok, found.severity, found.measured) == (False, "untrusted", "1 change")
    assert f"{change}, seen at 3.21 s." in found.sentence
    assert found.sentence.endswith("Left out, as events affect them: east-west-0.")


def test_nothing_changed_tells_the_first_of_many() -> None:
    found = nothing_changed([(float(number), f"change {number}") for number in range(30)])
    assert "change 7, seen at 7 s; and 22 more." in found.sentence
    assert "change 8" not in found.sentence
