"""What a job declares to the network: the ports that its ranks will use, the bytes that they will send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.comm.transport import TrafficClass
from testbed.comm.transport.wire import ConnectionKey
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.measure.results.shards import split_into_shards
from testbed.net.controller import PolicyChoice, View, compute
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.spec.workload import WorkloadSpec
from testbed.workload.job.endpoint_resolution import (
    endpoints_on,
    flows_of,
    loopback_endpoints,
    resolve_endpoints,
    sum_pairs,
)
from testbed.workload.job.endpoints import LISTEN_PORT, THIS_NAMESPACE
from testbed.workload.plan import Computing, GroupCollective, Message
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.uniform_plans import exchange_partners, plan_collectives
from tests.unit.net.controller_topologies import edge_ports

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
TOPOLOGY = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()


def wiring(**transport: object) -> object:
    places = endpoints_on(
        TOPOLOGY, TOPOLOGY.hosts[:8], dict.fromkeys((host.name for host in TOPOLOGY.hosts), THIS_NAMESPACE)
    )
    spec = TransportSpec.model_validate(transport)
    return resolve_endpoints(spec, UNSCALED, TOPOLOGY, places, seed=3)


def test_a_flow_goes_between_the_port_that_is_dialled_from_and_the_one_that_is_listened_at() -> None:
    made = wiring()
    there, back = flows_of(made, {(1, 5): 700, (5, 1): 300})  # type: ignore[arg-type]
    dialled = made.source_port(5, 1, ConnectionKey())  # type: ignore[attr-defined]
    assert (there.source, there.destination, there.size_bytes) == ("east2", "west2", 700)
    assert (there.source_port, there.destination_port) == (LISTEN_PORT, dialled)
    assert (back.source_port, back.destination_port, back.size_bytes) == (dialled, LISTEN_PORT, 300)
    assert there.connection == back.connection


def test_a_flow_of_rdma_goes_to_roces_port_either_way_from_a_port_of_each_queue_pair() -> None:
    made = wiring(kind="rdma")
    flows = flows_of(made, {(1, 5): 700, (5, 1): 300})  # type: ignore[arg-type]
    there = [flow for flow in flows if flow.source == "east2"]
    assert len(there) == 4
    assert {(flow.protocol, flow.destination_port) for flow in flows} == {("roce", 4791)}
    assert len({flow.source_port for flow in there}) == 4
    assert all(0xC000 < flow.source_port <= 0xFFFF for flow in flows)
    assert {flow.connection for flow in flows} == {flow.connection for flow in there}
    back = next(flow for flow in flows if flow.source == "west2")
    assert back.source_port == there[0].source_port
    assert there[0].back == replace(back, size_bytes=0.0)
    match = View(TOPOLOGY, flows).of(there[0])
    assert (match.ip_proto, str(match.udp_src), str(match.udp_dst)) == (17, str(back.source_port), "4791")


def test_ranks_at_one_address_leave_their_ports_to_the_kernel() -> None:
    with loopback_endpoints(4) as places:
        here = resolve_endpoints(TransportSpec(), UNSCALED, None, places, seed=3)
    assert here.source_port(1, 0, ConnectionKey()) == 0
    assert len({place.port for place in places}) == 4


def test_a_striped_pair_has_a_flow_for_each_lane_and_no_two_connections_share_a_port() -> None:
    made = wiring(kind="striped")
    flows = flows_of(made, {(0, 4): 800, (0, 1): 100, (4, 0): 8}, TrafficClass(46))  # type: ignore[arg-type]
    assert [flow.channel for flow in flows if (flow.source, flow.destination) == ("east1", "west1")] == [
        0,
        1,
        2,
        3,
    ]
    assert {flow.size_bytes for flow in flows if flow.destination == "west1"} == {200}
    assert {flow.dscp for flow in flows} == {46}
    ports = {
        made.source_port(7, peer, ConnectionKey(TrafficClass(dscp), channel, 4))  # type: ignore[attr-defined]
        for peer in range(7)
        for dscp in (0, 46)
        for channel in range(4)
    }
    assert len(ports) == 7 * 2 * 4


def test_bytes_of_several_parts_add_up() -> None:
    assert sum_pairs([{(0, 1): 5, (1, 0): 2}, {(0, 1): 3}]) == {(0, 1): 8, (1, 0): 2}


def test_policies_take_what_a_job_declares() -> None:
    pairs = {(here, there): 1000 for here in range(4) for there in range(4, 8)}
    flows = flows_of(wiring(kind="striped"), pairs)  # type: ignore[arg-type]
    view = View(TOPOLOGY, flows)
    for policy in ("qp_aware", "te", "spray"):
        rules = compute(PolicyChoice(policy), view, edge_ports(TOPOLOGY)).rules
        assert sum(" channel " in rule.comment for own in rules.values() for rule in own) == 2 * len(flows)


def test_a_pipeline_goes_between_the_first_and_the_last_building_by_place() -> None:
    buildings = [0, 0, 1, 2, 2, 2]
    assert exchange_partners(buildings) == {0: 3, 3: 0, 1: 4, 4: 1}
    assert exchange_partners([0, 0]) == {}
    spec = WorkloadSpec.model_validate({"exchange": {"messages": 3, "size": "40 B"}})
    sent = plan_traffic(plan_collectives(spec, buildings), 4)
    assert sent == {(0, 3): 120, (3, 0): 120, (1, 4): 120, (4, 1): 120}


def test_a_workload_of_collectives_becomes_a_plan() -> None:
    scenario = Scenario.model_validate(
        {
            "name": "x",
            "topology": {
                "name": "t",
                "buildings": {"a": {"hosts": 3, "nic": {"rate": "1 Gbit/s"}}},
            },
            "workload": {
                "compute": "5 ms",
                "collectives": [
                    {"collective": "all_to_all", "size": "1000 B", "dscp": 26},
                    {"collective": "all_reduce", "size": "400 B", "algorithm": "ring"},
                ],
                "exchange": {"messages": 2, "size": "80 B", "compute": "1 ms", "dscp": 46},
            },
        }
    )
    plan = plan_collectives(scenario.workload, (0, 0, 1))
    alike = (
        Computing("forward", "compute", "forward", (), 0.005),
        GroupCollective(
            "all_to_all", "collective 1", "all_to_all, DSCP 26", (0,), 0, "all_to_all", 249, "auto"
        ),
        GroupCollective("all_reduce", "collective 2", "all_reduce", (0,), 1, "all_reduce", 100, "ring"),
    )
    assert plan.ranks[1] == alike
    assert plan.ranks[2][:3] == alike
    there, between, back = plan.ranks[2][3:6]
    assert there == Message("exchange", "exchange", "exchange", (0,), 0, 20, 0, sends=False)
    assert between == Computing("exchange", "exchange", "exchange", (), 0.001)
    assert back == Message("exchange", "exchange", "exchange", (), 0, 20, 1, sends=True)
    assert [len(own) for own in plan.ranks] == [7, 3, 9]
    assert plan.groups == (("all", (0, 1, 2)), ("all", (0, 1, 2)))
    assert plan.dscps == {"all_to_all, DSCP 26": 26, "exchange": 46}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_results_that_are_not_what_was_filled_in_are_counted(collective: str) -> None:
    arrays = CollectiveArrays(collective, 12, "float32", rank=1, size=3)
    arrays.fill(salt=5)
    if arrays.output is not arrays.input:
        arrays.output[:] = -1
    assert arrays.count_wrong(salt=5) == arrays.output.size


def test_variants_take_turns_a_trial_each_with_a_seed_of_its_own() -> None:
    document = {
        "name": "x",
        "topology": {"name": "t", "buildings": {"a": {"hosts": 3, "nic": {"rate": "1 Gbit/s"}}}},
        "workload": {"collectives": [{"collective": "all_reduce", "size": "1 MB"}]},
        "variants": {"one": {"policy": "ecmp"}, "two": {"transport.congestion_control": "bbr"}},
        "trials": 3,
        "seed": 7,
    }
    scenario = Scenario.model_validate(document)
    parts = split_into_shards(scenario)
    assert [part.variant for part in parts] == ["one", "two", "two", "one", "one", "two"]
    assert [part.first_trial for part in parts] == [0, 0, 1, 1, 2, 2]
    assert len({part.seed for part in parts}) == 3
    second = parts[1].scenario(scenario)
    assert (second.transport.congestion_control, second.trials, second.seed) == ("bbr", 1, 7)
    assert second.variants is None
    assert Scenario.model_validate(scenario.to_data()) == scenario
