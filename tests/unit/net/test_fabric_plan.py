"""Names, ports and commands of a fabric, before anything is built."""

from __future__ import annotations

from pathlib import Path

from testbed.net.fabric.namespace_setup import bridge_setup, buffer_sysctls, host_setup, probe_setup
from testbed.net.fabric.plan import FIRST_WAN_PORT, Plan
from testbed.net.links.shaping import Shape, shape_commands
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"


def plan_of(name: str, size_scale: float = 1.0, prefix: str = "tbabcd"):  # type: ignore[no-untyped-def]
    return Plan(load_topology(TOPOLOGIES / name).resolve(Scale(size_scale)), prefix)


def test_names_in_the_root_namespace_carry_the_prefix_and_fit() -> None:
    plan = plan_of("three-buildings.yaml")
    names = [edge.bridge for edge in plan.edges]
    for edge in plan.edges:
        names += [edge.local_interface, edge.probe_interface, *(port.edge_interface for port in edge.wan)]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith("tbabcd")
        assert len(name) <= 15


def test_every_link_end_has_a_port_and_what_was_asked_of_each_direction_goes_with_it() -> None:
    plan = plan_of("three-buildings.yaml")
    for index, link in enumerate(plan.topology.wan):
        ends = {port.side: port for port in plan.wan_ports if port.link_index == index}
        assert ends["a"].building == link.a
        assert ends["b"].building == link.b
        wire = plan.wires()[index]
        assert (wire.inner_a, wire.inner_b) == (ends["a"].wan_interface, ends["b"].wan_interface)
        assert (wire.outer_a, wire.outer_b) == (ends["a"].edge_interface, ends["b"].edge_interface)
        assert (wire.a_to_b, wire.b_to_a) == (link.a_to_b, link.b_to_a)
    for edge in plan.edges:
        ports = [port.port for port in edge.wan]
        assert ports == list(range(FIRST_WAN_PORT, FIRST_WAN_PORT + len(ports)))


def test_every_host_knows_every_other_and_the_leaf_knows_all() -> None:
    plan = plan_of("two-buildings.yaml", 4000)
    hosts = plan.topology.hosts
    commands = "\n".join(host_setup(plan, hosts[0]).ip)
    assert commands.count("neigh replace") == len(hosts) - 1
    assert f"lladdr {hosts[0].mac}" not in commands
    leaf = bridge_setup(plan, plan.bridges[0])
    entries = "\n".join(leaf.bridge)
    assert entries.count("fdb replace") == len(hosts)
    assert f"fdb replace {hosts[0].mac} dev p0 " in entries
    assert f"fdb replace {hosts[-1].mac} dev uplink " in entries
    ports = len(plan.topology.building("east").hosts) + 1
    assert "\n".join(leaf.ip).count("learning off flood off") == len(leaf.without_offloads) == ports


def test_probe_addresses_are_pinned_to_their_links() -> None:
    commands = probe_setup(plan_of("two-buildings.yaml", 4000), "west").ip
    assert "address add 10.254.1.2/32 dev eth0" in commands
    assert "route add 10.254.1.1/32 dev eth0 src 10.254.1.2" in commands


def test_a_shape_is_given_with_quantum_and_burst_for_its_rate() -> None:
    slow = "\n".join(shape_commands("eth0", Shape(1e6, 90_000), mtu=9000))
    assert "rate 125000bps ceil 125000bps burst 18028 cburst 18028 prio 0 quantum 9014" in slow
    assert "bfifo limit 90000" in slow
    fast = "\n".join(shape_commands("eth0", Shape(4e9, 1_000_000), mtu=9000))
    assert "rate 500000000bps ceil 500000000bps burst 1000000 cburst 1000000 prio 0 quantum 200000" in fast


def test_buffers_cover_the_longest_path_and_are_never_less_than_the_default() -> None:
    small = buffer_sysctls(plan_of("two-buildings.yaml", 4000).topology)
    assert small["net.ipv4.tcp_rmem"] == "4096 6291456 6291456"
    real = buffer_sysctls(plan_of("two-buildings.yaml").topology)
    product = 400e9 / 8 * 5e-3 + 3 * 9014  # and a frame in each hop
    assert (
        int(real["net.ipv4.tcp_rmem"].split()[2]) == int(real["net.ipv4.tcp_wmem"].split()[2]) == 4 * product
    )
