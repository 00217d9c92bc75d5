"""On which of a job's hosts a rank is, as a scenario's `mapping` says it, and who is near whom there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

from testbed.net.paths import Network
from testbed.spec.buildings import Host
from testbed.spec.parallelism import BY_DISTANCE, BY_SPEED
from testbed.spec.topology import Topology
from testbed.workload.placement import shortest_way


def mapped(
    asked: str | tuple[int, ...],
    hosts: Sequence[Host],
    network: Network | None,
    slowdowns: Mapping[int, float],
) -> Sequence[int]:
    """The number of the host at each place of an order; () for that of the hosts, and for what goes by traffic.

    network: of the hosts; by_distance needs it. slowdowns: by which factor accelerators of hosts compute longer.
    """
    buildings = [host.building for host in hosts]
    if asked == "scattered":
        index = [buildings[:number].count(building) for number, building in enumerate(buildings)]
        return sorted(range(len(hosts)), key=lambda rank: (index[rank], rank))
    if asked == BY_DISTANCE:
        assert network is not None
        firsts = {building: buildings.index(building) for building in buildings}
        delays_s = {
            (here, there): network.paths[firsts[here], firsts[there]].delay_s
            for here, there in permutations(firsts, 2)
        }
        way = shortest_way(list(firsts), delays_s)
        return sorted(range(len(hosts)), key=lambda rank: (way.index(buildings[rank]), rank))
    if asked == BY_SPEED:
        return sorted(range(len(hosts)), key=lambda rank: slowdowns.get(rank, 1.0))
    return () if isinstance(asked, str) else asked


def leaves_of(topology: Topology, hosts: Sequence[Host]) -> tuple[int, ...]:
    """The leaf switch of each host, numbered from 0 in their order: a node, where hosts are accelerators."""
    leaves: dict[tuple[str, int], int] = {}
    found = []
    for host in hosts:
        building = topology.building(host.building)
        found.append(leaves.setdefault((host.building, building.leaf_of(host)), len(leaves)))
    return tuple(found)
