"""The alpha-beta model of one collective, and how far a measured one may be from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.fidelity.timing_invariants import model_agreement
from testbed.net.paths.alpha_beta import RingStep, calibration_bytes, ring_all_reduce_s, ring_steps
from testbed.net.paths.hops import Paths
from testbed.spec.topology import TopologySpec, load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"


def test_a_ring_of_equal_steps_takes_what_the_textbook_says() -> None:
    steps = [RingStep(delay_s=1e-3, beta_s=1e-8)] * 4
    # 2 (n - 1) rounds, each alpha + s beta + what its two ends cost
    assert ring_all_reduce_s(steps, 1e5, 1e-4) == pytest.approx(6 * (1e-3 + 1e-3 + 1e-4))


def test_a_slow_step_sets_the_pace_and_long_ones_add_up() -> None:
    quick, slow, far = RingStep(0.0, 1e-9), RingStep(0.0, 1e-7), RingStep(1.0, 1e-9)
    assert ring_all_reduce_s([quick, quick, quick, slow], 1e6, 0.0) == pytest.approx(6 * 0.1, rel=0.05)
    # a message crosses the far step once in four rounds, and so does the sum that it is part of
    assert ring_all_reduce_s([quick, quick, quick, far], 1e6, 0.0) == pytest.approx(2.0, rel=0.05)


def test_one_that_is_broken_off_has_the_rounds_that_it_has() -> None:
    quick, far = RingStep(0.0, 1e-9), RingStep(1.0, 1e-9)
    assert ring_all_reduce_s([quick, quick, quick, far], 1e6, 0.0, rounds=3) == pytest.approx(1.0, rel=0.05)
    assert ring_all_reduce_s([quick] * 4, 1e6, 0.0, rounds=6) == ring_all_reduce_s([quick] * 4, 1e6, 0.0)


def test_announced_messages_wait_for_their_notes() -> None:
    """A note is on its way as long as a message, and sent once the round before the last has come."""
    far = [RingStep(1.0, 0.0)] * 4
    assert ring_all_reduce_s(far, 1e6, 0.0) == pytest.approx(6.0)
    # first the note; then what it costs makes two rounds half a second longer, but for the first two
    assert ring_all_reduce_s(far, 1e6, 0.0, note_s=0.5) == pytest.approx(1.5 + 6.0 + 2 * 0.5)
    lone = [RingStep(0.0, 0.0, back_s=0.0)] * 3 + [RingStep(1.0, 0.0)]
    assert ring_all_reduce_s(lone, 1e6, 0.0) == pytest.approx(2.0)
    # across the long step rounds 0 and 1 are told by 1 s, 2 and 3 as round 0 has come and its note is back, and so on
    assert ring_all_reduce_s(lone, 1e6, 0.0, note_s=0.0) == pytest.approx(6.0)


def test_pieces_of_a_message_travel_while_others_are_sent() -> None:
    near, far = RingStep(0.0, 1e-6), RingStep(10.0, 1e-6)
    ring = [near, far, near, far]
    # six rounds of 10 s, of which a message crosses three far steps one after the other
    assert ring_all_reduce_s(ring, 10e6, 0.0) == pytest.approx(6 * 10 + 3 * 10)
    # in four pieces the cards never stand still: what is left is the way of the last piece
    assert ring_all_reduce_s(ring, 10e6, 0.0, pieces=4) == pytest.approx(6 * 10 + 10, rel=0.05)
    assert ring_all_reduce_s(ring, 10e6, 0.0, pieces=2) == pytest.approx(6 * 10 + 10, rel=0.05)


def test_steps_of_two_buildings_are_cards_within_and_a_plane_between() -> None:
    topology = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
    steps = ring_steps(Paths(topology), topology.hosts)
    headers = 9014 / (9014 - 66)
    assert [step.delay_s for step in steps] == [0, 0, 0, 2.5e-3, 0, 0, 0, 2.5e-3]
    # a frame's time at the cards beside the slowest hop
    card_s = 9014 * 8 / 400e9
    assert steps[0].alpha_s(1e6) == pytest.approx(card_s, rel=0.1)
    assert steps[3].alpha_s(100 * 8948) == pytest.approx(2.5e-3 + 2 * card_s, rel=1e-9)
    wan_s = 9014 * 8 / 285.7e9
    acknowledged_s = 66 / 9014 * (2 * card_s + wan_s)
    assert steps[3].round_trip_s(8948) == pytest.approx(5e-3 + 2 * card_s + wan_s + acknowledged_s)
    assert steps[0].beta_s == pytest.approx(8 / 400e9 * headers)
    assert steps[3].beta_s == pytest.approx(8 / 285.7e9 * headers)


def test_steps_in_a_ring_of_buildings_go_by_the_building_between() -> None:
    topology = load_topology(TOPOLOGIES / "ring-of-four.yaml").resolve()
    opposite = [topology.building("north").hosts[0], topology.building("south").hosts[0]]
    assert ring_steps(Paths(topology), opposite)[0].delay_s == pytest.approx(2 * 80 * 4.9e-6)


def test_steps_through_a_transit_site_have_the_delays_of_both_links() -> None:
    topology = load_topology(TOPOLOGIES / "backbone.yaml").resolve()
    there, _ = ring_steps(Paths(topology), [topology.host("east1"), topology.host("west1")])
    assert there.delay_s == pytest.approx(3e-3 + 4e-3)
    held_s = 2 * 9014 * 8 / 400e9 + 2 * 9014 * 8 / 100e9  # a full frame: two cards, two links
    assert there.alpha_s(8948) + there.beta_s * 8948 == pytest.approx(7e-3 + held_s, rel=1e-3)


def test_steps_within_a_building_of_tiers() -> None:
    topology = load_topology(TOPOLOGIES / "training-region.yaml").resolve()
    steps = ring_steps(Paths(topology), topology.hosts)
    rack, zone, building, region = (steps[index].delay_s for index in (0, 3, 7, 15))
    assert [round(value * 1e6, 6) for value in (rack, zone, building, region)] == [10, 70, 150, 300]


def held(
    other: str, link_engine: str = "netem", switching: str = "store_and_forward", **tiers: str
) -> list[bool]:
    """Of the hops from east1 to another host, which hold frames."""
    nic = {"rate": "100 Gbit/s"}
    clos = {"zones": 2, "leaves": 2, "spines": 2, "leaf": {"oversubscription": "1:2"}, **tiers}
    document = {
        "name": "tiers",
        "buildings": {
            "east": {"hosts": 8, "nic": nic, "clos": clos, "switching": switching},
            "west": {"hosts": 1, "nic": nic},
        },
        "wan": [{"a": "east", "b": "west", "rate": "100 Gbit/s", "delay": "1 ms"}],
    }
    topology = TopologySpec.model_validate(document).resolve()
    hosts = {host.name: host for host in topology.hosts}
    return [hop.held for hop in Paths(topology, link_engine).between(hosts["east1"], hosts[other])]


def test_every_hop_holds_frames_unless_its_switch_cuts_through() -> None:
    # east1 and 2 share a leaf, 3 has another one of the zone, 5 is in the other zone
    assert held("east2") == [True] * 2
    assert held("east3") == [True] * 4
    assert held("east5") == [True] * 6
    assert held("west1") == [True] * 5
    cut = "cut_through"
    # uplinks of a leaf have half of a card's rate here, those of a spine a card's: a slower port's frame is held
    assert held("east2", switching=cut) == [False, True]
    assert held("east3", switching=cut) == [False, True, True, True]
    assert held("east5", switching=cut) == [False, True, False, False, True, True]
    assert held("east5", core_switching=cut) == [True, True, False, True, True, True]
    # what leaves the building is stored everywhere
    assert held("west1", switching=cut) == [True] * 5


def test_the_userspace_engine_holds_frames_only_on_links_that_it_carries() -> None:
    assert held("east3", "userspace") == [False] * 4
    assert held("west1", "userspace") == [False, False, False, True, False]


def test_the_message_is_long_enough_to_be_measured_and_no_longer_than_the_workloads() -> None:
    steps = [RingStep(0.0, 1e-7)] * 3
    assert calibration_bytes(steps, 9000, 1e9) == round(0.1 / 4 / 1e-7)
    assert calibration_bytes(steps, 9000, 100_000) == 100_000
    assert calibration_bytes(steps, 9000, 100) == 36_000


@pytest.mark.parametrize(
    ("measured_s", "exact", "ok"),
    [
        (0.100, True, True),
        (0.115, True, False),
        (0.115, False, True),
        (0.085, False, True),
        (0.079, False, False),
        (0.17, False, False),
    ],
)
def test_agreement_is_closer_under_the_virtual_clock(measured_s: float, exact: bool, ok: bool) -> None:
    found = model_agreement(measured_s, 0.1, exact)
    assert found.ok is ok
    assert found.severity == "caution"
    assert model_agreement(None, 0.0, exact).ok is None


def test_on_links_that_lose_packets_it_may_take_longer_but_not_less() -> None:
    slow = model_agreement(10.0, 1.0, exact=True, lossy=True)
    assert slow.ok
    assert "links lose packets" in slow.sentence
    assert model_agreement(0.5, 1.0, exact=True, lossy=True).ok is False
