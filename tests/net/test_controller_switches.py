"""The controller and real switches: real packets take the paths that the policies say, with os-ken and with Ryu."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from testbed.net.controller import ControllerError, ControllerProcess, PolicyError, compute_rules
from testbed.net.controller import Flow as Demand
from testbed.net.controller.process import snapshot_of
from testbed.net.controller.rules import Packet
from testbed.net.controller.table_simulator import Network, wires
from testbed.spec.topology import Topology, TopologySpec
from tests.net.controller_bridges import (
    Flow,
    Seen,
    Site,
    Sniffer,
    open_flows,
    received,
    send_datagrams,
    site,
    tcp_pair,
    udp_exchange,
    vsctl,
)

pytestmark = pytest.mark.net

REPOSITORY = Path(__file__).parents[2]
READY_TIMEOUT_S = 20.0
FLOWS = 64
NOBODY_LISTENS = 1  # a port of this machine


@dataclass(frozen=True)
class Library:
    """A controller library and the interpreter that has it."""

    name: str
    python: str

    @contextlib.contextmanager
    def installed(self, built: Site, policy: str) -> Iterator[ControllerProcess]:
        """A controller that has put a policy's rules into the bridges."""
        controller = self.controller(built, policy)
        controller.start()
        try:
            built.set_controller(controller.port)
            controller.wait_ready(READY_TIMEOUT_S)
            yield controller
        finally:
            controller.stop()

    def controller(self, built: Site, policy: str) -> ControllerProcess:
        rules = compute_rules(policy, built.topology, built.edges, seed=7)
        snapshot = snapshot_of(built.topology, built.edges, {"name": policy}, seed=7)
        path = {"PYTHONPATH": str(REPOSITORY)}
        return ControllerProcess(rules, self.name, path, self.python, snapshot, built.events.append)


@pytest.fixture(scope="module", params=["os-ken", "ryu"])
def library(request: pytest.FixtureRequest) -> Library:
    if request.param == "os-ken":
        return Library("os-ken", sys.executable)
    python = os.environ.get("TESTBED_RYU_PYTHON", str(REPOSITORY / ".venv-ryu/bin/python"))
    if not Path(python).exists():
        pytest.skip(f"no environment with Ryu: {python} does not exist (TESTBED_RYU_PYTHON names another)")
    found = subprocess.run(
        [python, "-c", "import eventlet, ryu"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(f"{python} cannot import Ryu: {found.stderr.strip().splitlines()[-1]}")
    return Library("ryu", python)


def topology(name: str, buildings: dict[str, int], *wan: dict[str, object]) -> Topology:
    nic = {"rate": "1 Gbit/s"}
    document = {
        "name": name,
        "mtu": 1500,
        "buildings": {building: {"hosts": hosts, "nic": nic} for building, hosts in buildings.items()},
        "wan": [{"rate": "100 Mbit/s", **link} for link in wan],
    }
    return TopologySpec.model_validate(document).resolve()


TWO = topology("two", {"east": 2, "west": 2}, {"a": "east", "b": "west", "planes": 2, "delay": "1 ms"})
# the direct way from north to south is slower than the one through east, and east to south has a fast and a slow plane
THREE = topology(
    "three",
    {"north": 1, "east": 2, "south": 1},
    {"a": "north", "b": "east", "delay": "1 ms"},
    {"a": "east", "b": "south", "delay": "3 ms"},
    {"a": "south", "b": "east", "delay": "1 ms"},
    {"a": "north", "b": "south", "delay": "5 ms"},
)


@pytest.fixture(scope="module")
def two(library: Library) -> Iterator[Site]:
    with site(TWO) as built, library.installed(built, "ecmp"):
        yield built


def links_used(seen: dict[str, list[Seen]], interfaces: dict[str, str]) -> dict[Flow, set[str]]:
    """By flow the links on which its packets were seen, in either direction."""
    used: dict[Flow, set[str]] = {}
    for link, interface in interfaces.items():
        for packet in seen[interface]:
            client_port = packet.source_port if packet.source.startswith("10.0.") else packet.target_port
            used.setdefault((packet.ip_proto, client_port), set()).add(link)
    return used


def assert_all_pairs_reach(built: Site) -> None:
    for here, there in permutations(built.topology.hosts, 2):
        if here.building != there.building:
            reached = udp_exchange(built.hosts[here.building], built.hosts[there.building], here.ip, there.ip)
            assert reached, f"{here.name} to {there.name}"


def test_hosts_of_two_buildings_reach_each_other(two: Site) -> None:
    assert_all_pairs_reach(two)


def test_ecmp_spreads_tcp_and_udp_flows_and_keeps_each_on_one_link(two: Site) -> None:
    interfaces = two.wan_interfaces("west")
    east, west = (two.topology.building(name).hosts[0].ip for name in ("east", "west"))
    with Sniffer(*interfaces.values()) as sniffer:
        flows = open_flows(two.hosts["east"], two.hosts["west"], east, west, FLOWS)
        used = links_used(sniffer.seen(), interfaces)
    # an earlier test's connections may still take their leave
    used = {flow: links for flow, links in used.items() if flow in flows}
    assert set(used) == flows
    assert all(len(links) == 1 for links in used.values())
    for ip_proto in {flow[0] for flow in flows}:
        links = [min(on) for flow, on in used.items() if flow[0] == ip_proto]
        assert len(links) == FLOWS
        assert all(links.count(link) >= FLOWS / 4 for link in interfaces), (ip_proto, links)


@pytest.mark.by_either_library
def test_flows_take_the_links_that_the_table_in_memory_gives_them(two: Site) -> None:
    interfaces = two.wan_interfaces("west")
    edges = {edge.building: edge for edge in two.edges}
    rules = compute_rules("ecmp", two.topology, two.edges, seed=7)
    in_memory = Network(rules, wires(two.topology, two.edges))
    east, west = (two.topology.building(name).hosts[0].ip for name in ("east", "west"))
    with Sniffer(*interfaces.values()) as sniffer:
        open_flows(two.hosts["east"], two.hosts["west"], east, west, FLOWS)
        seen = sniffer.seen()
    checked = set()
    for link in two.topology.wan:
        for packet in seen[interfaces[link.name]]:
            here, there = ("east", "west") if packet.source == east else ("west", "east")
            edge = edges[here]
            asked = Packet(
                packet.source, packet.target, packet.ip_proto, packet.source_port, packet.target_port
            )
            journey = in_memory.forward(asked, edge.entry)
            assert journey.hops[0] == (edge.dpid, edge.wan[there, link.plane]), packet
            checked.add((packet.ip_proto, packet.source_port, packet.target_port))
    assert len(checked) >= 2 * FLOWS


@pytest.mark.by_either_library
def test_probes_take_exactly_their_link(two: Site) -> None:
    interfaces = two.wan_interfaces("east")
    for index, link in enumerate(two.topology.wan):
        near, far = f"10.254.{index}.1", f"10.254.{index}.2"
        with Sniffer(*interfaces.values()) as sniffer:
            for source, target, here, there in ((near, far, link.a, link.b), (far, near, link.b, link.a)):
                assert udp_exchange(two.probes[here], two.probes[there], source, target)
            seen = sniffer.seen()
        assert [name for name, interface in interfaces.items() if seen[interface]] == [link.name]


@pytest.mark.by_either_library
@pytest.mark.parametrize("target", ["10.1.9.9", "10.99.0.1"])
def test_unknown_destinations_are_dropped(two: Site, target: str) -> None:
    east = two.topology.building("east").hosts[0].ip
    interfaces = two.wan_interfaces("west")
    with (
        Sniffer("eth0", node=two.hosts["west"]) as host,
        Sniffer("eth0", node=two.probes["west"]) as probe,
        Sniffer("eth0", node=two.probes["east"]) as near_probe,
        Sniffer(*interfaces.values()) as wan,
    ):
        send_datagrams(two.hosts["east"], east, target)
        on_wan = wan.seen()
        assert host.seen() == probe.seen() == near_probe.seen() == {"eth0": []}
    # an unknown host of a known building is sent there and dropped there; an unknown network goes nowhere
    expected = {target} if target.startswith("10.1.") else set()
    seen = [packet for packets in on_wan.values() for packet in packets]
    # probes' late answers may still be on their way
    assert {packet.target for packet in seen if packet.source == east} == expected


@pytest.mark.by_any_datapath
@pytest.mark.by_either_library
def test_rules_outlive_the_controller(library: Library) -> None:
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        os.kill(controller.pid, signal.SIGKILL)
        wait_until(lambda: controller.failure() is not None)
        assert "status -9" in str(controller.failure())
        assert_all_pairs_reach(built)


@pytest.mark.by_either_library
def test_three_buildings_take_the_path_of_least_delay(library: Library) -> None:
    with site(THREE) as built, library.installed(built, "ecmp"):
        assert_all_pairs_reach(built)
        interfaces = {**built.wan_interfaces("north"), **built.wan_interfaces("south")}
        north, south = (built.topology.building(name).hosts[0].ip for name in ("north", "south"))
        with Sniffer(*interfaces.values()) as sniffer:
            assert udp_exchange(built.hosts["north"], built.hosts["south"], north, south)
            seen = sniffer.seen()
        used = {name for name, interface in interfaces.items() if seen[interface]}
        assert used == {"north-east-0", "south-east-1"}


@pytest.mark.by_any_datapath
@pytest.mark.by_either_library
def test_two_controllers_run_side_by_side(library: Library, two: Site) -> None:
    with site(TWO) as second, library.installed(second, "shortest"):
        assert_all_pairs_reach(two)
        assert_all_pairs_reach(second)
        assert len(second.flows("east")) == len(two.flows("east"))
        assert any("bundle(symmetric_l3l4+udp,7,hrw" in flow for flow in two.flows("east"))
        assert not any("bundle" in flow for flow in second.flows("east"))


@pytest.mark.by_any_datapath
def test_a_lost_connection_or_a_new_controller_leaves_the_rules_alone(library: Library) -> None:
    with site(TWO) as built:
        with library.installed(built, "shortest") as controller:
            installed = time.monotonic()
            before = connections(controller)
            assert len(before) == 2
            time.sleep(0.5)
            built.set_controller(NOBODY_LISTENS)
            built.set_controller(controller.port)
            wait_until(lambda: len(connections(controller) - before) == 2)
            time.sleep(0.5)  # the read-back that follows
            assert controller.failure() is None
            assert_all_older_than(time.monotonic() - installed, built)
        with library.installed(built, "shortest"):
            assert_all_older_than(time.monotonic() - installed, built)
        with library.installed(built, "ecmp"):
            assert sum("bundle" in flow for flow in built.flows("east")) == 1
            assert not any("10.1.0.0/16 actions=output" in flow for flow in built.flows("east"))
            assert_all_pairs_reach(built)


@pytest.mark.by_any_datapath
def test_flows_and_groups_of_others_are_removed(library: Library) -> None:
    with site(TWO) as built:
        bridge = built.bridge("east")
        for command in (
            ["add-group", bridge, "group_id=1,type=all,bucket=output:3,bucket=output:4"],
            ["add-flow", bridge, "priority=500,ip,actions=group:1"],
            ["add-flow", bridge, "priority=400,udp,udp_dst=4791,actions=set_field:46->ip_dscp,NORMAL"],
            ["add-flow", bridge, "priority=0,actions=FLOOD"],
            ["add-flow", bridge, "table=7,priority=3,ipv6,actions=goto_table:8"],
        ):
            subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", *command], check=True)
        with library.installed(built, "shortest"):
            assert len(built.flows("east")) == len(built.flows("west"))
            assert not any(
                word in flow for flow in built.flows("east") for word in ("NORMAL", "FLOOD", "group")
            )
            command = ["ovs-ofctl", "-O", "OpenFlow13", "dump-groups", bridge]
            groups = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert "group_id" not in groups
            assert_all_pairs_reach(built)


@pytest.mark.by_any_datapath
def test_lost_rules_are_noticed_and_put_in_again(library: Library) -> None:
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        bridge, lost = built.bridge("east"), built.topology.hosts[0].ip
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", "del-flows", bridge, f"ip,nw_dst={lost}"], check=True
        )
        wait_until(lambda: any(event["event"] == "repaired" for event in built.events))
        [repaired] = [event for event in built.events if event["event"] == "repaired"]
        assert repaired["bridge"] == bridge
        assert f"missing: priority 300, ipv4_dst={lost}/32" in repaired["words"]
        assert controller.failure() is None
        assert_all_pairs_reach(built)


@pytest.mark.by_any_datapath
def test_another_policy_is_put_in_force_and_shown(library: Library) -> None:
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        edges = {building.name: built.bridge(building.name) for building in TWO.buildings}
        assert controller.api.show()["policy"]["name"] == "shortest"
        differing = controller.api.diff({"name": "ecmp"})["bridges"][edges["east"]]
        assert len(differing["added"]) == len(differing["removed"]) == 1
        assert not any("bundle" in flow for flow in built.flows("east"))
        answer = controller.api.set({"name": "ecmp"})
        assert answer["changed"] == 4  # one rule less and one more, in two bridges
        assert sum("bundle" in flow for flow in built.flows("east")) == 1
        assert_all_pairs_reach(built)
        controller.api.set({"name": "failover", "options": {"replan": False}})
        assert any("group:" in flow for flow in built.flows("east"))
        assert_all_pairs_reach(built)
        shown = controller.api.show()
        assert (shown["policy"]["name"], shown["replan"]) == ("failover", False)
        counted = controller.api.rules()[edges["east"]]
        assert any(rule["packets"] > 0 and "fast_failover" in rule["actions"][0] for rule in counted)


@pytest.mark.by_any_datapath
@pytest.mark.by_either_library
def test_what_cannot_be_is_refused_and_the_last_good_rules_stay(library: Library, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from testbed.net.controller import LinkPolicy\n\nclass Broken(LinkPolicy):\n"
        "    def choose(self, ends):\n        return ends[99]\n"
    )
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        before = [flow.split("priority=")[1] for flow in built.flows("east")]
        for name, words in (
            ("fastest", "policy: got 'fastest', expected FILE.py:NAME or one of shortest"),
            (f"{own}:Broken", f"IndexError: list index out of range ({own}, line 5)"),
        ):
            with pytest.raises(PolicyError, match=re.escape(words)):
                controller.api.set({"name": name})
        assert [flow.split("priority=")[1] for flow in built.flows("east")] == before
        assert controller.failure() is None
        with pytest.raises(ControllerError, match="the token is missing or wrong"):
            replace(controller.api, token="guess").show()


@pytest.mark.by_either_library
def test_connections_outlive_changes_of_policy(library: Library) -> None:
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        east, west = (built.topology.building(name).hosts[0].ip for name in ("east", "west"))
        with tcp_pair(built.hosts["east"], built.hosts["west"], east, west) as (client, server):
            for policy in ("ecmp", "failover", "qp_aware", "wcmp", "shortest"):
                controller.api.set({"name": policy})
                for number in range(20):
                    client.sendall(bytes([number]) * 1000)
                    assert received(server, 1000) == bytes([number]) * 1000


@pytest.mark.by_any_datapath
def test_a_killed_controller_comes_back_while_packets_go_on(library: Library) -> None:
    with site(TWO) as built, library.installed(built, "shortest") as controller:
        controller.api.set({"name": "ecmp"})
        installed = time.monotonic()
        port = controller.port
        east, west = (built.topology.building(name).hosts[0].ip for name in ("east", "west"))
        with tcp_pair(built.hosts["east"], built.hosts["west"], east, west) as (client, server):
            os.kill(controller.pid, signal.SIGKILL)
            wait_until(lambda: not controller.alive())
            client.sendall(b"x" * 1000)
            assert received(server, 1000) == b"x" * 1000
            assert controller.restart()
            assert controller.port == port
            controller.wait_ready(READY_TIMEOUT_S)
            wait_until(lambda: len(connections(controller)) == 2)
            client.sendall(b"y" * 1000)
            assert received(server, 1000) == b"y" * 1000
        wait_until(lambda: controller.api.show()["policy"]["name"] == "ecmp")
        controller.api.rules()  # read back since
        assert_all_older_than(time.monotonic() - installed, built)
        assert not controller.restart()
        assert controller.failure() is None


def test_when_a_link_dies_new_ways_are_found(library: Library) -> None:
    with site(THREE) as built, library.installed(built, "shortest") as controller:
        controller.api.set({"name": "shortest", "replan": True})
        north, south = (built.topology.building(name).hosts[0].ip for name in ("north", "south"))

        def exchange() -> bool:
            return udp_exchange(built.hosts["north"], built.hosts["south"], north, south)

        assert exchange()
        end = built.wan_interfaces("north")["north-east-0"]
        subprocess.run(["ip", "link", "set", end, "down"], check=True)
        wait_until(lambda: any(event["event"] == "replanned" for event in built.events))
        assert exchange()
        assert controller.api.show()["down"] == ["north-east-0"]
        subprocess.run(["ip", "link", "set", end, "up"], check=True)
        wait_until(lambda: controller.api.show()["down"] == [])
        assert exchange()


@pytest.mark.by_any_datapath
def test_ten_thousand_rules_are_in_and_read_back() -> None:
    hosts = topology(
        "many", {"east": 100, "west": 100}, {"a": "east", "b": "west", "planes": 2, "delay": "1 ms"}
    )
    flows = [
        Demand(f"east{here + 1}", f"west{there + 1}", 0, 1.0, 33000 + here, 29500)
        for here in range(100)
        for there in range(50)
    ]
    with site(TWO) as built:
        built.topology = hosts
        library = Library("os-ken", sys.executable)
        with library.installed(built, "shortest") as controller:
            asked = {"name": "qp_aware", "flows": [asdict(flow) for flow in flows]}
            answer = controller.api.set(asked)
            assert answer["rules"] >= 10_000
            assert len(built.flows("east")) + len(built.flows("west")) == answer["rules"]


def assert_all_older_than(age_s: float, built: Site) -> None:
    """The rules have been in the edges at least that long (0.1 s is for reading them)."""
    for building in built.topology.buildings:
        flows = built.flows(building.name)
        assert flows
        assert all(float(flow.split("duration=")[1].split("s,")[0]) > age_s - 0.1 for flow in flows)


def connections(controller: ControllerProcess) -> set[int]:
    """The switches' ends of the connections that the controller has."""
    found = psutil.Process(controller.pid).net_connections("tcp")
    return {connection.raddr.port for connection in found if connection.status == psutil.CONN_ESTABLISHED}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.by_any_datapath
def test_a_refused_rule_is_named(library: Library) -> None:
    with site(TWO) as built:
        bridge = built.bridge("west")
        full = ["--", "--id=@full", "create", "Flow_Table", "flow_limit=5", "overflow_policy=refuse"]
        vsctl(*full, "--", "set", "bridge", bridge, "flow_tables:0=@full")
        with pytest.raises(ControllerError) as caught, library.installed(built, "shortest"):
            pass
        message = str(caught.value)
        assert bridge in message
        assert "host west2" in message
        assert "OFPET_FLOW_MOD_FAILED" in message
        assert "OFPFMFC_TABLE_FULL" in message


@pytest.mark.by_any_datapath
def test_a_missing_port_is_named(library: Library) -> None:
    with site(TWO) as built:
        vsctl("del-port", f"{built.bridge('east')}p4")
        expected = f"bridge {built.bridge('east')} .*: no port 4"
        with pytest.raises(ControllerError, match=expected), library.installed(built, "shortest"):
            pass


@pytest.mark.quiet
@pytest.mark.by_any_datapath
def test_a_bridge_that_does_not_speak_openflow_13_is_named(library: Library) -> None:
    with site(TWO) as built:
        vsctl("set", "bridge", built.bridge("east"), "protocols=OpenFlow10")
        controller = library.controller(built, "shortest")
        controller.start()
        try:
            built.set_controller(controller.port)
            with pytest.raises(
                ControllerError, match=r"(?s)datapath ids 0000000000000001 after 3 s.*version"
            ):
                controller.wait_ready(3)
        finally:
            controller.stop()
