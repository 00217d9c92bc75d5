"""Topologies for containerlab, and from it: a `clab.yml` with links; delays and rates as `tools netem set` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.config import TopologySpec
from testbed.config.units import parse_duration
from testbed.errors import BadInput
from testbed.exchange.found import Edge, Found, Node, Way
from testbed.exchange.routed import Port, Routed, fitting_scale, lost, routed, shape_of

IMAGE = "ghcr.io/nicolaka/netshoot:latest"  # has iproute2, ping and iperf3
ENDING = ".clab.yml"
NETEM_FILE = "netem.sh"
SCALE_LABEL, KIND_LABEL = "testbed-size-scale", "testbed-kind"
HOST, BUILDING = "host", "building"
MOST_BPS = 1e9
"""To which rates are divided: a port of a container on a laptop carries about that."""


def export_containerlab(
    spec: TopologySpec, folder: Path, size_scale: float | None = None
) -> tuple[list[Path], list[str]]:
    """Files, and what is left out of them. size_scale: None for what makes no rate larger than MOST_BPS."""
    folder.mkdir(parents=True, exist_ok=True)
    made = routed(spec, size_scale or fitting_scale(spec, MOST_BPS))
    nodes = {name: _node(made, name, HOST) for name in made.hosts}
    nodes |= {name: _node(made, name, BUILDING) for name in made.routers}
    links = [{"endpoints": [_end(cable.a), _end(cable.b)]} for cable in made.cables]
    defaults = {"kind": "linux", "image": IMAGE, "labels": {SCALE_LABEL: f"{made.size_scale!r}"}}
    document = {"name": made.name, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}
    path, netem = folder / f"{made.name}{ENDING}", folder / NETEM_FILE
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=120))
    netem.write_text("\n".join(_netem(made)) + "\n")
    netem.chmod(0o755)
    notes = list(lost(spec))
    if made.size_scale != 1:
        notes.append(f"rates, which are divided by {made.size_scale:g}")
    notes.append("queues, which hold as many packets as netem does by itself")
    return [path, netem], notes


def _node(made: Routed, name: str, kind: str) -> dict[str, Any]:
    ports = [port for cable in made.cables for port in (cable.a, cable.b) if port.node == name]
    interfaces = {port.number: f"eth{port.number}" for port in ports}
    commands = [
        re.sub(r"\{(\d+)\}", lambda found: interfaces[int(found[1])], command)
        for command in made.commands[name]
    ]
    mtu = [f"ip link set {interface} mtu {made.mtu}" for interface in interfaces.values()]
    return {"labels": {KIND_LABEL: kind}, "exec": [*mtu, *commands]}


def _end(port: Port) -> str:
    return f"{port.node}:eth{port.number}"


def _netem(made: Routed) -> Iterator[str]:
    yield "#!/bin/sh"
    yield f"# Delays, losses and rates of {made.name}'s interfaces, each of what it sends; after `containerlab deploy`."
    yield "set -eu"
    for cable in made.cables:
        for port in (cable.a, cable.b):
            shape = shape_of(port.shape)
            options = [f"--delay {shape['delay_us']}us", f"--rate {max(round(shape['rate_bps'] / 1e3), 1)}"]
            if shape["jitter_us"]:
                options.append(f"--jitter {shape['jitter_us']}us")
            if shape["loss_percent"]:
                options.append(f"--loss {shape['loss_percent']:.6g}")
            node, interface = f"clab-{made.name}-{port.node}", f"eth{port.number}"
            yield f"containerlab tools netem set -n {node} -i {interface} {' '.join(options)}"


# --- and back


def read_containerlab(path: Path, netem: Path | None = None) -> Found:
    """Of a topology file; netem: a script with `tools netem set` lines, by default netem.sh beside it, if there is one.

    Nodes with one link, to a node that has more, are its hosts if they are of kind linux; all others are buildings.
    BadInput for what is no topology file.
    """
    document = _document(path)
    nodes = document["topology"]["nodes"]
    ends = list(_links(path, document))
    settings = _settings(
        str(document["name"]), netem or path.with_name(NETEM_FILE), required=netem is not None
    )
    scale = _scale(document)
    degree = {name: sum(name in (a, b) for (a, _), (b, _) in ends) for name in nodes}
    hosts = {name: other for name, other in _lone(ends) if _is_host(document, name, degree, other)}
    found = Found(path, name=str(document["name"]))
    if hosts and len(hosts) == len(nodes):
        hosts = {}
    for name in nodes:
        if name not in hosts:
            own = [host for host, building in hosts.items() if building == name]
            cards = [_way(settings, host, _interface(ends, host), scale) for host in own]
            card = next((way for way in cards if way.rate_bps is not None), Way())
            found.nodes[name] = Node(name, len(own) or None, card.rate_bps, card.delay_s or 0.0)
    for (a, a_port), (b, b_port) in ends:
        if a not in hosts and b not in hosts:
            ways = _way(settings, a, a_port, scale), _way(settings, b, b_port, scale)
            found.edges.append(Edge(a, b, *ways))
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
        assert isinstance(document["topology"]["nodes"], dict)
        document.setdefault("name", path.name.removesuffix(".yml").removesuffix(".clab"))
    except (AssertionError, KeyError, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        expected = "a containerlab topology, with topology.nodes"
        raise BadInput(where=str(path), got=f"{type(error).__name__}: {error}", expected=expected) from None
    assert isinstance(document, dict)
    return document


End = tuple[str, str]
"""A node, and an interface of it."""


def _links(path: Path, document: Mapping[str, Any]) -> Iterator[tuple[End, End]]:
    """Those between two nodes of the file, in either form that there is."""
    nodes = document["topology"]["nodes"]
    for number, link in enumerate(document["topology"].get("links") or ()):
        ends = [_parsed(end) for end in link.get("endpoints") or ()]
        known = [end for end in ends if end is not None and end[0] in nodes]
        if len(ends) != 2 or None in ends:
            where = f"{path}: topology.links[{number}].endpoints"
            raise BadInput(where=where, got=str(link.get("endpoints")), expected='two, such as "node:eth1"')
        if len(known) == 2:  # others lead to the machine, or to its management network
            yield known[0], known[1]


def _parsed(end: Any) -> End | None:
    if isinstance(end, str) and ":" in end:
        node, _, interface = end.partition(":")
        return node, interface
    if isinstance(end, Mapping) and "node" in end:
        return str(end["node"]), str(end.get("interface", ""))
    return None


def _lone(ends: list[tuple[End, End]]) -> Iterator[tuple[str, str]]:
    """Nodes with one link, and where it leads."""
    others: dict[str, list[str]] = {}
    for (a, _), (b, _) in ends:
        others.setdefault(a, []).append(b)
        others.setdefault(b, []).append(a)
    for name, own in others.items():
        if len(own) == 1:
            yield name, own[0]


def _is_host(document: Mapping[str, Any], name: str, degree: Mapping[str, int], other: str) -> bool:
    topology = document["topology"]
    node = topology["nodes"][name] or {}
    label = (node.get("labels") or {}).get(KIND_LABEL)
    if label is not None:
        return bool(label == HOST)
    kind = node.get("kind") or (topology.get("defaults") or {}).get("kind")
    return kind == "linux" and degree[other] > 1


def _interface(ends: list[tuple[End, End]], node: str) -> str:
    return next(port for link in ends for name, port in link if name == node)


def _scale(document: Mapping[str, Any]) -> float:
    labels = (document["topology"].get("defaults") or {}).get("labels") or {}
    return float(labels.get(SCALE_LABEL, 1.0))


def _settings(lab: str, path: Path, required: bool) -> dict[End, dict[str, str]]:
    """Options of each interface, of a script's lines."""
    try:
        text = path.read_text()
    except OSError as error:
        if required:
            raise BadInput(where=str(path), got=str(error.strerror), expected="a script") from None
        return {}
    found: dict[End, dict[str, str]] = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if "netem" not in words or "set" not in words:
            continue
        options = _options(words[words.index("set") + 1 :])
        node = options.get("node", options.get("n", "")).removeprefix(f"clab-{lab}-")
        found[node, options.get("interface", options.get("i", ""))] = options
    return found


def _options(words: list[str]) -> dict[str, str]:
    found, name = {}, ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            found[name] = value
        elif name and not found[name]:
            found[name] = word
    return found


def _way(settings: Mapping[End, Mapping[str, str]], node: str, interface: str, scale: float) -> Way:
    options = settings.get((node, interface))
    if options is None:
        return Way()
    try:
        rate = float(options["rate"]) * 1e3 if options.get("rate") else None
        if rate is not None and scale != 1:
            rate = float(f"{rate * scale:.5g}")  # what whole kbit/s leave of it
        delay = _seconds(options["delay"]) if options.get("delay") else None
        jitter, loss = _seconds(options.get("jitter") or "0s"), float(options.get("loss") or 0) / 100
    except ValueError as error:
        raise BadInput(
            where=f"netem of {node}:{interface}", got=str(dict(options)), expected=str(error)
        ) from None
    return Way(rate or None, delay, jitter, loss)


def _seconds(text: str) -> float:
    """As Go writes durations: "2ms", "1.5s", "1m30s"."""
    parts = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", text)
    units = {"m": "min", "µs": "us"}
    if not parts:
        raise ValueError("a duration such as 2ms")
    return sum(parse_duration(f"{value} {units.get(unit, unit)}") for value, unit in parts)
