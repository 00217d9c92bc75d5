"""Fabrics built for real: reachability, configured figures seen by independent tools, nothing left behind."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise, permutations
from pathlib import Path

import networkx
import pytest

from testbed.clock import clock_here
from testbed.net.errors import FabricError
from testbed.net.fabric.fabric_state import clean_abandoned, load_all
from testbed.net.fabric.network import Fabric
from testbed.net.links.shaping import Shape, shape_commands
from testbed.spec.buildings import Host
from testbed.spec.topology import Topology, load_topology
from tests.net.iperf import iperf_server
from tests.net.patience import assert_within

pytestmark = [pytest.mark.net, pytest.mark.quiet]

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def three_buildings() -> Topology:
    return load_topology(TOPOLOGIES / "three-buildings.yaml").resolve()


def with_a_transit_site() -> Topology:
    """The three buildings, and a fourth that is reached by way of a site without hosts."""
    data = load_topology(TOPOLOGIES / "three-buildings.yaml").to_data()
    data["buildings"] |= {"relay": {"hosts": 0}, "far": {"hosts": 1, "nic": {"rate": "100 Mbit/s"}}}
    link = {"rate": "100 Mbit/s"}
    data["wan"] += [
        {"a": "south", "b": "relay", "delay": "3 ms", **link},
        {"a": "relay", "b": "far", "delay": "2 ms", **link},
    ]
    return load_topology(data).resolve()


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(with_a_transit_site()) as built:
        yield built


def run_in(fabric: Fabric, host: str, *arguments: str) -> str:
    done = subprocess.run(
        fabric.command(host, list(arguments)), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def round_trip(topology: Topology, here: str, there: str) -> tuple[float, int]:
    """Return the delay and the number of links by the path of least delay, there and back."""
    graph = networkx.DiGraph()
    for link in topology.wan:
        graph.add_edge(link.a, link.b, delay_s=link.a_to_b.delay_s)
        graph.add_edge(link.b, link.a, delay_s=link.b_to_a.delay_s)
    paths = [networkx.shortest_path(graph, *way, weight="delay_s") for way in ((here, there), (there, here))]
    links = [graph.edges[link]["delay_s"] for path in paths for link in pairwise(path)]
    return math.fsum(links), len(links)


def one_way(topology: Topology, here: str, there: str) -> tuple[float, float]:
    """(delay, rate) of the direct link between two buildings in one direction."""
    for link in topology.wan:
        if (link.a, link.b) == (here, there):
            return link.a_to_b.delay_s, link.a_to_b.rate_bps
        if (link.b, link.a) == (here, there):
            return link.b_to_a.delay_s, link.b_to_a.rate_bps
    raise AssertionError(f"no link between {here} and {there}")


def test_every_host_reaches_every_other_by_name(fabric: Fabric) -> None:
    for here, there in permutations([host.name for host in fabric.topology.hosts], 2):
        run_in(fabric, here, "ping", "-c", "1", "-W", "2", there)


def test_ping_sees_the_configured_round_trip_on_every_building_pair(fabric: Fabric) -> None:
    first = {building.name: building.hosts[0].name for building in fabric.topology.populated}
    for here, there in combinations(first, 2):
        expected_s, links = round_trip(fabric.topology, here, there)
        margin_s = max(0.02 * expected_s, 0.0005)
        if not clock_here():  # what an edge between two links takes varies with how busy the machine is
            margin_s += 0.0002 * (links - 2)
        measure = partial(fastest_ping_s, fabric, first[here], first[there])
        assert_within(measure, expected_s - margin_s, expected_s + margin_s)


def fastest_ping_s(fabric: Fabric, here: str, there: str) -> float:
    """The shortest of 15: what the links themselves take; on a busy machine others wait for a core, too."""
    said = run_in(fabric, here, "ping", "-c", "15", "-i", "0.05", there)
    times = [float(value) / 1000 for value in re.findall(r"time=([\d.]+) ms", said)]
    assert len(times) == 15
    return min(times)


def test_iperf3_sees_the_configured_rate_in_both_directions(fabric: Fabric) -> None:
    link = min(fabric.topology.wan, key=lambda link: link.a_to_b.rate_bps)
    first = {building.name: building.hosts[0] for building in fabric.topology.populated}
    for here, there in ((link.a, link.b), (link.b, link.a)):
        mtu = fabric.topology.mtu
        expected_bps = one_way(fabric.topology, here, there)[1] * (mtu - 52) / (mtu + 14)
        measure = partial(goodput_bps, fabric, first[here].name, first[there])
        assert_within(measure, 0.97 * expected_bps, 1.03 * expected_bps)


def goodput_bps(fabric: Fabric, here: str, there: Host) -> float:
    """What iperf3 receives, after 2 seconds; what still waits in queues at the end counts, too."""
    seconds = "6" if clock_here() else "4"
    with iperf_server(fabric.state.pids[there.name]):
        said = json.loads(run_in(fabric, here, "iperf3", "-c", there.ip, "-t", seconds, "-O", "2", "-J"))
        return float(said["end"]["sum_received"]["bits_per_second"])


def test_inspect_gives_back_what_was_asked(fabric: Fabric) -> None:
    shown = fabric.inspect()
    assert shown["buildings"] == ["north", "south", "coast", "relay", "far"]
    _, interfaces = fabric.plan.switch_ports("relay-edge")
    assert len(interfaces) == 3  # the probe's and those of two links: no leaf
    assert [entry["name"] for entry in shown["hosts"]] == [host.name for host in fabric.topology.hosts]
    for link, entry in zip(fabric.topology.wan, shown["wan"], strict=True):
        assert (entry["a"], entry["b"], entry["plane"]) == (link.a, link.b, link.plane)
        for direction in ("a_to_b", "b_to_a"):
            asked = getattr(link, direction)
            assert entry[direction]["rate_bps"] == pytest.approx(asked.rate_bps, abs=8)
            for setting in ("delay_s", "jitter_s", "loss", "queue_bytes"):
                assert entry[direction][setting] == getattr(asked, setting)


def test_hosts_do_not_flood(fabric: Fabric) -> None:
    """A frame to an address that nobody has goes nowhere: no other host sees it."""
    hosts = fabric.topology.building("south").hosts
    others = [host.name for host in fabric.topology.hosts if host.name != hosts[0].name]
    time.sleep(0.5)  # for the last packets of the tests before
    before = {name: _received(fabric, name) for name in others}
    stranger = "10.1.0.250"
    run_in(
        fabric,
        hosts[0].name,
        "ip",
        "neigh",
        "replace",
        stranger,
        "lladdr",
        "02:00:00:00:00:fe",
        "dev",
        "eth0",
    )
    subprocess.run(
        fabric.command(hosts[0].name, ["ping", "-c", "3", "-i", "0.1", "-W", "1", stranger]),
        capture_output=True,
        check=False,
    )
    assert {name: _received(fabric, name) for name in others} == before


def _received(fabric: Fabric, host: str) -> int:
    shown = json.loads(run_in(fabric, host, "ip", "-j", "-s", "link", "show", "eth0"))
    return int(shown[0]["stats64"]["rx"]["packets"])


def wrong_rate(interface: str, shape: Shape, mtu: int) -> list[str]:
    return shape_commands(interface, Shape(shape.rate_bps * 0.9, shape.queue_bytes), mtu)


def nothing(interfaces: list[str]) -> None:
    """Instead of switching offloads off."""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "testbed.net.fabric.namespace_setup.shape_commands",
            wrong_rate,
            r"rate_bps: asked for .*, the system has",
        ),
        ("testbed.net.links.setup.disable_offloads", nothing, r"offload: asked for off, the system has on"),
    ],
)
def test_a_setting_that_does_not_take_is_an_error_and_leaves_nothing(
    name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the kernel is tampered with: reading back must notice."""
    monkeypatch.setattr(name, value)
    before = {state.id for state in load_all() if state.owner_pid == os.getpid()}
    with pytest.raises(FabricError, match=message):
        Fabric(three_buildings()).up()
    assert {state.id for state in load_all() if state.owner_pid == os.getpid()} == before


BUILD_AND_WAIT = """
import sys, time
from pathlib import Path
from testbed.spec.topology import load_topology
from testbed.net.fabric.network import Fabric
fabric = Fabric(load_topology(Path(sys.argv[1])).resolve(), progress=lambda line: print(line, flush=True))
fabric.up()
print("up", fabric.state.id, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("line", ["building", "trying", "up"])
def test_a_builder_killed_at_any_moment_leaves_nothing_after_cleaning(line: str) -> None:
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILD_AND_WAIT, str(TOPOLOGIES / "three-buildings.yaml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None
    for said in builder.stdout:
        if said.startswith(line):
            break
    time.sleep(0.3)
    os.kill(builder.pid, signal.SIGKILL)
    builder.communicate()
    abandoned = [state.id for state in load_all() if state.owner_pid == builder.pid]
    assert len(abandoned) == 1
    cleaned = clean_abandoned()
    assert abandoned[0] in cleaned
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    bridges = subprocess.run(["ovs-vsctl", "list-br"], capture_output=True, text=True, check=True).stdout
    assert f"tb{abandoned[0]}" not in links + bridges
    assert not [state for state in load_all() if state.id == abandoned[0]]
    assert clean_abandoned() == {}
