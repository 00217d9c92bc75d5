"""How long a network takes to stand and to go away: `sudo .venv/bin/python -m tests.bench.bring_up [HOSTS]`.

Beside plain Mininet, the same topology both times: 64 hosts in four buildings in a row, each a switch and an edge (Open
vSwitch's userspace datapath in plain Mininet, whose hosts and links are shaped by TCLink). In turns, so that slow
drifts hit both; medians. The testbed reads every setting back, which Mininet does not; its self-tests (TCP across every
link, what the path adds) come on top and are told apart.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time

from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import OVSBridge

from testbed.net.fabric.network import Fabric
from testbed.spec.topology import Topology, TopologySpec

BUILDINGS = ("north", "east", "south", "west")
RATE_MBPS = 100
REPEATS = 5


def topology(hosts: int) -> Topology:
    """So many hosts in all."""
    building = {"hosts": hosts // len(BUILDINGS), "nic": {"rate": f"{RATE_MBPS} Mbit/s"}}
    wan = [
        {"a": a, "b": b, "rate": f"{RATE_MBPS} Mbit/s", "delay": "1 ms"}
        for a, b in itertools.pairwise(BUILDINGS)
    ]
    document = {"name": "row", "buildings": dict.fromkeys(BUILDINGS, building), "wan": wan}
    return TopologySpec.model_validate(document).resolve()


def ours(of: Topology) -> tuple[float, float, float]:
    """Seconds until it stands, of self-tests, until it is gone."""
    begin_s = time.monotonic()
    standing_s = begin_s

    def phase(line: str) -> None:
        nonlocal standing_s
        if line.startswith("testing TCP"):
            standing_s = time.monotonic()

    fabric = Fabric(of, progress=phase)
    fabric.up()
    up_s = time.monotonic()
    fabric.down()
    return standing_s - begin_s, up_s - standing_s, time.monotonic() - up_s


def plain(of: Topology) -> tuple[float, float]:
    """Seconds until it stands, until it is gone."""
    begin_s = time.monotonic()
    net = Mininet(controller=None, switch=OVSBridge, link=TCLink)
    edges = {}
    for building in of.buildings:
        leaf = net.addSwitch(f"l{building.index}", datapath="user")
        edges[building.name] = net.addSwitch(f"e{building.index}", datapath="user")
        for number, host in enumerate(building.hosts):
            node = net.addHost(f"h{building.index}x{number}", ip=f"{host.ip}/8")
            net.addLink(node, leaf, bw=RATE_MBPS)
        net.addLink(leaf, edges[building.name])
    for link in of.wan:
        net.addLink(edges[link.a], edges[link.b], bw=RATE_MBPS)
    net.build()
    net.start()
    standing_s = time.monotonic()
    net.stop()
    return standing_s - begin_s, time.monotonic() - standing_s


def main() -> None:
    """Both in turns."""
    setLogLevel("critical")
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    of = topology(hosts)
    found = [(ours(of), plain(of)) for _ in range(REPEATS)]
    stands, tests, gone = (statistics.median(own[part] for own, _ in found) for part in range(3))
    plain_stands, plain_gone = (statistics.median(other[part] for _, other in found) for part in range(2))
    ratios = sorted(sum(other) / (own[0] + own[2]) for own, other in found)
    print(f"{hosts} hosts, medians of {REPEATS}")
    print(f"testbed: stands after {stands:.2f} s, self-tests {tests:.2f} s, gone after {gone:.2f} s")
    print(f"Mininet: stands after {plain_stands:.2f} s, gone after {plain_gone:.2f} s")
    print(f"up and down: {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f})")
    everything = statistics.median(sum(other) / sum(own) for own, other in found)
    print(f"with the testbed's self-tests: {everything:.1f} times as fast")


if __name__ == "__main__":
    main()
