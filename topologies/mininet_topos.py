"""The topologies of this folder for Mininet's own command line.

    sudo mn --custom topologies/mininet_topos.py --topo two_buildings
    sudo mn --custom topologies/mininet_topos.py --topo three_buildings,planes=2,mesh=1 --switch ovsbr,stp=1

Mininet's usual switches learn addresses by flooding, and flooding never ends where links form a loop. So only links
that close no loop are built: of parallel planes the first, of a mesh the quickest. `planes=N` (default 1) builds up
to N planes of each pair and `mesh=1` every pair: give these only with switches that break loops (`stp=1`) or a
controller that computes paths. `testbed up` has no such limit: it computes paths and never floods.

Rates are divided by a size scale, so that none is above the 1000 Mbit/s that Mininet's TCLink takes; `size_scale=N`
sets another one. Delay and loss need the kernel's netem: on a kernel without it the links say so, and have none.

Mininet runs under the system's Python, which has none of the testbed's dependencies: the files are read by the
checkout's own environment (.venv), or an activated one, or else by this Python.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import partial
from typing import Any

from mininet.link import TCIntf, TCLink
from mininet.log import error, info
from mininet.topo import Topo

# Not __file__: `mn` runs this text in a namespace that has none.
_FOLDER = os.path.dirname(os.path.realpath((lambda: None).__code__.co_filename))
_REPOSITORY = os.path.dirname(_FOLDER)
_PACKET_BYTES = 1500  # Mininet leaves its interfaces at this MTU
_LONGEST_INTERFACE_NAME = 15


def resolve_topology(file: str, size_scale: float) -> dict[str, Any]:
    """A topology file as `testbed.spec.topology.Topology`, in plain data. RuntimeError when it cannot be read."""
    command = [
        "-m",
        "testbed.spec",
        "resolve",
        os.path.join(_FOLDER, file),
        "--size-scale",
        repr(size_scale),
    ]
    environments = filter(None, [os.path.join(_REPOSITORY, ".venv"), os.environ.get("VIRTUAL_ENV")])
    interpreters = [os.path.join(environment, "bin", "python") for environment in environments]
    complaints = []
    for interpreter in [*filter(os.path.exists, interpreters), sys.executable]:
        done = subprocess.run(
            [interpreter, *command], cwd=_REPOSITORY, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            topology: dict[str, Any] = json.loads(done.stdout)
            return topology
        complaints.append(f"{interpreter}: {done.stderr.strip()}")
    raise RuntimeError("\n".join([f"cannot read {file} (`make demo` makes the environment)", *complaints]))


class CheckedIntf(TCIntf):  # type: ignore[misc]  # mininet has no types
    """A shaped interface that tells when its delay or loss did not take."""

    def config(self, delay: str | None = None, loss: float | None = None, **params: Any) -> Any:
        """Shape as TCIntf does, then look at what the kernel has."""
        done = super().config(delay=delay, loss=loss, **params)
        if (delay or loss) and "netem" not in self.tc("%s qdisc show dev %s"):
            lacking = " and ".join([f"delay {delay}"] * bool(delay) + [f"loss {loss} %"] * bool(loss))
            error(
                f"*** {self}: no {lacking}: this kernel has no netem; `testbed up` brings its own link engine\n"
            )
        return done


class CheckedLink(TCLink):  # type: ignore[misc]
    """A link of such interfaces."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, cls1=CheckedIntf, cls2=CheckedIntf, **params)


class BuildingsTopo(Topo):  # type: ignore[misc]
    """One switch per building (s1, s2, ... in the file's order) with its hosts, and WAN links between the switches."""

    def build(self, file: str, planes: int = 1, mesh: int = 0, size_scale: float = 0) -> None:
        """Read `file` and lay out its nodes and links."""
        topology = resolve_topology(file, size_scale or 1)
        fitting = max(1.0, _highest_rate_bps(topology) / (TCIntf.bwParamMax * 1e6))
        if not size_scale and fitting > 1:
            topology = resolve_topology(file, fitting)
            info(f"*** {topology['name']}: all rates divided by {fitting:g}, to fit Mininet's TCLink\n")
        switches = {}
        for number, building in enumerate(topology["buildings"], 1):
            switches[building["name"]] = switch = self.addSwitch(f"s{number}")
            info(f"*** {switch} is {building['name']}\n")
            for host in building["hosts"]:
                self._add_host(host, switch)
        links = _without_loops(topology["wan"], planes, bool(mesh))
        for link in links:
            directions = {"params1": _shape(link["a_to_b"]), "params2": _shape(link["b_to_a"])}
            self.addLink(switches[link["a"]], switches[link["b"]], cls=CheckedLink, **directions)
        if left_out := len(topology["wan"]) - len(links):
            info(f"*** {left_out} of {len(topology['wan'])} WAN links left out, which would close loops\n")

    def _add_host(self, host: dict[str, Any], switch: str) -> None:
        name = self.addHost(host["name"], ip=f"{host['ip']}/8", mac=host["mac"])
        interface = f"{name}-eth0"
        if len(interface) > _LONGEST_INTERFACE_NAME:
            interface = f"h{host['index']}-eth0"
        self.addLink(name, switch, cls=CheckedLink, intfName1=interface, bw=host["nic"]["rate_bps"] / 1e6)


def _highest_rate_bps(topology: dict[str, Any]) -> float:
    nics = [host["nic"]["rate_bps"] for building in topology["buildings"] for host in building["hosts"]]
    return float(
        max(
            nics
            + [link[direction]["rate_bps"] for link in topology["wan"] for direction in ("a_to_b", "b_to_a")]
        )
    )


def _without_loops(links: list[dict[str, Any]], planes: int, mesh: bool) -> list[dict[str, Any]]:
    """The links to build, in the file's order."""
    group = {end: end for link in links for end in (link["a"], link["b"])}
    joined = set()
    for link in sorted(links, key=lambda link: float(link["a_to_b"]["delay_s"] + link["b_to_a"]["delay_s"])):
        one, other = group[link["a"]], group[link["b"]]
        if one != other:
            joined.add(frozenset((link["a"], link["b"])))
            group = {end: one if of == other else of for end, of in group.items()}
    return [
        link
        for link in links
        if link["plane"] < planes and (mesh or frozenset((link["a"], link["b"])) in joined)
    ]


def _shape(direction: dict[str, Any]) -> dict[str, Any]:
    """One direction of a WAN link as parameters of TCLink."""
    # netem's limit counts the packets under way as well as those that wait.
    under_way_bytes = direction["rate_bps"] * direction["delay_s"] / 8
    return {
        "bw": direction["rate_bps"] / 1e6,
        "delay": f"{direction['delay_s'] * 1e6:.0f}us",
        "jitter": f"{direction['jitter_s'] * 1e6:.0f}us" if direction["jitter_s"] else None,
        "loss": direction["loss"] * 100 or None,
        "max_queue_size": math.ceil((direction["queue_bytes"] + under_way_bytes) / _PACKET_BYTES),
    }


topos = {
    "two_buildings": partial(BuildingsTopo, "two-buildings.yaml"),
    "three_buildings": partial(BuildingsTopo, "three-buildings.yaml"),
}
