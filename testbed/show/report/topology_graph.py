"""Drawings of a topology before anything is built: SVG, Graphviz or Mermaid."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import Literal

from testbed.show.report.svg import svg_document
from testbed.show.report.topology import network_drawing
from testbed.spec.scale import UNSCALED
from testbed.spec.topology import Topology
from testbed.spec.units import rate_text, time_text

Form = Literal["svg", "dot", "mermaid"]
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.building-wall { fill: #f5f6f8; stroke: #aab2bd; stroke-width: 1.5; }
.transit .building-wall { stroke-dasharray: 5 3; }
.building-name { font-size: 15px; font-weight: 650; }
.host-box, .wan-label-box { fill: #ffffff; stroke: #d9dde3; } line { stroke: #0072b2; } polygon { fill: #0072b2; }
"""


def draw_topology(topology: Topology, form: Form) -> str:
    """Return a drawing as text, with the resolved topology's figures."""
    return {"svg": _svg, "dot": _dot, "mermaid": _mermaid}[form](topology)


def _svg(topology: Topology) -> str:
    hosts = [{"name": host.name, "building": host.building, "ip": host.ip} for host in topology.hosts]
    wan = [{**asdict(link), "name": link.name} for link in topology.wan]
    fabric = {"buildings": [building.name for building in topology.buildings], "hosts": hosts, "wan": wan}
    drawing = network_drawing(fabric, UNSCALED, {}, f"Buildings and WAN links of {topology.name}")
    return svg_document(drawing.root, STYLE)


def _dot(topology: Topology) -> str:
    """Draw buildings as clusters and transit sites as dashed ovals; a link is an edge between their switches."""
    lines = [f"graph {_quoted(topology.name)} {{", "  compound=true; node [shape=box];"]
    for building in topology.buildings:
        switch = _quoted(building.name)
        if building.is_transit:
            lines.append(f"  {switch} [shape=oval, style=dashed];")
            continue
        lines.append(f"  subgraph {_quoted('cluster_' + building.name)} {{ label={switch};")
        lines.append(f"    {switch} [shape=oval];")
        lines += [f"    {_quoted(host.name)} -- {switch};" for host in building.hosts]
        lines.append("  }")
    for a, b, label in _links(topology):
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [label={_quoted(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(topology: Topology) -> str:
    """Draw a flow chart, which GitHub renders in Markdown; names have only letters, digits and dashes."""
    lines = ["flowchart LR"]
    for building in topology.buildings:
        if building.is_transit:
            lines.append(f'  {building.name}(["{escape(building.name)}"])')
            continue
        lines.append(f"  subgraph {building.name}")
        lines += [f'    {host.name}["{escape(host.name)}"]' for host in building.hosts]
        lines.append("  end")
    lines += [f'  {a} <-- "{label}" --> {b}' for a, b, label in _links(topology)]
    return "\n".join(lines) + "\n"


def _links(topology: Topology) -> list[tuple[str, str, str]]:
    """Return (one end, other end, rate and delay) of each link; both directions if they differ."""
    found = []
    for link in topology.wan:
        texts = [f"{rate_text(one.rate_bps)}, {time_text(one.delay_s)}" for one in (link.a_to_b, link.b_to_a)]
        found.append((link.a, link.b, " / ".join(dict.fromkeys(texts))))
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
