"""Which building of a fabric is on which machine: this one, or others, each joined to this one by a tunnel.

What decides and measures stays here: the edges and their controller, the WAN namespace with its link engine, the
probes. A building on another machine has its hosts and switches there; a tunnel takes the place of the cable between
its core and its edge, so all that crosses the WAN passes the tunnel once, and what stays in the building stays there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.net.fabric.bridges import UPLINK
from testbed.net.fabric.errors import FabricError
from testbed.net.fabric.machine_operations import MachineOperations
from testbed.net.fabric.machines import Machine, is_here
from testbed.net.fabric.plan import Plan
from testbed.net.fabric.tunnel import TunnelMeasurement, TunnelSocket, measure
from testbed.net.links.setup import Setup
from testbed.spec.buildings import Building
from testbed.spec.topology import Topology


class MachinePlacement:
    """The machines of one fabric. `machines` names one for each building with hosts, in order; none: all is here.

    A transit site is only an edge, and edges are here.
    FabricError when there are too few or too many, one cannot be reached, or a building cannot be elsewhere.
    """

    def __init__(self, topology: Topology, machines: Sequence[str] = ()) -> None:
        self.topology = topology
        self.here = MachineOperations()
        self.machines: list[Machine] = []
        self._of: dict[str, MachineOperations] = {building.name: self.here for building in topology.populated}
        if machines and len(machines) != len(self._of):
            which = "building" if len(self._of) == len(topology.buildings) else "building with hosts"
            raise FabricError(
                f"--machines: got {len(machines)}, expected one for each {which}, in this order: {', '.join(self._of)}"
            )
        try:
            self._reach(dict(zip(self._of, machines, strict=False)))
        except BaseException:
            self.stop()
            raise

    def _reach(self, asked: Mapping[str, str]) -> None:
        known: dict[str, MachineOperations] = {}
        for building, destination in asked.items():
            if destination not in known:
                here = is_here(destination.rpartition("@")[2])
                known[destination] = self.here if here else Machine(destination)
                if isinstance(found := known[destination], Machine):
                    self.machines.append(found)
            self._of[building] = known[destination]

    def check(self, plan: Plan) -> None:
        """Nothing that only the link engine can do is inside a building elsewhere. FabricError."""
        of_node = self.by_node(plan)
        for cable in plan.cables:
            if cable.takes_time and isinstance(of_node[cable.a[0]], Machine):
                raise FabricError(
                    f"cable {cable.name} takes time, which needs the link engine: its building must be on this machine"
                )

    def building(self, name: str) -> MachineOperations:
        """The operations of the machine that a building is on."""
        return self._of[name]

    def by_node(self, plan: Plan) -> dict[str, MachineOperations]:
        """Where each host and each switch of a building is; all other nodes are here."""
        hosts = {host.name: self._of[host.building] for host in plan.topology.hosts}
        return {**hosts, **{bridge.name: self._of[bridge.building] for bridge in plan.bridges}}

    def make_namespaces(self, plan: Plan, files: Mapping[str, Path | None]) -> dict[str, int]:
        """Namespaces for all nodes, where they are; a process in each, by that machine's count."""
        of_node = self.by_node(plan)
        pids: dict[str, int] = {}
        for operations in (self.here, *self.machines):
            pids |= operations.make_namespaces(
                {name: file for name, file in files.items() if of_node.get(name, self.here) is operations}
            )
        return pids

    def measure_tunnels(self, plan: Plan, pids: Mapping[str, int]) -> list[TunnelMeasurement]:
        """Delay and rate of every tunnel, while nothing else uses it."""
        mtu = plan.topology.mtu
        found = []
        for building, local, machine in self._elsewhere(plan):
            for operations, interface, pid in (
                (machine, UPLINK, pids[building.core]),
                (self.here, local, None),
            ):
                setup = Setup()
                setup.add_interface(interface, mtu)
                operations.apply(setup, pid)
            machine.call("answer_tunnel", interface=UPLINK, pid=pids[building.core], mtu=mtu)
            near = TunnelSocket(local, mtu)
            try:
                needed_bps = _most_bps(plan, building.name)
                found.append(measure(near, machine.name, building.name, needed_bps))
            finally:
                near.close()
                machine.call("close_tunnels")
            if not found[-1].back_bps:
                raise FabricError(
                    f"{found[-1].missing} through the tunnel to machine {machine.name}: UDP port 4789 "
                    f"between {machine.near} and {machine.address} must be open, for fragments too"
                )
        return found

    def tunnel_frames(self, plan: Plan, pids: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """(went in, came out) so far at both ends together, of each tunnel by its building."""
        found = {}
        for building, local, machine in self._elsewhere(plan):
            far = machine.frames(UPLINK, pids[building.core])
            near = self.here.frames(local, None)
            found[building.name] = far[1] + near[1], far[0] + near[0]
        return found

    def _elsewhere(self, plan: Plan) -> Iterator[tuple[Building, str, Machine]]:
        """The buildings on other machines, each with the interface of its edge here that leads to its core."""
        for building, edge in zip(plan.topology.buildings, plan.edges, strict=True):
            machine = self._of.get(building.name)
            if isinstance(machine, Machine) and edge.local_interface is not None:
                yield building, edge.local_interface, machine

    def failure(self) -> str | None:
        """None while all machines are there; else one sentence."""
        return next((words for machine in self.machines if (words := machine.failure())), None)

    def stop(self) -> None:
        """End all namespaces, here and there. Harmless when repeated."""
        for operations in (*self.machines, self.here):
            operations.stop()


def _most_bps(plan: Plan, building: str) -> float:
    """What can ever come into or out of a building: what its cards can send, or its WAN links can carry."""
    topology = plan.topology
    cards = sum(host.nic.rate_bps for host in topology.hosts if host.building == building)
    ends = [
        direction.rate_bps
        for link in topology.wan
        for direction, side in ((link.a_to_b, link.a), (link.b_to_a, link.b))
        if side == building
    ]
    return min(cards, sum(ends)) if ends else cards
