"""Topologies as a script for Mininet that needs nothing of the testbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.show.exchange.linux_routers import Port, fitting_scale, lost, routed, shape_of
from testbed.spec.topology import TopologySpec

MOST_BPS = 1e9  # Mininet's TCLink takes no more

SCRIPT = '''#!/usr/bin/env python3
"""The network {name} for Mininet: a router for each building, its hosts plugged into it, links between routers.

    sudo python3 {file}            # and a prompt
    sudo python3 {file} --ping     # every host from every other one

Rates are divided by {scale:g}. Made by `testbed export`.
"""

import json
import math
import re
import sys

from mininet.cli import CLI
from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Node

PACKET_BYTES = 1500
NETWORK = json.loads("""
{network}
""")


def shape(port):
    """As TCLink takes it; netem's limit counts packets under way as well as those that wait."""
    waiting = port["queue_bytes"] + port["rate_bps"] * port["delay_us"] / 8e6
    return {{
        "bw": port["rate_bps"] / 1e6,
        "delay": "%dus" % port["delay_us"] if port["delay_us"] else None,
        "jitter": "%dus" % port["jitter_us"] if port["jitter_us"] else None,
        "loss": port["loss_percent"] or None,
        "max_queue_size": math.ceil(waiting / PACKET_BYTES),
    }}


def build():
    """The network, with its addresses and routes."""
    net = Mininet(controller=None, link=TCLink)
    for name in NETWORK["routers"]:
        net.addHost(name, cls=Node, ip=None)
    for name in NETWORK["hosts"]:
        net.addHost(name, ip=None)
    interfaces = {{}}
    for number, (a, b) in enumerate(NETWORK["cables"]):
        names = ["c%da" % number, "c%db" % number]
        for port, name in zip((a, b), names):
            interfaces[port["node"], port["number"]] = name
        net.addLink(a["node"], b["node"], intfName1=names[0], intfName2=names[1], params1=shape(a), params2=shape(b))
    net.build()
    net.start()
    for name, commands in NETWORK["commands"].items():
        node = net.get(name)
        for command in commands:
            said = node.cmd(re.sub(r"\\{{(\\d+)\\}}", lambda found: interfaces[name, int(found[1])], command))
            if said.strip():
                print("%s: %s: %s" % (name, command, said.strip()), file=sys.stderr)
    for name, address in NETWORK["hosts"].items():  # for Mininet's own commands
        interface = net.get(name).defaultIntf()
        interface.ip, interface.prefixLen = address, "32"
    return net


def main():
    """Up, used, and down again."""
    setLogLevel("info")
    net = build()
    try:
        if "--ping" in sys.argv[1:]:
            hosts = [net.get(name) for name in NETWORK["hosts"]]
            return 1 if net.ping(hosts) > 0 else 0
        CLI(net)
        return 0
    finally:
        net.stop()


if __name__ == "__main__":
    sys.exit(main())
'''


def export_mininet(spec: TopologySpec, path: Path, size_scale: float | None = None) -> list[str]:
    """To a file; what is left out, in words. size_scale: None for what makes no rate larger than TCLink takes."""
    made = routed(spec, size_scale or fitting_scale(spec, MOST_BPS))
    network = {
        "routers": made.routers,
        "hosts": made.hosts,
        "cables": [[_port(cable.a), _port(cable.b)] for cable in made.cables],
        "commands": made.commands,
    }
    text = SCRIPT.format(
        name=made.name,
        file=path.name,
        scale=made.size_scale,
        network=json.dumps(network, indent=1).replace("\\", "\\\\"),
    )
    path.write_text(text)
    path.chmod(0o755)
    notes = list(lost(spec))
    if made.size_scale != 1:
        notes.append(f"rates, which are divided by {made.size_scale:g}")
    notes.append("packets of more than 1500 bytes")
    return notes


def _port(port: Port) -> dict[str, Any]:
    return {"node": port.node, "number": port.number, **shape_of(port.shape)}
