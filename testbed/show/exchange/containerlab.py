"""Write topologies for containerlab: a `clab.yml` with links, and delays and rates as `tools netem set` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from testbed.show.exchange.linux_routers import Port, Routed, fitting_scale, lost, routed, shape_of
from testbed.spec.topology import TopologySpec

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
