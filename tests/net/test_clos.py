"""Buildings of several tiers, built for real: latency classes, oversubscription, many hosts."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from testbed.clock import clock_here
from testbed.net.fabric.fabric_state import load_all
from testbed.net.fabric.network import Fabric
from testbed.net.links.packet_sockets import measure_one_way_delays
from testbed.spec.topology import Topology, TopologySpec
from tests.net.patience import assert_within

pytestmark = [pytest.mark.net, pytest.mark.quiet]

LEAF_S, SPINE_S, WAN_S = 0.003, 0.007, 0.015


def topology(hosts: int, rate: str, clos: dict[str, Any] | None, buildings: int = 2) -> Topology:
    names = [f"b{number}x" for number in range(buildings)]
    building = {"hosts": hosts, "nic": {"rate": rate}, **({"clos": clos} if clos else {})}
    wan = [
        {"a": a, "b": b, "rate": "50 Mbit/s", "delay": f"{WAN_S * 1e3:g} ms"}
        for a, b in itertools.pairwise(names)
    ]
    document = {"name": "tiers", "buildings": dict.fromkeys(names, building), "wan": wan}
    return TopologySpec.model_validate(document).resolve()


@pytest.fixture(scope="module")
def tiers() -> Iterator[Fabric]:
    clos = {
        "zones": 2,
        "leaves": 2,
        "spines": 2,
        "leaf": {"oversubscription": "1:1", "delay": f"{LEAF_S * 1e3:g} ms"},
        "spine": {"oversubscription": "1:2.8", "delay": f"{SPINE_S * 1e3:g} ms"},
    }
    with Fabric(
        topology(8, "56 Mbit/s", clos),
        link_engine="netem" if clock_here() else "userspace",
        datapath="system" if clock_here() else "netdev",
    ) as fabric:
        yield fabric


def one_way_s(fabric: Fabric, source: str, target: str) -> float:
    ends = [(fabric.state.pids[name], fabric.topology.host(name).ip) for name in (source, target)]
    times = measure_one_way_delays(ends[0], ends[1], 5, 0.01)
    assert times, f"nothing from {source} to {target} came through"
    return min(times)


@pytest.mark.parametrize(
    ("target", "expected_s"),
    [
        ("b0x2", 0.0),
        ("b0x3", 2 * LEAF_S),
        ("b0x5", 2 * (LEAF_S + SPINE_S)),
        ("b1x1", 2 * (LEAF_S + SPINE_S) + WAN_S),
    ],
    ids=["rack", "zone", "building", "region"],
)
def test_each_tier_has_its_latency(tiers: Fabric, target: str, expected_s: float) -> None:
    assert_within(lambda: one_way_s(tiers, "b0x1", target), expected_s - 0.001, expected_s + 0.004)


# iperf3's client spins until its server has answered, and time that moves only when nobody computes hardly passes then
RECEIVER = """
import socket, time
with socket.create_server(("", 5201)) as listening:
    print("listening", flush=True)
    stream, _ = listening.accept()
begin, end, count = time.monotonic() + 1, time.monotonic() + 3, 0
while time.monotonic() < end:
    got = len(stream.recv(1 << 16))
    count += got if time.monotonic() >= begin else 0
print(count)
"""
SENDER = """
import socket, sys
stream = socket.create_connection((sys.argv[1], 5201))
try:
    while True:
        stream.sendall(bytes(1 << 16))
except OSError:
    pass
"""


def goodput_bps(fabric: Fabric, pairs: list[tuple[str, str]]) -> float:
    """Of TCP connections that together ask for more than the tier carries, at their receivers, after a second."""
    started = []

    def start(host: str, *arguments: str) -> subprocess.Popen[str]:
        command = fabric.command(host, [sys.executable, "-c", *arguments])
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    try:
        receivers = [start(target, RECEIVER) for _, target in pairs]
        for receiver in receivers:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listening\n"
        for source, target in pairs:
            start(source, SENDER, fabric.topology.host(target).ip)
        return sum(int(receiver.communicate(timeout=60)[0]) * 8 / 2 for receiver in receivers)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_zones_of_a_building_are_oversubscribed_and_racks_are_not(tiers: Fabric) -> None:
    # hosts 1 to 4 are one zone, 5 to 8 the other; so that each spine carries half, targets are of both kinds
    within = [("b0x1", "b0x3"), ("b0x2", "b0x4")]
    across = [("b0x1", "b0x5"), ("b0x2", "b0x6"), ("b0x3", "b0x7"), ("b0x4", "b0x8")]
    assert_within(lambda: goodput_bps(tiers, within), 0.9 * 2 * 56e6, 2 * 56e6)
    assert_within(lambda: goodput_bps(tiers, across), 0.85 * 4 * 56e6 / 2.8, 4 * 56e6 / 2.8)


def test_a_spine_that_is_set_otherwise_is_noticed(tiers: Fabric) -> None:
    assert tiers.changed_settings() is None
    assert tiers.engine is not None
    settings = tiers.engine.settings()
    assert settings["b0x-spine1-b0x-core", "a_to_b"].delay_s == pytest.approx(SPINE_S, abs=2e-6)


@pytest.mark.real_clock("so many hosts are there to be brought up quickly")
@pytest.mark.timeout(240)
def test_256_hosts_come_up_reach_each_other_and_go_away() -> None:
    of = topology(64, "20 Mbit/s", {"leaves": 4, "spines": 2}, buildings=4)
    before = {link for link in psutil.net_if_addrs() if not link.startswith("tb")}
    with Fabric(of) as fabric:
        assert len(fabric.net.hosts) == 256 + 1 + 4  # the link engine's and the probes'
        fabric_id, pids = fabric.state.id, dict(fabric.state.pids)
        for one, other in itertools.permutations(of.buildings, 2):
            one_way_s(fabric, one.hosts[-1].name, other.hosts[one.index].name)
        assert "10.3.0.64" in fabric.net.get("b3x64").cmd("ip -br address show dev eth0")
        assert "0% packet loss" in fabric.net.get("b0x1").cmd("ping -c 1 b3x64")
    assert fabric_id not in {state.id for state in load_all()}
    assert {link for link in psutil.net_if_addrs() if not link.startswith("tb")} == before
    assert not [link for link in psutil.net_if_addrs() if link.startswith(f"tb{fabric_id}")]
    edges = {f"b{number}x-edge" for number in range(4)}
    assert not [pid for name, pid in pids.items() if name not in edges and psutil.pid_exists(pid)]
