"""Topologies for other programs, and from them: what they say is what comes, what they do not say is asked for."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections import defaultdict
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import networkx
import pytest
import yaml

from testbed.errors import BadInput
from testbed.show.exchange import (
    ImportDefaults,
    export_containerlab,
    export_graphml,
    export_mininet,
    import_topology,
    parse_hosts,
)
from testbed.show.exchange.graph_attributes import great_circle_km
from testbed.show.exchange.topology_export import build_routed_network
from testbed.spec.errors import ConfigError
from testbed.spec.topology import TopologySpec, load_topology

SHIPPED = Path(__file__).parents[3] / "topologies"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def back(path: Path, given: ImportDefaults | None = None, strict: bool = False) -> TopologySpec:
    text, _ = import_topology(path, given or ImportDefaults(), strict=strict)
    return load_topology(yaml.safe_load(text))


@pytest.mark.parametrize("name", NAMES)
def test_graphml_comes_back_without_a_difference(name: str, tmp_path: Path) -> None:
    spec = load_topology(SHIPPED / f"{name}.yaml")
    export_graphml(spec, tmp_path / "net.graphml")
    assert back(tmp_path / "net.graphml", strict=True) == spec


def test_others_find_links_in_it_as_the_topology_zoo_has_them(tmp_path: Path) -> None:
    export_graphml(load_topology(SHIPPED / "two-buildings.yaml"), tmp_path / "net.graphml")
    graph = networkx.read_graphml(tmp_path / "net.graphml")
    assert dict(graph.nodes(data="hosts")) == {"east": 4, "west": 4}
    ((_, _, link),) = graph.edges(data=True)
    assert (link["LinkSpeedRaw"], link["delay_s"], link["planes"]) == (285.7e9, 2.5e-3, 2)


def test_what_somebody_changed_in_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "net.graphml"
    export_graphml(load_topology(SHIPPED / "two-buildings.yaml"), path)
    path.write_text(path.read_text().replace("285700000000.0", "100000000000.0"))
    (link,) = back(path).wan
    assert (link.rate_bps, link.delay_s) == (100e9, 2.5e-3)


ZOO = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d1" />
<key attr.name="LinkSpeed" attr.type="string" for="edge" id="d2" />
<key attr.name="LinkSpeedUnits" attr.type="string" for="edge" id="d3" />
<key attr.name="label" attr.type="string" for="node" id="d4" />
<key attr.name="Latitude" attr.type="double" for="node" id="d5" />
<key attr.name="Longitude" attr.type="double" for="node" id="d6" />
<graph edgedefault="undirected">
<node id="0"><data key="d4">San Francisco, CA</data>
<data key="d5">37.77493</data><data key="d6">-122.41942</data></node>
<node id="1"><data key="d4">San Francisco Bay</data><data key="d5">37.3</data><data key="d6">-122.0</data></node>
<node id="2"><data key="d4">New York</data><data key="d5">40.71427</data><data key="d6">-74.00597</data></node>
<node id="3"><data key="d4">Paris</data></node>
<node id="4"><data key="d4">1st Street</data></node>
<edge source="0" target="2"><data key="d1">10000000000.0</data></edge>
<edge source="2" target="0"><data key="d1">10000000000.0</data></edge>
<edge source="0" target="1"><data key="d2">2.5</data><data key="d3">G</data></edge>
<edge source="1" target="1" />
<edge source="2" target="3"><data key="d2">155</data><data key="d3">M</data></edge>
</graph></graphml>"""


def test_a_network_of_the_topology_zoo_becomes_buildings_and_links(tmp_path: Path) -> None:
    (tmp_path / "Tiny.graphml").write_text(ZOO)
    text, notes = import_topology(
        tmp_path / "Tiny.graphml", ImportDefaults(delay_s=0.03, hosts=2, nic_bps=100e9)
    )
    spec = load_topology(yaml.safe_load(text))
    assert spec.name == "tiny"
    assert list(spec.buildings) == ["sanfrancisco", "sanfrancisx2", "newyork", "paris"]
    assert {(one.hosts, one.nic and one.nic.rate_bps) for one in spec.buildings.values()} == {(2, 100e9)}
    found: dict[Any, tuple[Any, ...]] = {
        (link.a, link.b): (link.rate_bps, link.planes, link.delay_s) for link in spec.wan
    }
    coast = great_circle_km((37.77493, -122.41942), (40.71427, -74.00597))
    assert coast == pytest.approx(4130, rel=0.01)  # as maps have it
    wanted: dict[Any, tuple[Any, ...]] = {
        ("sanfrancisco", "newyork"): (10e9, 2, pytest.approx(coast * 4.9e-6, abs=1e-6)),
        ("sanfrancisco", "sanfrancisx2"): (2.5e9, 1, pytest.approx(64.5 * 4.9e-6, rel=0.02)),
        ("newyork", "paris"): (155e6, 1, 0.03),
    }
    assert found == wanted
    assert notes == [
        "left out: 1 link from a node to itself: San Francisco Bay",
        "left out: nodes without a link to the largest part: 1st Street",
    ]


def test_what_a_file_does_not_say_has_to_be_given(tmp_path: Path) -> None:
    (tmp_path / "Tiny.graphml").write_text(ZOO)
    with pytest.raises(
        BadInput, match="New York to Paris: got no delay, expected one, or --delay for all that have none"
    ):
        import_topology(tmp_path / "Tiny.graphml", ImportDefaults())
    (tmp_path / "net.gml").write_text(
        "graph [ node [ id 1 ] node [ id 2 ] edge [ source 1 target 2 length 100 ] ]"
    )
    with pytest.raises(BadInput, match="got no rate"):
        import_topology(tmp_path / "net.gml", ImportDefaults())
    with pytest.raises(BadInput, match=r"got no delay, expected .*\nlength: a number without a unit"):
        import_topology(tmp_path / "net.gml", ImportDefaults(rate_bps=1e9))
    (link,) = back(tmp_path / "net.gml", ImportDefaults(rate_bps=1e9, units={"length": "km"})).wan
    assert (link.a, link.b) == ("n1", "n2")
    assert link.delay_s == pytest.approx(0.49e-3)


@pytest.mark.parametrize(
    ("name", "content"), [("a.graphml", "<no"), ("a.gml", "x"), ("a.yml", "a: 1"), ("a.txt", "")]
)
def test_what_is_no_network_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=re.escape(name)):
        import_topology(tmp_path / name, ImportDefaults())


def test_hosts_given_by_name_leave_the_others_as_transit_sites(tmp_path: Path) -> None:
    (tmp_path / "Tiny.graphml").write_text(ZOO)

    def hosts_of(text: str) -> dict[str, int]:
        made, _ = import_topology(
            tmp_path / "Tiny.graphml", ImportDefaults(delay_s=0.03, hosts=parse_hosts(text))
        )
        return {name: one.hosts for name, one in load_topology(yaml.safe_load(made)).buildings.items()}

    none = dict.fromkeys(["sanfrancisco", "sanfrancisx2", "newyork", "paris"], 0)
    assert hosts_of("San Francisco Bay=8, paris=2") == {**none, "sanfrancisx2": 8, "paris": 2}
    assert hosts_of("3") == dict.fromkeys(none, 3)
    with pytest.raises(BadInput, match=r"--hosts: got pariss, expected a building: .*did you mean paris"):
        hosts_of("newyork=1,pariss=2")
    with pytest.raises(ConfigError, match="no host in any building"):
        hosts_of("0")
    some = ZOO.replace('<node id="3">', '<node id="3"><data key="hosts">2</data>')
    (tmp_path / "Tiny.graphml").write_text(some)
    made, notes = import_topology(tmp_path / "Tiny.graphml", ImportDefaults(delay_s=0.03))
    assert [one["hosts"] for one in yaml.safe_load(made)["buildings"].values()] == [0, 0, 0, 2]
    without = "sanfrancisco, sanfrancisx2, newyork"
    assert f"assumed: no hosts in {without}, since the file does not say; set them with --hosts" in notes


def test_hosts_given_by_name_count_more_than_the_files_own(tmp_path: Path) -> None:
    spec = load_topology(SHIPPED / "backbone.yaml")
    export_graphml(spec, path := tmp_path / "net.graphml")
    made, _ = import_topology(path, ImportDefaults(hosts={"north": 2, "west": 0}))
    found = load_topology(yaml.safe_load(made)).buildings
    assert {name: one.hosts for name, one in found.items()} == {"east": 4, "north": 2, "west": 0, "south": 0}
    assert found["east"] == spec.buildings["east"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("many", "got 'many', expected a number, or numbers by building, such as"),
        ("east=", "got 'east=', expected a number"),
        ("east=2,-1", "got 'east=2,-1', expected a number"),
        ("east=2,east=3", "got east twice, expected each building once"),
    ],
)
def test_hosts_that_cannot_be_counted_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"--hosts: {said}"):
        parse_hosts(text)


def test_a_network_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    networkx.write_graphml(networkx.path_graph(201), tmp_path / "long.graphml")
    with pytest.raises(ConfigError, match="at most 200"):
        import_topology(tmp_path / "long.graphml", ImportDefaults(rate_bps=1e9, delay_s=1e-3))


# --- containerlab


@pytest.mark.parametrize("name", NAMES)
def test_containerlab_comes_back_with_its_rates_and_delays(name: str, tmp_path: Path) -> None:
    spec = load_topology(SHIPPED / f"{name}.yaml")
    (path, netem), _ = export_containerlab(spec, tmp_path)
    assert netem.read_text().startswith("#!/bin/sh\n")
    found = back(path)
    assert list(found.buildings) == list(spec.buildings)
    for key, building in spec.buildings.items():
        there = found.buildings[key]
        assert there.hosts == building.hosts
        if there.nic is None or building.nic is None:
            assert there.nic is building.nic
            continue
        assert there.nic.delay_s == building.nic.delay_s
        assert there.nic.rate_bps == pytest.approx(building.nic.rate_bps, rel=1e-4)
    for one, other in zip(spec.resolve().wan, found.resolve().wan, strict=True):
        assert (one.a, one.b, one.plane) == (other.a, other.b, other.plane)
        for way, again in zip(one.directions, other.directions, strict=True):
            wanted = (way[2].rate_bps, way[2].delay_s, way[2].jitter_s, way[2].mean_loss)
            got = (again[2].rate_bps, again[2].delay_s, again[2].jitter_s, again[2].mean_loss)
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)


SPINE = {
    "name": "lab",
    "topology": {
        "kinds": {"linux": {"image": "alpine"}},
        "nodes": {
            "spine": {"kind": "nokia_srlinux"},
            "leaf1": {"kind": "nokia_srlinux"},
            "leaf2": {"kind": "nokia_srlinux"},
            "client": {"kind": "linux"},
            "router": {"kind": "vr-vmx"},
        },
        "links": [
            {"endpoints": ["leaf1:e1-49", "spine:e1-1"]},
            {"endpoints": ["spine:e1-2", "leaf2:e1-49"]},
            {
                "type": "veth",
                "endpoints": [
                    {"node": "client", "interface": "eth1"},
                    {"node": "leaf1", "interface": "e1-1"},
                ],
            },
            {"endpoints": ["leaf2:e1-1", "router:eth1"]},
            {"endpoints": ["leaf2:mgmt1", "host:srl-mgmt"]},
        ],
    },
}
LINES = """
# comment
sudo containerlab tools netem set -n clab-lab-leaf1 -i e1-49 --delay 5ms --jitter 1ms --loss 0.5 --rate 100000
containerlab tools netem set --node=clab-lab-spine --interface e1-1 --delay 1.5s
clab tools netem set -n client -i eth1 --rate 10000
"""


def test_a_lab_of_somebody_else_becomes_buildings_and_links(tmp_path: Path) -> None:
    path = tmp_path / "lab.clab.yml"
    path.write_text(yaml.safe_dump(SPINE))
    (tmp_path / "impair.sh").write_text(LINES)
    given = ImportDefaults(rate_bps=1e9, delay_s=0.001, nic_bps=10e9)
    text, _ = import_topology(path, given, tmp_path / "impair.sh")
    spec = load_topology(yaml.safe_load(text))
    assert {name: (one.hosts, one.nic and one.nic.rate_bps) for name, one in spec.buildings.items()} == {
        "spine": (0, None),
        "leaf1": (1, 10e6),  # its client's
        "leaf2": (0, None),
        "router": (0, None),
    }
    up, down = next(link for link in spec.resolve().wan if link.a == "leaf1").directions
    assert (up[2].rate_bps, up[2].delay_s, up[2].jitter_s, up[2].loss) == (100e6, 0.005, 0.001, 0.005)
    assert (down[2].rate_bps, down[2].delay_s, down[2].jitter_s, down[2].loss) == (1e9, 1.5, 0, 0)
    assert [(link.a, link.b) for link in spec.wan] == [
        ("leaf1", "spine"),
        ("spine", "leaf2"),
        ("leaf2", "router"),
    ]
    with pytest.raises(BadInput, match=r"gone\.sh"):
        import_topology(path, given, tmp_path / "gone.sh")


# --- routes, for containerlab and Mininet


@pytest.mark.parametrize("name", ["three-buildings", "ring-of-four", "two-buildings-4-planes", "backbone"])
def test_every_host_finds_every_other_one_by_its_routes(name: str) -> None:
    """Followed hop by hop through the commands, as kernels would: by the longest prefix."""
    made = build_routed_network(load_topology(SHIPPED / f"{name}.yaml"), 1.0)
    ends = {
        (port.node, port.number): (other.node, other.number)
        for cable in made.cables
        for port, other in (cable, cable[::-1])
    }
    routes: dict[str, dict[Any, list[str]]] = defaultdict(dict)
    address: dict[str, tuple[str, int]] = {}
    for node, commands in made.commands.items():
        for command in commands:
            words = command.split()
            if words[:3] == ["ip", "addr", "add"] and words[-1] != "lo":
                address[words[3].split("/")[0]] = (node, int(words[-1][1:-1]))
            elif words[:2] == ["ip", "route"]:
                routes[node][ip_network(words[3])] = words[4:]
    for source in made.hosts:
        for target in made.hosts.values():
            here, hops = source, 0
            while address[target][0] != here:
                fitting = [net for net in routes[here] if ip_address(target) in net]
                way = routes[here][max(fitting, key=lambda net: net.prefixlen)]
                if "dev" in way:
                    here = ends[here, int(way[-1][1:-1])][0]
                elif way[1] == "169.254.1.1":
                    here = ends[here, 1][0]
                else:
                    assert all(address[hop][0] == address[way[2]][0] for hop in way[2::3])
                    here = address[way[2]][0]
                hops += 1
                assert hops < 6


def test_the_script_for_mininet_asks_it_for_the_topologys_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carried out against a Mininet that writes down what it is asked for."""
    links: list[Any] = []
    said: list[Any] = []

    class Fake:
        def __init__(self, **_: object) -> None:
            pass

        def addHost(self, name: str, **_: object) -> None:
            said.append(name)

        def addLink(self, a: str, b: str, **params: Any) -> None:
            links.append((a, b, params["params1"], params["params2"]))

        def get(self, name: str) -> Any:
            interface = SimpleNamespace(ip=None, prefixLen=None)
            return SimpleNamespace(cmd=lambda command: self.say(name, command), defaultIntf=lambda: interface)

        def say(self, name: str, command: str) -> str:
            said.append((name, command))
            return ""

        def build(self) -> None: ...

        start = stop = build

        def ping(self, hosts: object) -> float:
            return 0.0

    parts = {"cli": "CLI", "link": "TCLink", "log": "setLogLevel", "net": "Mininet", "node": "Node"}
    for module, name in parts.items():
        fake = ModuleType(f"mininet.{module}")
        setattr(fake, name, Fake if name == "Mininet" else lambda *_: None)
        monkeypatch.setitem(sys.modules, f"mininet.{module}", fake)
    notes = export_mininet(load_topology(SHIPPED / "three-buildings.yaml"), tmp_path / "net.py")
    assert notes == ["packets of more than 1500 bytes"]
    monkeypatch.setattr(sys, "argv", ["net.py", "--ping"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "net.py"), run_name="__main__")
    assert ended.value.code == 0
    assert len(links) == 6 + 3
    assert ("coast", "north", 40.0, "6000us", 20.0, "12000us") in [
        (a, b, there["bw"], there["delay"], here["bw"], here["delay"]) for a, b, there, here in links
    ]
    assert ("north1", "ip addr add 10.0.0.1/32 dev c0a") in said
    assert not [entry for entry in said if "{" in str(entry)]


def test_rates_are_divided_so_that_others_carry_them(tmp_path: Path) -> None:
    spec = load_topology(SHIPPED / "two-buildings.yaml")
    notes = export_mininet(spec, tmp_path / "net.py")
    assert "rates, which are divided by 400" in notes
    network = json.loads((tmp_path / "net.py").read_text().split('"""')[3])
    rates = {port["rate_bps"] for cable in network["cables"] for port in cable}
    assert rates == {1_000_000_000, 714_250_000}
    export_mininet(spec, tmp_path / "net.py", size_scale=4000)
    network = json.loads((tmp_path / "net.py").read_text().split('"""')[3])
    assert max(port["rate_bps"] for cable in network["cables"] for port in cable) == 100_000_000


@pytest.mark.parametrize("name", ["none.graphml", "none.clab.yml"])
def test_a_file_that_is_not_there_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{name}: got no such file, expected a network"):
        import_topology(tmp_path / name, ImportDefaults())
