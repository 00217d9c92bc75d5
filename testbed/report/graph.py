"""A topology drawn before anything is built: as SVG, for Graphviz, for Mermaid."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import Literal

from testbed.config import Topology
from testbed.report.figures import rate_text, time_text
from testbed.report.svg import standalone
from testbed.report.topology import network_drawing
from testbed.scale import UNSCALED

Form = Literal["svg", "dot", "mermaid"]
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.building-wall { fill: #f5f6f8; stroke: #aab2bd; stroke-width: 1.5; }
.building-name { font-size: 15px; font-weight: 650; }
.host-box, .wan-label-box { fill: #ffffff; stroke: #d9dde3; } line { stroke: #0072b2; } polygon { fill: #0072b2; }
"""


def drawn(topology: Topology, form: Form) -> str:
    """The text of a drawing. Figures are those of the topology as it was resolved."""
    return {"svg": _svg, "dot": _dot, "mermaid": _mermaid}[form](topology)


def _svg(topology: Topology) -> str:
    hosts = [{"name": host.name, "building": host.building, "ip": host.ip} for host in topology.hosts]
    wan = [{**asdict(link), "name": link.name} for link in topology.wan]
    drawing = network_drawing(hosts, wan, UNSCALED, {}, f"Buildings and WAN links of {topology.name}")
    return standalone(drawing.root, STYLE)


def _dot(topology: Topology) -> str:
    """Buildings as clusters; a link is an edge between their switches, `plane` counts parallel ones."""
    lines = [f"graph {_quoted(topology.name)} {{", "  compound=true; node [shape=box];"]
    for building in _buildings(topology):
        lines.append(f"  subgraph {_quoted('cluster_' + building)} {{ label={_quoted(building)};")
        lines.append(f"    {_quoted(building)} [shape=oval];")
        for host in _hosts(topology, building):
            lines.append(f"    {_quoted(host)} -- {_quoted(building)};")
        lines.append("  }")
    for a, b, label in _links(topology):
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [label={_quoted(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(topology: Topology) -> str:
    """As a flow chart, which GitHub draws in Markdown. Names of buildings and hosts are letters, digits and dashes."""
    lines = ["flowchart LR"]
    for building in _buildings(topology):
        lines.append(f"  subgraph {building}")
        lines += [f'    {host}["{escape(host)}"]' for host in _hosts(topology, building)]
        lines.append("  end")
    lines += [f'  {a} <-- "{label}" --> {b}' for a, b, label in _links(topology)]
    return "\n".join(lines) + "\n"


def _buildings(topology: Topology) -> list[str]:
    return list(dict.fromkeys(host.building for host in topology.hosts))


def _hosts(topology: Topology, building: str) -> list[str]:
    return [host.name for host in topology.hosts if host.building == building]


def _links(topology: Topology) -> list[tuple[str, str, str]]:
    """(one end, other end, rate and delay); both directions where they differ."""
    found = []
    for link in topology.wan:
        texts = [f"{rate_text(one.rate_bps)}, {time_text(one.delay_s)}" for one in (link.a_to_b, link.b_to_a)]
        found.append((link.a, link.b, " / ".join(dict.fromkeys(texts))))
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
