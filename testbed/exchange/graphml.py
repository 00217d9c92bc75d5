"""Topologies as GraphML, and from it: the form of the Topology Zoo, with its names of attributes.

What a topology file says more stands in an attribute `testbed` of nodes and edges, and counts when it is read again as
long as the others are as they were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.config import TopologySpec
from testbed.config.units import FIBRE_S_PER_KM
from testbed.errors import BadInput
from testbed.exchange.found import Edge, Found, Node, Way

OWN = "testbed"
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LENGTHS = ("length", "Length", "dist", "distance")
"""Names by which files have an edge's length in kilometres."""


def export_graphml(spec: TopologySpec, path: Path) -> list[str]:
    """To a file; what is left out of it, in words. BadInput where networkx is not installed."""
    networkx = _networkx()
    graph = networkx.MultiGraph(label=spec.name, mtu=spec.mtu)
    data = spec.to_data()
    for name, building in data["buildings"].items():
        rate = spec.buildings[name].nic.rate_bps
        graph.add_node(
            name, label=name, hosts=spec.buildings[name].hosts, nic_rate=rate, **{OWN: json.dumps(building)}
        )
    for order, (link, own) in enumerate(zip(spec.wan, data["wan"], strict=True)):
        values = _standard(link.a_to_b.rate_bps or link.rate_bps, link.a_to_b.delay_s, link.delay_s)
        graph.add_edge(link.a, link.b, order=order, planes=link.planes, **values, **{OWN: json.dumps(own)})
    networkx.write_graphml(graph, path)
    return []


def _standard(rate_bps: float | None, own_s: float | None, common_s: float | None) -> dict[str, Any]:
    delay_s = common_s if own_s is None else own_s
    return {"LinkSpeedRaw": float(rate_bps or 0), "delay_s": float(delay_s or 0)}


def read_graphml(path: Path) -> Found:
    """Of a GraphML or GML file. BadInput where it is none."""
    networkx = _networkx()
    read = networkx.read_gml if path.suffix == ".gml" else networkx.read_graphml
    options = {"label": "id"} if path.suffix == ".gml" else {}
    try:
        graph = read(path, **options)
    except Exception as error:  # networkx passes on what its parsers raise
        raise BadInput(where=str(path), got=f"{type(error).__name__}: {error}", expected="a graph") from None
    mtu = graph.graph.get("mtu")
    found = Found(path, name=str(graph.graph.get("label", "")), mtu=None if mtu is None else int(mtu))
    for key, values in graph.nodes(data=True):
        found.nodes[str(key)] = _node(str(key), values)
    for a, b, values in sorted(graph.edges(data=True), key=lambda edge: _number(edge[2].get("order")) or 0):
        way = Way(_rate_bps(values), _delay_s(values))
        found.edges.append(Edge(str(a), str(b), way, way, _own_link(values, way)))
    hyper = [node.label for node in found.nodes.values() if node.label.startswith("hyperedge")]
    if hyper:
        found.notes.append(f"hyperedges are nodes: {', '.join(hyper)}")
    return found


def _node(key: str, values: Mapping[str, Any]) -> Node:
    label = str(values.get("label") or key)
    place = None
    if "Latitude" in values and "Longitude" in values:
        place = float(values["Latitude"]), float(values["Longitude"])
    hosts = values.get("hosts")
    rate = values.get("nic_rate")
    return Node(
        label,
        None if hosts is None else int(hosts),
        None if rate is None else float(rate),
        place=place,
        own=_own(values),
    )


def _rate_bps(values: Mapping[str, Any]) -> float | None:
    if raw := _number(values.get("LinkSpeedRaw")):
        return raw
    speed = _number(values.get("LinkSpeed"))
    units = str(values.get("LinkSpeedUnits", "")).upper()
    return speed * _UNITS[units] if speed and units in _UNITS else None


def _delay_s(values: Mapping[str, Any]) -> float | None:
    for name, factor in (("delay_s", 1.0), ("delay_ms", 1e-3), *((one, FIBRE_S_PER_KM) for one in _LENGTHS)):
        if (value := _number(values.get(name))) is not None:
            return value * factor
    return None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _own(values: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        found = json.loads(values[OWN])
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _own_link(values: Mapping[str, Any], way: Way) -> dict[str, Any] | None:
    """Unless somebody changed rate or delay since."""
    from testbed.config.wan import WanSpec  # noqa: PLC0415

    if (own := _own(values)) is None:
        return None
    try:
        link = WanSpec.model_validate(own)
    except ValueError:
        return None
    standard = _standard(link.a_to_b.rate_bps or link.rate_bps, link.a_to_b.delay_s, link.delay_s)
    return own if standard == {"LinkSpeedRaw": way.rate_bps, "delay_s": way.delay_s} else None


def _networkx() -> Any:
    try:
        import networkx  # noqa: PLC0415
    except ImportError:
        raise BadInput(
            where="GraphML",
            got="no networkx here",
            expected="the extra `graphml`: pip install 'scale-across-testbed[graphml]'",
        ) from None
    return networkx
