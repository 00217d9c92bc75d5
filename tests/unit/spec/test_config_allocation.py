"""Hosts that a scheduler gives: counts per rack, zone and building, what others leave free, and in which order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.spec.buildings import Host
from testbed.spec.cluster_sharing import AllocationError, AllocationSpec, allocate, busy_hosts
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import Topology, TopologySpec

HALL = {"hosts": 12, "nic": {"rate": "400 Gbit/s"}, "clos": {"zones": 2, "leaves": 2, "spines": 1}}
REGION = {
    "name": "region",
    "buildings": {"hall": HALL, "barn": HALL, "shed": {"hosts": 4, "nic": {"rate": "400 Gbit/s"}}},
    "wan": [
        {"a": "hall", "b": "barn", "rate": "400 Gbit/s", "delay": "1 ms"},
        {"a": "barn", "b": "shed", "rate": "400 Gbit/s", "delay": "1 ms"},
    ],
}
TOPOLOGY = TopologySpec.model_validate(REGION).resolve()


def given_hosts(ranks: int, taken: tuple[str, ...] = (), seed: int = 0, **spec: Any) -> tuple[Host, ...]:
    return allocate(TOPOLOGY, AllocationSpec.model_validate(spec), ranks, taken, seed)


def names(ranks: int, taken: tuple[str, ...] = (), **spec: Any) -> list[str]:
    return [host.name for host in given_hosts(ranks, taken, **spec)]


def places(hosts: tuple[Host, ...], topology: Topology = TOPOLOGY) -> dict[str, Counter[Any]]:
    """How many hosts there are on each rack, zone and building that has any."""
    found: dict[str, Counter[Any]] = {"rack": Counter(), "zone": Counter(), "building": Counter()}
    for host in hosts:
        building = topology.building(host.building)
        leaf = (host.index - building.hosts[0].index) // building.hosts_per_leaf
        zone = leaf // building.clos.leaves if building.clos else 0
        found["rack"][host.building, leaf] += 1
        found["zone"][host.building, zone] += 1
        found["building"][host.building] += 1
    return found


def test_without_counts_ranks_fill_what_is_free_from_the_first_host_on() -> None:
    assert names(4) == ["hall1", "hall2", "hall3", "hall4"]
    assert names(3, taken=("hall1", "hall3")) == ["hall2", "hall4", "hall5"]
    assert len(given_hosts(28)) == 28


def test_counts_are_exact_where_any_rank_is() -> None:
    assert names(4, per_rack=2) == ["hall1", "hall2", "hall4", "hall5"]
    assert names(4, per_rack=2, per_zone=2) == ["hall1", "hall2", "hall7", "hall8"]
    assert names(4, per_rack=2, per_zone=2, per_building=2) == ["hall1", "hall2", "barn1", "barn2"]
    assert names(6, per_building=2) == ["hall1", "hall2", "barn1", "barn2", "shed1", "shed2"]


def test_racks_with_too_few_free_hosts_have_none() -> None:
    assert names(3, per_rack=3, taken=("hall2",)) == ["hall4", "hall5", "hall6"]
    # and so have zones and buildings that are short of such racks
    assert names(6, per_rack=3, per_zone=6, taken=("hall2",))[0] == "hall7"
    assert names(12, per_rack=3, per_building=12, taken=("hall2",))[0] == "barn1"


def test_scattered_ranks_go_round_the_racks() -> None:
    assert names(6, per_rack=2, order="scattered") == ["hall1", "hall4", "hall7", "hall2", "hall5", "hall8"]


def test_what_there_is_no_room_for_says_how_much_there_is() -> None:
    with pytest.raises(
        AllocationError, match=r"^got 12 ranks, 4 per_rack, expected at most 4: 0 of 28 hosts are taken"
    ):
        given_hosts(12, per_rack=4)  # the shed alone has racks of four
    with pytest.raises(AllocationError, match="got 29 ranks, expected at most 28"):
        given_hosts(29)


def test_others_have_so_many_hosts_or_racks_and_the_seed_says_which() -> None:
    hosts = AllocationSpec.model_validate({"busy": 0.5})
    racks = AllocationSpec.model_validate({"busy": 0.5, "busy_unit": "racks"})
    assert len(busy_hosts(TOPOLOGY, hosts, 1)) == 14
    assert busy_hosts(TOPOLOGY, hosts, 1) == busy_hosts(TOPOLOGY, hosts, 1) != busy_hosts(TOPOLOGY, hosts, 2)
    for seed in range(10):
        found = busy_hosts(TOPOLOGY, racks, seed)
        assert 12 <= len(found) <= 16
        sizes = places(tuple(found))["rack"]
        assert all(count == (4 if building == "shed" else 3) for (building, _), count in sizes.items())


COUNTS = [None, 1, 2, 3, 4, 6, 12]
"""Per rack, zone and building, those that go together."""
ASKED = [
    (rack, zone, building)
    for rack in COUNTS[:4]
    for zone in COUNTS[:6]
    for building in COUNTS
    if not list(AllocationSpec.model_construct(per_rack=rack, per_zone=zone, per_building=building).checks())
]


@given(
    st.sampled_from(ASKED),
    st.integers(1, 28),
    st.floats(0, 0.6),
    st.sampled_from(["hosts", "racks"]),
    st.sampled_from(["near", "scattered"]),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_given_is_as_was_asked_for(
    counts: tuple[int | None, ...], most: int, busy: float, unit: str, order: str, seed: int
) -> None:
    rack, zone, building = counts
    spec = AllocationSpec.model_construct(
        busy=busy, busy_unit=unit, order=order, per_rack=rack, per_zone=zone, per_building=building
    )
    ranks = next(number for number in range(most, most + 12) if spec.expected_ranks(number) is None)
    others = {host.name for host in busy_hosts(TOPOLOGY, spec, seed)}
    try:
        found = allocate(TOPOLOGY, spec, ranks, (), seed)
    except AllocationError:
        possible = not any(counts) and ranks <= 28 - len(others)
        assert not possible  # a count, or the hosts themselves, are in the way
        return
    assert len({host.name for host in found} - others) == ranks == len(found)
    for level, count in zip(("rack", "zone", "building"), counts, strict=True):
        if count is not None:
            assert set(places(found)[level].values()) == {count}
    if order == "near":
        assert [host.index for host in found] == sorted(host.index for host in found)


# ---- in a scenario


def scenario(**changes: Any) -> Any:
    return load_scenario(
        {
            "name": "placed",
            "topology": REGION,
            "workload": {"collectives": [{"collective": "all_gather", "size": "1 MB"}]},
            **changes,
        }
    )


def test_a_scenarios_ranks_are_on_the_hosts_that_they_are_given() -> None:
    made = scenario(ranks=4, allocation={"per_rack": 1, "per_building": 2})
    assert [host.name for host in made.rank_hosts(TOPOLOGY)] == ["hall1", "hall4", "barn1", "barn4"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ranks": 5, "allocation": {"per_rack": 2}},
            "ranks: got 5, expected a multiple of allocation's 2 ranks",
        ),
        (
            {"ranks": 28, "allocation": {"busy": 0.5}},
            "allocation: got 28 ranks, expected at most 14: 14 of 28",
        ),
        (
            {"ranks": 6, "allocation": {"per_rack": 2, "per_zone": 3}},
            "per_zone: got 3, expected a multiple of per_rack, 2",
        ),
        (
            {"ranks": 1, "hosts": ["hall1"], "allocation": {}},
            "got allocation with hosts, expected only one of the two",
        ),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scenario(**changes)
