"""Transit sites: buildings without hosts, which only forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.spec.errors import ConfigError
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology

BACKBONE = """\
name: backbone
buildings:
  east: {hosts: 2, nic: {rate: 10 Gbit/s}}
  north: {hosts: 0, region: far}
  west: {hosts: 1, nic: {rate: 10 Gbit/s}}
wan:
  - {a: east, b: north, rate: 8 Gbit/s, delay: 5 ms}
  - {a: north, b: west, rate: 8 Gbit/s, delay: 3 ms}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The topology above as a file."""
    file = tmp_path / "topology.yaml"
    file.write_text(BACKBONE)
    return file


def test_a_building_without_hosts_is_an_edge_switch_alone(written: Path) -> None:
    topology = load_topology(written).resolve()
    north = topology.building("north")
    assert (north.is_transit, north.switches, north.core, north.region) == (
        True,
        ("north-edge",),
        "north-edge",
        "far",
    )
    assert [host.name for host in topology.hosts] == ["east1", "east2", "west1"]
    assert [building.name for building in topology.populated] == ["east", "west"]
    assert topology.host("west1").ip == "10.2.0.1"
    expanded = load_topology(yaml.safe_load(BACKBONE)).to_data()
    assert expanded["buildings"]["north"] == {"hosts": 0, "region": "far"}
    assert load_topology(expanded).resolve() == topology


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "hosts: 0, region: far",
            "hosts: 0, nic: {rate: 1 Gbit/s}, switching: cut_through",
            "4: buildings.north.nic: got nic with hosts: 0, expected hosts, or no nic: a transit site only forwards\n"
            "FILE:4: buildings.north.switching: got switching with hosts: 0",
        ),
        (
            "hosts: 1, nic: {rate: 10 Gbit/s}",
            "hosts: 1",
            "5: buildings.west.nic: got nothing, expected the network card of each host, or hosts: 0 for a transit",
        ),
        (
            "  - {a: north, b: west, rate: 8 Gbit/s, delay: 3 ms}",
            "",
            "6: wan: got no path from east to west, expected WAN links that connect all buildings",
        ),
    ],
)
def test_what_a_transit_site_cannot_have_is_named(old: str, new: str, words: str, written: Path) -> None:
    written.write_text(BACKBONE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_topology(written)
    assert f"{written}:" + words.replace("FILE", str(written)) in str(caught.value)


def test_a_topology_without_any_host_is_refused() -> None:
    buildings = {"east": {"hosts": 0}, "west": {"hosts": 0}}
    wan = [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}]
    with pytest.raises(
        ConfigError, match="buildings: got no host in any building, expected at least one buil"
    ):
        load_topology({"name": "empty", "buildings": buildings, "wan": wan})


def test_no_rank_is_put_on_a_transit_site(written: Path) -> None:
    scenario = {
        "name": "one",
        "topology": str(written),
        "workload": {"model": "llama3-8b", "accelerator": "h100"},
    }
    made = load_scenario(scenario)
    assert [host.name for host in made.rank_hosts(made.topology.resolve())] == ["east1", "east2", "west1"]
    with pytest.raises(
        ConfigError, match="ranks: got 4, expected at most 3, one on each host of the topology"
    ):
        load_scenario({**scenario, "ranks": 4})
    with pytest.raises(
        ConfigError, match=r"hosts\.1: got 'north1', expected a host: .*; north is a transit site"
    ):
        load_scenario({**scenario, "hosts": ["east1", "north1"]})
    shared = load_scenario({**scenario, "ranks": 2, "allocation": {"per_building": 1}})
    assert [host.name for host in shared.rank_hosts(shared.topology.resolve())] == ["east1", "west1"]
