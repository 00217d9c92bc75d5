"""A topology becomes a running network, and goes away again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

from testbed.net.controller import ControllerError, ControllerProcess, Flow, PolicyChoice, View, compute
from testbed.net.controller.process import snapshot_of
from testbed.net.errors import FabricError
from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.assembly import MachinePlacement, Switched, assemble
from testbed.net.fabric.change_watch import ChangeWatch
from testbed.net.fabric.fabric_state import (
    CONTROLLER_FILE,
    STATE_ROOT,
    FabricState,
    clean,
    cookies,
    mark_child_processes,
    register,
    write_private,
)
from testbed.net.fabric.machines import Machine
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.open_vswitch import large_receive_buffers
from testbed.net.fabric.running_fabric import describe, engine_of, inspect
from testbed.net.fabric.selftest import far_ends, path_excess, try_transfers
from testbed.net.fabric.tunnel import TunnelMeasurement
from testbed.net.fabric.verify import namespace_settings
from testbed.net.links import LinkEngine, LinkError
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.link_engine import compare_settings, requested_settings
from testbed.net.links.netns import command_in_namespace
from testbed.net.links.pause import PAUSE_ENGINE
from testbed.net.links.setup import read_rdma_packets_sent, soft_roce_obstacle
from testbed.processes import defer_signals, process_start_ticks
from testbed.spec.control_delays import INSTANT, Control
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.topology import Topology

CONTROLLER_TIMEOUT_S = 30.0
SETUPS_AT_ONCE = 4


class Fabric:
    """One running network. Use as a context manager, or call `up` and `down`; `down` undoes whatever `up` reached.

    `policy` may go by the traffic that `flows` declare. `multipath`: where MPTCP finds other paths to a host.
    `link_engine` is "userspace" or "netem", `datapath` is Open vSwitch's "netdev" or "system". `machines`: where each
    building is (testbed.net.fabric.assembly). `control`: how long switches and controller take once it is up.
    `rdma`: whether hosts' cards have verbs, which takes a kernel whose soft-RoCE knows namespaces.
    `progress` is called with one short line per phase; `events` gets what the controller tells. Mininet's own object
    is `net`, so `fabric.net.get("east1").cmd("ip addr")` works.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        policy: PolicyChoice | str = "shortest",
        flows: Sequence[Flow] = (),
        multipath: planning.Multipath | None = None,
        link_engine: str = "userspace",
        datapath: str = "netdev",
        scale: Scale = UNSCALED,
        seed: int = 1,
        control: Control = INSTANT,
        machines: Sequence[str] = (),
        rdma: bool = False,
        progress: Callable[[str], None] = lambda line: None,
        events: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        self.topology = topology
        self.policy = PolicyChoice(policy) if isinstance(policy, str) else policy
        self.flows = tuple(flows)
        self.multipath = multipath
        self.link_engine = link_engine
        self.datapath = datapath
        self.scale = scale
        self.seed = seed
        self.control = control
        self._progress = progress
        self._events = events
        self._classes: tuple[QueueClass, ...] = ()
        self._state: FabricState | None = None
        self._plan: planning.Plan | None = None
        self.net: Any = None
        self.engine: LinkEngine | None = None
        self.controller: ControllerProcess | None = None
        self.machines = tuple(machines)
        self.rdma = rdma
        self.placement: MachinePlacement | None = None
        self._operations_by_node: dict[str, MachineOperations] = {}
        self._watch: ChangeWatch | None = None
        self.tunnels: list[TunnelMeasurement] = []
        self.pids: dict[str, int] = {}  # a process in each node, by the count of the machine where it is

    @property
    def state(self) -> FabricState:
        """This fabric's entry on the machine; FabricError when it is not up."""
        if self._state is None:
            raise FabricError("the fabric is not up")
        return self._state

    @property
    def plan(self) -> planning.Plan:
        """Names and ports; FabricError when it is not up."""
        if self._plan is None:
            raise FabricError("the fabric is not up")
        return self._plan

    def __enter__(self) -> Fabric:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Build everything, read every setting back, try TCP. Whatever goes wrong, nothing is left behind."""
        if os.geteuid() != 0:
            raise FabricError("building a network needs root: run it through sudo")
        if self.topology.pauses and self.link_engine != PAUSE_ENGINE:
            raise FabricError(
                f"link engine {self.link_engine} pauses nobody, {PAUSE_ENGINE} does: docs/explanation/pause.md"
            )
        if self.rdma and (reason := soft_roce_obstacle()):
            raise FabricError(f"hosts' cards can have no verbs here: {reason}; see docs/reference/rdma.md")
        self._state = register(self.topology.name)
        self._plan = planning.make_plan(
            self.topology,
            self._state.prefix,
            self.scale.time_dilation,
            self.multipath,
            self.link_engine,
            self.rdma,
        )
        try:
            with mark_child_processes(self._state.id):
                self._build()
        except (LinkError, ControllerError) as error:
            self.down()
            raise FabricError(str(error)) from error
        except BaseException:
            self.down()
            raise

    def _build(self) -> None:
        state, plan = self.state, self.plan
        state.details = {
            **describe(plan),
            "link_engine": self.link_engine,
            "datapath": self.datapath,
            "policy": self.policy.name,
            "seed": self.seed,
            "scale": dataclasses.asdict(self.scale),
        }
        state.save()
        self.placement = placement = MachinePlacement(self.topology, self.machines)
        placement.check(plan)
        self._operations_by_node = placement.by_node(plan)
        self._progress(f"starting the controller with policy {self.policy.name.rpartition(':')[2]}")
        self.controller = self._start_controller()
        self._progress(
            f"building {len(plan.topology.hosts)} hosts in {len(plan.topology.populated)} buildings"
        )
        switched = Switched(self.datapath, f"tcp:127.0.0.1:{self.controller.port}")
        self.net = assemble(plan, placement, switched, state.folder)
        self.pids = {node.name: node.pid for node in (*self.net.hosts, *self.net.switches)}
        state.pids = {
            name: pid for name, pid in self.pids.items() if self._operations(name) is placement.here
        }
        state.namespaces = cookies(self._namespace_pids())
        state.save()
        if placement.machines:
            self._progress(
                f"measuring the tunnels to {', '.join(machine.name for machine in placement.machines)}"
            )
            self.tunnels = placement.measure_tunnels(plan, self.pids)
        self._configure()
        with large_receive_buffers(STATE_ROOT):
            self.net.start()
        # after the switches: Open vSwitch clears the queues of the ports that it takes
        self._progress(f"starting the {self.link_engine} link engine on {len(plan.topology.wan)} WAN links")
        self.engine = self._start_engine()
        self.controller.wait_ready(CONTROLLER_TIMEOUT_S)
        self._verify()
        self._verify_offloads()
        self._progress("trying TCP across every WAN link")
        try_transfers(plan, state.pids)
        self.engine.compensate(path_excess(plan, state.pids), far_ends(plan))
        api = self.controller.api
        write_private(state.folder / CONTROLLER_FILE, json.dumps({"port": api.port, "token": api.token}))
        state.phase = "up"
        state.save()

    def _start_controller(self) -> ControllerProcess:
        edges = self.plan.edge_ports()
        computed = compute(self.policy, View(self.topology, self.flows, seed=self.seed), edges)
        self._classes = computed.classes
        snapshot = snapshot_of(
            self.topology, edges, self.policy.to_data(), self.flows, self.seed, self.control
        )
        controller = ControllerProcess(computed.rules, snapshot=snapshot, log=self._events)
        controller.start()
        return controller

    @property
    def queues(self) -> bool:
        """Whether the policy has queues of its own."""
        return bool(self._classes)

    def queue(self) -> None:
        """Put the policy's queues in front of the WAN links, and read them back. LinkError.

        Not part of `up`: what measures the links first should find them whole.
        """
        assert self.engine is not None
        if self.queues:
            self.engine.change(self.asked(wan_only=True))

    def asked(self, wan_only: bool = False) -> dict[tuple[str, str], Direction]:
        """What every direction of a link should be set to, by (link name, direction), once `queue` was called."""
        wan = requested_settings(self.plan.wan_wires())
        queued = {key: replace(direction, classes=self._classes) for key, direction in wan.items()}
        return queued if wan_only else {**requested_settings(self.plan.wires()), **queued}

    def _namespace_pids(self) -> list[int]:
        """One process id in each namespace of ours (the edges live in the root namespace, which is not)."""
        edges = {self.plan.edge(edge.building) for edge in self.plan.edges}
        return [pid for name, pid in self.state.pids.items() if name not in edges]

    def _configure(self) -> None:
        plan, pids = self.plan, self.pids
        probes = [
            (plan.probe(edge.building), namespace_setup.probe_setup(plan, edge.building))
            for edge in plan.edges
        ]
        hosts = [(host.name, namespace_setup.host_setup(plan, host)) for host in self.topology.hosts]
        namespace_setup.edge_setup(plan).apply(None)
        namespace_setup.wan_setup(plan).apply(pids[planning.WAN_NODE])
        assert self.placement is not None
        here = self.placement.here
        for name, setup in hosts:
            if (operations := self._operations(name)) is not here:
                operations.apply(setup, pids[name])
        nearby = [(name, setup) for name, setup in (*probes, *hosts) if self._operations(name) is here]
        if os.cpu_count() == 1:  # as in a guest, where threads only get in each other's way
            for name, setup in nearby:
                setup.apply(pids[name])
            return
        # a thread each: network namespaces are a thread's own, and most of the time goes by in other programs
        with ThreadPoolExecutor(SETUPS_AT_ONCE) as pool:
            for done in [pool.submit(setup.apply, pids[name]) for name, setup in nearby]:
                done.result()

    def _operations(self, node: str) -> MachineOperations:
        """Where a node is."""
        assert self.placement is not None
        return self._operations_by_node.get(node, self.placement.here)

    def machine_of(self, node: str) -> Machine | None:
        """Where a node is; None: here."""
        operations = self._operations(node)
        return operations if isinstance(operations, Machine) else None

    @property
    def other_machines(self) -> Sequence[Machine]:
        """The machines of the fabric's buildings, without this one."""
        return self.placement.machines if self.placement else ()

    def tunnel_frames(self) -> dict[str, tuple[int, int]]:
        """Frames that (went into, came out of) each tunnel so far, by its building."""
        return self.placement.tunnel_frames(self.plan, self.pids) if self.placement else {}

    def counts(self, of_hosts: bool = True) -> dict[str, NodeCounts]:
        """What the interfaces of the buildings' switches, and of hosts, have counted, and the hosts' protocols."""
        hosts = {host.name for host in self.topology.hosts} if of_hosts else set()
        names = [*hosts, *(bridge.name for bridge in self.plan.bridges)]
        found = {name: self._operations(name).counts(self.pids[name], name in hosts) for name in names}
        if self.rdma:
            for host in hosts:
                found[host] = found[host].with_sent_packets(read_rdma_packets_sent(self.plan.card(host)))
        return found

    def _verify(self) -> None:
        for settings in namespace_settings(self.plan, self.pids):
            self._operations(settings.name).verify(settings)

    def _verify_offloads(self) -> None:
        for settings in namespace_settings(self.plan, self.pids):
            self._operations(settings.name).verify_offloads(settings)

    def _start_engine(self) -> LinkEngine:
        # before it starts, so that a start that fails is also stopped
        self.engine = engine = engine_of(self.state)
        engine.start()
        return engine

    def inspect(self) -> dict[str, Any]:
        """Hosts and WAN links with every setting as read back now."""
        return inspect(self.state)

    def command(self, host: str, arguments: list[str]) -> list[str]:
        """The command line that runs `arguments` inside a host."""
        return command_in_namespace(self.state.pids[host], arguments)

    def probe_pids(self) -> dict[str, int]:
        """Process id of each building's probe node."""
        return {edge.building: self.state.pids[self.plan.probe(edge.building)] for edge in self.plan.edges}

    def watch(
        self, links: Collection[str] = (), switches: Collection[str] = (), cards: Collection[str] = ()
    ) -> ChangeWatch:
        """Take its fingerprint; events change these links and switches, and these hosts' cards. LinkError."""
        assert self.placement is not None
        with mark_child_processes(self.state.id):
            self._watch = ChangeWatch(
                self.plan, self.pids, self.placement.here, self._operations_by_node, links, switches, cards
            )
        return self._watch

    def changed_offloads(self) -> str | None:
        """What of the interfaces' offloads is not as it was set; None if all is."""
        return _difference(self._verify_offloads)

    def changed_settings(self) -> str | None:
        """What else is not as it was set, the first of it: rates, delays, queues, parameters; None if all is."""
        assert self.engine is not None
        engine = self.engine
        checks = (
            lambda: compare_settings(self.asked(), engine.settings()),
            engine.verify,
            self._verify,
        )
        return next((words for check in checks if (words := _difference(check))), None)

    def failure(self) -> str | None:
        """None while all parts work; else one sentence on what broke first."""
        if self.engine is not None and (words := self.engine.failure()):
            return words
        if (
            self.controller is not None
            and not self.controller.restart()
            and (words := self.controller.failure())
        ):
            return f"the controller: {words}"
        if self.placement is not None and (words := self.placement.failure()):
            return words
        for name, pid in self.state.pids.items():
            if process_start_ticks(pid) is None:
                return f"the namespace of {name} is gone: its process {pid} ended"
        return None

    def down(self) -> None:
        """Take everything away; harmless when repeated. Signals wait until it is done."""
        if self._state is None:
            return
        with defer_signals():
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            if self.engine is not None:
                self.engine.stop()
            if self.controller is not None:
                self.controller.stop()
            if self.net is not None:
                # Mininet's shells end by SIGHUP only; their namespaces go with them
                for node in (*self.net.hosts, *self.net.switches):
                    with contextlib.suppress(OSError):
                        node.terminate()
            if self.placement is not None:
                self.placement.stop()
            clean(self._state)
            self._state = self._plan = self.net = self.engine = self.controller = self.placement = None


def _difference(check: Callable[[], None]) -> str | None:
    try:
        check()
    except LinkError as error:
        return str(error)
    return None
