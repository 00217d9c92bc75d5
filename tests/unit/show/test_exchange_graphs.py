"""Graph files as their producers write them: every attribute is in the topology or in the notes.

The samples are written anew after what each program's writer does: networkx 2.8 and 3.x (`readwrite/graphml.py`,
`gml.py`), igraph 0.5 to 1.0 (C core), Gephi 0.9 and 0.10 (exporters for GraphML and GML), yEd 3 (y:ShapeNode), the
Topology Zoo's data set of 2012, TopoHub, OSMnx 1, and Shadow 1 (GraphML) and 3 (its "Network Graph Specification").
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import networkx
import pytest
import yaml

from testbed.errors import BadInput
from testbed.show.exchange import ImportDefaults, export_graphml, import_topology
from testbed.show.exchange.graph_attributes import great_circle_km
from testbed.spec.errors import ConfigError
from testbed.spec.topology import TopologySpec, load_topology

SHIPPED = Path(__file__).parents[3] / "topologies"
GIVEN = ImportDefaults(rate_bps=1e9, delay_s=1e-3)
BERLIN, MUNICH, HAMBURG = (52.52, 13.405), (48.137, 11.575), (53.55, 9.99)
FIBRE_S_PER_KM = 4.9e-6


def imported(path: Path, text: str, given: ImportDefaults = GIVEN) -> tuple[TopologySpec, list[str]]:
    """Return the topology and the notes of a file with this text."""
    path.write_text(text)
    topology, notes = import_topology(path, given)
    return load_topology(yaml.safe_load(topology)), notes


def ways(spec: TopologySpec) -> list[tuple[Any, ...]]:
    """Return each link's ends, and rate, delay, jitter and loss of both of its directions."""
    return [
        (
            link.a,
            link.b,
            *((way.rate_bps, way.delay_s, way.jitter_s, way.loss) for _, _, way in link.directions),
        )
        for link in spec.resolve().wan
    ]


# --- directions


@pytest.mark.parametrize("ending", ["graphml", "gml"])
def test_edges_there_and_back_become_one_link_with_two_directions(ending: str, tmp_path: Path) -> None:
    """As networkx writes a MultiDiGraph, where only the first of two parallel edges has one back."""
    graph = networkx.MultiDiGraph()
    graph.add_edge("a", "b", capacity="10 Gbps", delay_ms=4.0)
    graph.add_edge("b", "a", capacity="1 Gbps", delay_ms=5.0)
    graph.add_edge("a", "b", capacity="2 Gbps", delay_ms=6.0)
    path = tmp_path / f"net.{ending}"
    (networkx.write_graphml if ending == "graphml" else networkx.write_gml)(graph, path)
    spec, notes = imported(path, path.read_text())
    assert ways(spec) == [
        ("a", "b", (10e9, 4e-3, 0, 0), (1e9, 5e-3, 0, 0)),
        ("a", "b", (2e9, 6e-3, 0, 0), (2e9, 6e-3, 0, 0)),
    ]
    (note,) = notes
    assert re.fullmatch(
        r"assumed: 1 directed edge without one back, such as edge \S+ to \S+: both directions get the same settings",
        note,
    )


def test_an_edge_may_be_directed_in_an_undirected_graph(tmp_path: Path) -> None:
    """GraphML allows mixed graphs, which networkx refuses."""
    text = graphml(
        Sample(
            nodes=[{"id": "a"}, {"id": "b"}],
            edges=[
                {"source": "a", "target": "b", "delay_ms": "2"},
                {"source": "b", "target": "a", "delay_ms": "3"},
            ],
        )
    ).replace("<edge ", '<edge directed="true" ')
    spec, notes = imported(tmp_path / "net.graphml", text)
    assert [(there[1], back[1]) for _, _, there, back in ways(spec)] == [(2e-3, 3e-3)]
    assert notes == []


def test_edges_there_and_back_that_say_nothing_are_one_link(tmp_path: Path) -> None:
    spec, notes = imported(
        tmp_path / "net.gml",
        "graph [ directed 1 node [ id 1 ] node [ id 2 ] edge [ source 1 target 2 ] edge [ source 2 target 1 ] ]",
    )
    assert ([link.planes for link in spec.wan], notes) == ([1], [])


# --- units and plausibility


def zoo_like(length: float, **more: Any) -> str:
    berlin, munich = ({"Latitude": place[0], "Longitude": place[1]} for place in (BERLIN, MUNICH))
    nodes = [{"id": 0, "label": "berlin", **berlin}, {"id": 1, "label": "munich", **munich}]
    return gml(Sample(nodes=nodes, edges=[{"source": 0, "target": 1, "length": length, **more}]))


def test_a_length_in_degrees_is_not_taken_for_kilometres(tmp_path: Path) -> None:
    away_km = great_circle_km(BERLIN, MUNICH)
    assert away_km == pytest.approx(504, abs=1)
    spec, notes = imported(tmp_path / "net.gml", zoo_like(4.75))
    assert ways(spec)[0][2][1] == pytest.approx(away_km * FIBRE_S_PER_KM, abs=1e-6)
    assert notes == [
        "left out: length of 1 edge (4.75): neither km nor m fit it (4.75 where 504 km are between places), "
        "--unit length=km would say one; the great circle stands"
    ]
    _, notes = imported(tmp_path / "net.gml", zoo_like(4.75), ImportDefaults(1e9, units={"length": "km"}))
    assert notes == [
        "left out: length of 1 edge (4.75): impossible: shorter than the great circle between "
        "its ends; the great circle stands"
    ]


@pytest.mark.parametrize(
    ("length", "given", "km", "notes"),
    [
        (600, GIVEN, 600, []),
        (600_000, GIVEN, 600, ["assumed: length of 1 edge is in m"]),
        (373, ImportDefaults(1e9, units={"length": "mi"}), 600.284, []),
    ],
)
def test_the_unit_of_lengths_is_the_one_that_fits_the_places(
    length: float, given: ImportDefaults, km: float, notes: list[str], tmp_path: Path
) -> None:
    spec, got = imported(tmp_path / "net.gml", zoo_like(length), given)
    assert ways(spec)[0][2][1] == pytest.approx(km * FIBRE_S_PER_KM, rel=1e-5)
    assert got == notes


def test_no_signal_is_faster_than_light(tmp_path: Path) -> None:
    """1.7 ms is what light needs in vacuum from Berlin to Munich; a radio link may have 1.75 ms, but none 1 ms."""
    spec, notes = imported(tmp_path / "net.gml", zoo_like(600, latency="1.75 ms"))
    assert (ways(spec)[0][2][1], notes) == (1.75e-3, ["left out: length of 1 edge (600): latency stands"])
    spec, notes = imported(tmp_path / "net.gml", zoo_like(600, latency="1 ms"))
    assert ways(spec)[0][2][1] == pytest.approx(600 * FIBRE_S_PER_KM)
    assert notes == [
        "left out: latency of 1 edge (1 ms): impossible: shorter than the great circle between "
        "its ends; length stands"
    ]


@pytest.mark.parametrize(
    ("name", "value", "rate_bps"),
    [
        ("capacity", "10 Gbit/s", 10e9),
        ("bandwidth", "100Mbps", 100e6),
        ("bandwidth", "2 Mibit", 2 * 2**20),
        ("capacity_gbps", 40, 40e9),
        ("Capacity (Mbps)", "155", 155e6),
        ("bandwidthMbps", 155, 155e6),
        ("LinkSpeedRaw", "10000000000.0", 10e9),
        ("rate", "1 GB/s", 8e9),
        ("capacity", 10, None),
        ("capacity", "OC-48", None),
        ("capacity", "10 GB", None),
        ("LinkSpeedRaw", 0, None),
    ],
)
def test_a_rate_has_a_unit_or_is_left_out(
    name: str, value: Any, rate_bps: float | None, tmp_path: Path
) -> None:
    edge = {"source": "a", "target": "b", "delay_ms": 1, name: value}
    sample = Sample(nodes=[{"id": "a"}, {"id": "b"}], edges=[edge])
    spec, notes = imported(tmp_path / "net.graphml", graphml(sample))
    assert ways(spec)[0][2][0] == (rate_bps or 1e9)
    if rate_bps:
        assert notes == []
    else:
        (note,) = notes
        assert note.startswith(f"left out: {name} of 1 edge ({value}): ")
        assert note.endswith("; --rate stands")


def test_a_unit_can_be_given_for_any_attribute(tmp_path: Path) -> None:
    edge = {"source": "a", "target": "b", "weight": 7, "load": 25}
    text = graphml(Sample(nodes=[{"id": "a"}, {"id": "b"}], edges=[edge]))
    spec, notes = imported(
        tmp_path / "net.graphml", text, ImportDefaults(1e9, units={"weight": "ms", "load": "MiB/s"})
    )
    assert ways(spec)[0][2][:2] == (25 * 8 * 2**20, 7e-3)
    assert notes == []
    with pytest.raises(BadInput, match="--unit latency: got latency, expected one of load, weight"):
        imported(tmp_path / "net.graphml", text, ImportDefaults(1e9, units={"latency": "ms"}))
    with pytest.raises(BadInput, match="--unit weight=parsec: got parsec, expected a unit"):
        imported(tmp_path / "net.graphml", text, ImportDefaults(1e9, units={"weight": "parsec"}))


def test_what_could_not_be_used_is_said_where_something_is_missing(tmp_path: Path) -> None:
    text = graphml(
        Sample(nodes=[{"id": "a"}, {"id": "b"}], edges=[{"source": "a", "target": "b", "latency": 7}])
    )
    with pytest.raises(
        BadInput, match=r"got no delay, expected one, or --delay(.|\n)*--unit latency=ms would say one"
    ):
        imported(tmp_path / "net.graphml", text, ImportDefaults(1e9))


# --- identities


@pytest.mark.parametrize("ending", ["graphml", "gml"])
def test_two_nodes_with_one_id_are_an_error_that_names_both(ending: str, tmp_path: Path) -> None:
    sample = Sample(nodes=[{"id": "1"}, {"id": "2"}, {"id": "1", "label": "again"}])
    text = {"graphml": graphml, "gml": gml}[ending](sample)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.search(r'id[= ]"1"', line)]
    where = tmp_path / f"net.{ending}"
    lines = [line - (ending == "gml") for line in lines]  # of the bracket that opens it
    expected = f"{where}:{lines[1]}: got a node 1, expected another id: {where}:{lines[0]} has it"
    with pytest.raises(BadInput, match=re.escape(expected)):
        imported(where, text)


@pytest.mark.parametrize("ending", ["graphml", "gml"])
def test_an_edge_ends_at_nodes_of_the_file(ending: str, tmp_path: Path) -> None:
    sample = Sample(nodes=[{"id": "1"}, {"id": "2"}], edges=[{"source": "1", "target": "3"}])
    with pytest.raises(BadInput, match=rf"net\.{ending}:\d+: got an edge of 3, expected a node of this file"):
        imported(tmp_path / f"net.{ending}", {"graphml": graphml, "gml": gml}[ending](sample))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("graph [ node [ id 1 ]", ":1: got a list that does not end"),
        ("graph [\n node [ id 1\n label ] ]", ":3: got label"),
        ('graph [\n label "open ]', ":2: got a text without its closing quote"),
        ("graph [ node [ label 1 ] ]", ":1: id: got 0 of them"),
        ("node [ id 1 ]", ": got no graph"),
    ],
)
def test_gml_that_is_broken_is_refused_by_line(text: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(f"net.gml{where}")):
        imported(tmp_path / "net.gml", text)


def test_a_changed_number_of_hosts_counts_more_than_what_an_export_noted(tmp_path: Path) -> None:
    path = tmp_path / "net.graphml"
    export_graphml(load_topology(SHIPPED / "two-buildings.yaml"), path)
    text = re.sub(r"(<data key=\"\w+\">)4(</data>)", r"\g<1>3\2", path.read_text(), count=1)
    spec, notes = imported(path, text)
    assert sorted(building.hosts for building in spec.buildings.values()) == [3, 4]
    (note,) = notes
    assert note.startswith("left out: testbed of 1 node (")
    assert note.endswith(": hosts or nic_rate were changed since and take precedence")


# --- producers


SHADOW_3 = """graph [
  directed 1
  node [
    id 0
    label "node at 192.0.2.1"
    host_bandwidth_down "100 Mbit"
    host_bandwidth_up "100 Mbit"
  ]
  node [
    id 1
    lat 48.137
    lon 11.575
    host_bandwidth_down "1 Gbit"
    host_bandwidth_up "20 Mibit"
  ]
  edge [
    source 0
    target 0
    latency "1 ms"
    packet_loss 0.0
  ]
  edge [
    source 0
    target 1
    label "path from 0 to 1"
    latency "5425 us"
    jitter "200 us"
    packet_loss 0.01
  ]
  edge [
    source 1
    target 0
    latency "8320 us"
    packet_loss 0.02
  ]
]
"""


def test_shadow_3_says_latency_loss_and_bandwidth_with_units(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path / "net.gml", SHADOW_3)
    assert ways(spec) == [("nodeat192021", "n1", (1e9, 5.425e-3, 0.2e-3, 0.01), (1e9, 8.32e-3, 0.0, 0.02))]
    assert [building.nic and building.nic.rate_bps for building in spec.buildings.values()] == [
        100e6,
        20 * 2**20,
    ]
    assert notes == [
        "left out: lat of 1 node (48.137)",
        "left out: lon of 1 node (11.575)",
        "left out: host_bandwidth_down of 1 node (1 Gbit): host_bandwidth_up stands",
        "left out: latency of 1 edge (1 ms)",
        "left out: packet_loss of 1 edge (0.0)",
        "left out: label of 1 edge (path from 0 to 1)",
        "left out: 1 link from a node to itself: node at 192.0.2.1",
    ]


SHADOW_1 = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="packetloss" attr.type="double" for="edge" id="d2" />
  <key attr.name="latency" attr.type="double" for="edge" id="d1" />
  <key attr.name="bandwidthup" attr.type="int" for="node" id="d0" />
  <graph edgedefault="undirected">
    <node id="poi-1"><data key="d0">10240</data></node>
    <node id="poi-2"><data key="d0">10240</data></node>
    <edge source="poi-1" target="poi-2"><data key="d1">50.0</data><data key="d2">0.05</data></edge>
  </graph>
</graphml>"""


def test_shadow_1_says_no_units_so_that_they_are_given(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path / "net.xml", SHADOW_1)
    assert ways(spec)[0][2] == (1e9, 1e-3, 0.0, 0.05)
    assert notes == [
        "left out: bandwidthup of 2 nodes (10240)",
        "left out: latency of 1 edge (50.0): a number without a unit, --unit latency=ms would say one; --delay stands",
    ]
    units = {"latency": "ms", "bandwidthup": "KiB/s"}
    spec, notes = imported(tmp_path / "net.xml", SHADOW_1, ImportDefaults(1e9, units=units))
    assert (ways(spec)[0][2][1], notes) == (50e-3, [])
    assert {building.nic and building.nic.rate_bps for building in spec.buildings.values()} == {
        10240 * 1024 * 8
    }


ZOO_2012 = """graph [
  DateObtained "22/10/10"
  Network "Tiny"
  label "Tiny"
  node [
    id 0
    label "Berlin"
    Country "Germany"
    Longitude 13.405
    Internal 1
    Latitude 52.52
  ]
  node [
    id 1
    label "Munich"
    Country "Germany"
    Longitude 11.575
    Internal 1
    Latitude 48.137
  ]
  edge [
    source 0
    target 1
    LinkSpeed "10"
    LinkLabel "10Gbps"
    LinkSpeedUnits "G"
    LinkSpeedRaw 10000000000.0
    id "e1"
  ]
  edge [
    source 0
    target 1
    LinkSpeed "10"
    LinkSpeedUnits "G"
    LinkSpeedRaw 10000000000.0
    id "e2"
  ]
]
"""


def test_parallel_edges_of_the_topology_zoo_need_no_multigraph(tmp_path: Path) -> None:
    """A third of its GML files have parallel edges without `multigraph 1`, for which networkx refuses them."""
    spec, notes = imported(tmp_path / "Tiny.gml", ZOO_2012)
    (link,) = spec.wan
    assert (link.planes, link.rate_bps) == (2, 10e9)
    assert link.delay_s == pytest.approx(504 * FIBRE_S_PER_KM, rel=2e-3)
    assert notes == [
        "left out: of the graph: DateObtained, Network",
        "left out: Country of 2 nodes (Germany)",
        "left out: Internal of 2 nodes (1)",
    ]
    with pytest.raises(networkx.NetworkXError, match="is duplicated"):
        networkx.read_gml(tmp_path / "Tiny.gml", label="id")


IGRAPH_GML = """Creator "igraph version 0.10.12 Sat Mar  1 12:00:00 2025"
Version 1
graph
[
  directed 0
  node
  [
    id 0
    name "Berlin"
    lat 52.52
    lon 13.405
  ]
  node
  [
    id 1
    name "&quot;M&#252;nchen&quot;"
    lat 48.137
    lon 11.575
  ]
  edge
  [
    source 1
    target 0
    delayms 4
    weight 2
  ]
]
"""
IGRAPH_GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<!-- Created by igraph -->
  <key id="v_name" for="node" attr.name="name" attr.type="string"/>
  <key id="e_delay_ms" for="edge" attr.name="delay_ms" attr.type="double"/>
  <key id="e_weight" for="edge" attr.name="weight" attr.type="double"/>
  <graph id="G" edgedefault="undirected">
    <node id="n0">
      <data key="v_name">Berlin</data>
    </node>
    <node id="n1">
      <data key="v_name">"M\u00fcnchen"</data>
    </node>
    <edge source="n0" target="n1">
      <data key="e_delay_ms">4</data>
      <data key="e_weight">2</data>
    </edge>
  </graph>
</graphml>
"""


@pytest.mark.parametrize(
    ("ending", "text"), [("gml", IGRAPH_GML), ("graphml", IGRAPH_GRAPHML), ("gml", IGRAPH_GRAPHML)]
)
def test_igraph_has_names_for_labels_and_drops_underscores_in_gml(
    ending: str, text: str, tmp_path: Path
) -> None:
    """Its write_graphml is used with names that end in .gml, too: the content counts."""
    spec, notes = imported(tmp_path / f"net.{ending}", text)
    assert set(spec.buildings) == {"berlin", "mnchen"}
    assert [there[:2] for _, _, there, _ in ways(spec)] == [(1e9, 4e-3)]
    assert "left out: weight of 1 edge (2)" in notes


GEPHI_GRAPHML = """<?xml version="1.0" encoding="UTF-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="label" attr.type="string" for="node" id="label"/>
<key attr.name="Edge Label" attr.type="string" for="edge" id="edgelabel"/>
<key attr.name="weight" attr.type="double" for="edge" id="weight"/>
<key attr.name="r" attr.type="int" for="node" id="r"/>
<key attr.name="x" attr.type="float" for="node" id="x"/>
<key attr.name="latitude" attr.type="double" for="node" id="latitude"/>
<key attr.name="longitude" attr.type="double" for="node" id="longitude"/>
<graph edgedefault="directed">
<node id="0"><data key="label">Berlin</data><data key="latitude">52.52</data><data key="longitude">13.405</data>
<data key="r">153</data><data key="x">-202.02621</data></node>
<node id="1"><data key="label">Munich</data><data key="latitude">48.137</data><data key="longitude">11.575</data>
<data key="r">153</data><data key="x">100.5</data></node>
<edge id="0" source="0" target="1"><data key="weight">1.0</data></edge>
</graph></graphml>"""
GEPHI_GML = """graph
[
  Creator "Gephi"
  directed 0
  node
  [
    id 0
    label "Berlin"
    graphics
    [
      x -202.02621
      fill "#000000"
    ]
    latitude "52.52"
    longitude "13.405"
  ]
  node
  [
    id 1
    label "Munich"
    latitude "48.137"
    longitude "11.575"
  ]
  edge
  [
    id 0
    source 0
    target 1
    value 1.0
  ]
]
"""


@pytest.mark.parametrize(
    ("ending", "text", "notes"),
    [
        (
            "graphml",
            GEPHI_GRAPHML,
            [
                "left out: r of 2 nodes (153)",
                "left out: x of 2 nodes (-202.02621, 100.5)",
                "left out: weight of 1 edge (1.0)",
                "assumed: 1 directed edge without one back, such as edge 0 to 1: both directions get the same settings",
            ],
        ),
        (
            "gml",
            GEPHI_GML,
            [
                "left out: of the graph: Creator",
                "left out: graphics.x of 1 node (-202.02621)",
                "left out: graphics.fill of 1 node (#000000)",
                "left out: value of 1 edge (1.0)",
            ],
        ),
    ],
)
def test_gephi_writes_places_in_small_letters(
    ending: str, text: str, notes: list[str], tmp_path: Path
) -> None:
    spec, got = imported(tmp_path / f"net.{ending}", text)
    assert ways(spec)[0][2][1] == pytest.approx(great_circle_km(BERLIN, MUNICH) * FIBRE_S_PER_KM, abs=1e-6)
    assert got == notes


YED = """<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <key attr.name="Description" attr.type="string" for="graph" id="d0"/>
  <key for="port" id="d1" yfiles.type="portgraphics"/>
  <key attr.name="description" attr.type="string" for="node" id="d5"/>
  <key for="node" id="d6" yfiles.type="nodegraphics"/>
  <key attr.name="delay" attr.type="string" for="edge" id="d8"><default>3 ms</default></key>
  <key for="edge" id="d9" yfiles.type="edgegraphics"/>
  <graph edgedefault="directed" id="G">
    <data key="d0" xml:space="preserve"/>
    <node id="n0">
      <data key="d5"/>
      <data key="d6"><y:ShapeNode><y:Geometry height="30.0" width="30.0" x="1.0" y="2.0"/>
        <y:NodeLabel alignment="center">East<y:LabelModel/></y:NodeLabel></y:ShapeNode></data>
    </node>
    <node id="n1" yfiles.foldertype="group">
      <data key="d6"><y:ProxyAutoBoundsNode><y:Realizers active="0"><y:GroupNode>
        <y:NodeLabel>Campus</y:NodeLabel></y:GroupNode></y:Realizers></y:ProxyAutoBoundsNode></data>
      <graph edgedefault="directed" id="n1:">
        <node id="n1::n0">
          <data key="d6"><y:ShapeNode><y:NodeLabel>West</y:NodeLabel></y:ShapeNode></data>
          <port name="p1"/>
        </node>
      </graph>
    </node>
    <edge id="e0" source="n0" target="n1::n0" sourceport="p1">
      <data key="d9"><y:PolyLineEdge><y:EdgeLabel>10 Gbps</y:EdgeLabel></y:PolyLineEdge></data>
    </edge>
    <hyperedge><endpoint node="n0"/><endpoint node="n1"/></hyperedge>
  </graph>
</graphml>"""


def test_yed_has_labels_in_its_drawing_and_groups_of_nodes(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path / "net.graphml", YED)
    assert ways(spec) == [("east", "west", (10e9, 3e-3, 0, 0), (10e9, 3e-3, 0, 0))]
    assert notes == [
        "left out: port (line 22)",
        "left out: hyperedge (line 29)",
        "left out: nodegraphics of 3 nodes (a drawing)",
        "left out: sourceport of 1 edge (p1)",
        "left out: edgegraphics of 1 edge (a drawing)",
        "left out: nodes without a link to the largest part: Campus",
        "assumed: 1 directed edge without one back, such as edge n0 to n1::n0: both directions get the same settings",
    ]


IGRAPH_05 = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="name" for="node" attr.name="name" attr.type="string"/>
  <key id="latency" for="edge"><default>1000</default></key>
  <graph id="G" edgedefault="undirected">
    <node id="n0"><data key="name">a</data></node>
    <node id="n1"><data key="name">b</data></node>
    <edge source="n0" target="n1"/>
  </graph>
</graphml>"""


def test_a_key_may_have_no_name_but_its_id_and_a_default(tmp_path: Path) -> None:
    """As igraph 0.5 has ids without a prefix, and files written by hand have keys without attr.name."""
    spec, notes = imported(tmp_path / "net.graphml", IGRAPH_05, ImportDefaults(1e9, units={"latency": "us"}))
    assert (ways(spec)[0][:3], notes) == (("a", "b", (1e9, 1e-3, 0, 0)), [])


OSMNX = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="graph" attr.name="crs" attr.type="string"/><key id="d1" for="node" attr.name="y" attr.type="string"/>
<key id="d2" for="node" attr.name="x" attr.type="string"/>
<key id="d3" for="edge" attr.name="length" attr.type="string"/>
<graph edgedefault="directed"><data key="d0">epsg:4326</data>
<node id="1"><data key="d1">52.52</data><data key="d2">13.405</data></node>
<node id="2"><data key="d1">52.53</data><data key="d2">13.405</data></node>
<node id="3"><data key="d1">52.60</data><data key="d2">13.405</data></node>
<edge source="1" target="2" id="0"><data key="d3">1205.5</data></edge>
<edge source="2" target="1" id="0"><data key="d3">1205.5</data></edge>
<edge source="2" target="3" id="0"><data key="d3">8000.0</data></edge>
<edge source="3" target="2" id="0"><data key="d3">8000.0</data></edge>
</graph></graphml>"""


def test_osmnx_has_lengths_in_metres_and_places_as_x_and_y(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path / "net.graphml", OSMNX)
    assert [link.delay_s for link in spec.wan] == pytest.approx([5.907e-6, 39.2e-6])
    assert notes == ["assumed: length of 4 edges is in m"]


def test_topohub_has_lengths_in_kilometres_and_lists_of_figures(tmp_path: Path) -> None:
    nodes = "".join(
        f'node [ id {number} label "{number}" lon {place[1]} lat {place[0]} ]\n'
        for number, place in enumerate((BERLIN, MUNICH, HAMBURG))
    )
    edges = "edge [ source 0 target 1 dist 504.19 ]\nedge [ source 0 target 2 dist 255.35 ]"
    text = f'graph [ name "tiny" directed 0 stats [ nodes 3 links 2 ]\n{nodes}{edges} ]'
    spec, notes = imported(tmp_path / "net.gml", text)
    assert [link.delay_s for link in spec.wan] == pytest.approx(
        [504.19 * FIBRE_S_PER_KM, 255.35 * FIBRE_S_PER_KM]
    )
    assert notes == ["left out: of the graph: stats"]


# --- every attribute


@dataclass
class Sample:
    """A graph to write in either format: attributes of the graph, of its nodes and of its edges."""

    graph: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)


def gml(sample: Sample) -> str:
    """Return the sample as GML."""

    def written(values: Mapping[str, Any]) -> Iterator[str]:
        for name, value in values.items():
            yield f'    {name} "{value}"' if isinstance(value, str) else f"    {name} {value}"

    lines = ["graph [", *written(sample.graph)]
    for kind, elements in (("node", sample.nodes), ("edge", sample.edges)):
        for element in elements:
            lines += [f"  {kind} [", *written(element), "  ]"]
    return "\n".join([*lines, "]", ""])


def graphml(sample: Sample) -> str:
    """Return the sample as GraphML."""
    keys: dict[tuple[str, str], str] = {}

    def data(kind: str, values: Mapping[str, Any], structure: tuple[str, ...]) -> str:
        found = ""
        for name, value in values.items():
            if name not in structure:
                key = keys.setdefault((kind, name), f"d{len(keys)}")
                found += f'<data key="{key}">{escape(str(value))}</data>'
        return found

    graph = {name: value for name, value in sample.graph.items() if name != "directed"}
    body = data("graph", graph, ())
    for node in sample.nodes:
        body += f"\n<node id={quoteattr(str(node['id']))}>{data('node', node, ('id',))}</node>"
    for edge in sample.edges:
        ends = f"source={quoteattr(str(edge['source']))} target={quoteattr(str(edge['target']))}"
        body += f"\n<edge {ends}>{data('edge', edge, ('source', 'target'))}</edge>"
    declared = "".join(
        f'\n<key id="{key}" for="{kind}" attr.name={quoteattr(name)} attr.type="string"/>'
        for (kind, name), key in keys.items()
    )
    default = "directed" if sample.graph.get("directed") else "undirected"
    namespace = "http://graphml.graphdrawing.org/xmlns"
    return (
        f'<graphml xmlns="{namespace}">{declared}\n<graph edgedefault="{default}">{body}\n</graph></graphml>'
    )


EVERYTHING = Sample(
    graph={"label": "everything", "mtu": 9000, "Country": "Germany", "directed": 1},
    nodes=[
        {
            "id": 0,
            "label": "Frankfurt am Main",
            "Latitude": 50.11,
            "Longitude": 8.68,
            "hosts": 2,
            "nic_rate": 1e10,
        },
        {"id": 1, "name": "Berlin", "lat": 52.52, "lon": 13.405, "Country": "Germany", "hyperedge": 1},
        {"id": 2, "label": "Hamburg", "host_bandwidth_up": "1 Gbit", "host_bandwidth_down": "2 Gbit"},
        {"id": 3, "label": "Munich", "latitude": 48.137, "longitude": 11.575, "altitude": 520},
        {"id": 4, "label": "alone", "Internal": 0},
    ],
    edges=[
        {
            "source": 0,
            "target": 1,
            "LinkSpeedRaw": 1e10,
            "latency": "5 ms",
            "packet_loss": 0.01,
            "jitter": "1 ms",
        },
        {
            "source": 1,
            "target": 0,
            "LinkSpeed": 10,
            "LinkSpeedUnits": "G",
            "length": 600,
            "LinkLabel": "dark",
        },
        {"source": 1, "target": 2, "capacity_gbps": 4, "delay_ms": 3, "loss": "1 %", "planes": 2, "cost": 10},
        {"source": 2, "target": 3, "bandwidth": "4 Gbps", "distance_km": 900, "weight": 1, "order": 7},
        {"source": 3, "target": 0, "capacity": 7, "latency": 9, "testbed": "{}", "type": "fibre"},
        {"source": 3, "target": 2, "bandwidth": "4 Gbps", "distance_km": 800, "LinkType": "OC-48"},
        {"source": 3, "target": 3, "latency": "1 ms"},
    ],
)
STRUCTURE = ("id", "source", "target")


def outcome(path: Path, text: str) -> tuple[str, list[str]]:
    """Return what an import says, be it an error."""
    path.write_text(text)
    try:
        return import_topology(path, GIVEN)
    except (BadInput, ConfigError) as error:
        return str(error), []


@pytest.mark.parametrize("ending", ["graphml", "gml"])
def test_no_attribute_changes_without_a_change_of_the_topology_or_the_notes(
    ending: str, tmp_path: Path
) -> None:
    """Take away, change or add any one attribute; a new value may also be of one that the notes leave out by name."""
    write = {"graphml": graphml, "gml": gml}[ending]
    path = tmp_path / f"net.{ending}"
    before = outcome(path, write(EVERYTHING))
    assert before[0].startswith("# From net")
    unnoticed: list[str] = []
    places = [("graph", 0)]
    places += [("nodes", number) for number in range(len(EVERYTHING.nodes))]
    places += [("edges", number) for number in range(len(EVERYTHING.edges))]
    tried = 0
    for kind, number in places:
        for name in (*_of(EVERYTHING, kind, number), "novel"):
            if name in STRUCTURE:
                continue
            for change in ("taken away", "changed"):
                sample = copy.deepcopy(EVERYTHING)
                values = _of(sample, kind, number)
                if change == "taken away":
                    values.pop(name, None)
                else:
                    value = values.get(name, 1)
                    values[name] = (
                        0
                        if name == "directed"
                        else 3 * value + 1
                        if not isinstance(value, str)
                        else f"{value}x"
                    )
                if values == _of(EVERYTHING, kind, number):
                    continue
                tried += 1
                after = outcome(path, write(sample))
                named = [note for note in before[1] if re.search(rf"[ ,]{re.escape(name)}\b", note)]
                if after == before and not (change == "changed" and named):
                    unnoticed.append(f"{name} of {kind}[{number}] {change}")
    assert unnoticed == []
    assert tried > 90


def _of(sample: Sample, kind: str, number: int) -> dict[str, Any]:
    found = sample.graph if kind == "graph" else getattr(sample, kind)[number]
    assert isinstance(found, dict)
    return found


def test_strict_makes_what_is_left_out_an_error(tmp_path: Path) -> None:
    path = tmp_path / "net.gml"
    path.write_text(SHADOW_3)
    with pytest.raises(
        BadInput, match="--strict: got 7 things left out or assumed, expected none\nleft out: lat"
    ):
        import_topology(path, GIVEN, strict=True)
    plain = gml(Sample(nodes=[{"id": 1}, {"id": 2}], edges=[{"source": 1, "target": 2, "delay_ms": 1}]))
    path.write_text(plain)
    assert import_topology(path, GIVEN, strict=True)[1] == []
