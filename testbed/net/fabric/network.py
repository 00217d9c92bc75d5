"""The fabric: build a running network from a topology, and tear it down."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from testbed.net.controller import ControllerError, ControllerProcess, Flow, PolicyChoice, View, compute
from testbed.net.controller.process import snapshot_of
from testbed.net.errors import FabricError
from testbed.net.fabric import namespace_setup
from testbed.net.fabric import plan as planning
from testbed.net.fabric.assembly import MachinePlacement, assemble
from testbed.net.fabric.change_watch import ChangeWatch
from testbed.net.fabric.fabric_state import (
    CONTROLLER_FILE,
    STATE_ROOT,
    FabricState,
    clean,
    mark_child_processes,
    namespace_cookies,
    register,
    write_private,
)
from testbed.net.fabric.machines import Machine
from testbed.net.fabric.namespace_setup import namespace_settings
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.open_vswitch import large_receive_buffers
from testbed.net.fabric.running_fabric import describe, engine_of, inspect
from testbed.net.fabric.selftest import check_transfers, far_end_macs, measure_path_excess
from testbed.net.fabric.tunnel import TunnelMeasurement
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
PARALLEL_SETUPS = 4


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Fabric:
    """A running network. Use it as a context manager, or call `up` and `down`.

    `net` is the Mininet object, so `fabric.net.get("east1").cmd("ip addr")` works.

    Args:
        topology: The topology.
        policy: The transport policy.
        flows: The declared traffic, which the policy may use.
        multipath: The ports of MPTCP's additional paths.
        link_engine: "userspace" or "netem".
        datapath: Open vSwitch's datapath, "netdev" or "system".
        scale: The scale of rates and times.
        seed: The seed of all random choices.
        control: The reaction times of switches and controller once the fabric is up.
        machines: The machine of each building (see `MachinePlacement`).
        rdma: Whether hosts have a soft-RoCE device; this needs a kernel whose soft-RoCE supports namespaces.
        progress: Called with one short line per phase.
        events: Called with each event of the controller.
    """

    topology: Topology = dataclasses.field(kw_only=False)
    policy: PolicyChoice | str = "shortest"
    flows: Sequence[Flow] = ()
    multipath: planning.Multipath | None = None
    link_engine: str = "userspace"
    datapath: str = "netdev"
    scale: Scale = UNSCALED
    seed: int = 1
    control: Control = INSTANT
    machines: Sequence[str] = ()
    rdma: bool = False
    progress: Callable[[str], None] = lambda line: None
    events: Callable[[Mapping[str, Any]], None] = lambda event: None

    def __post_init__(self) -> None:
        self._choice = PolicyChoice(self.policy) if isinstance(self.policy, str) else self.policy
        self._classes: tuple[QueueClass, ...] = ()
        self._state: FabricState | None = None
        self._plan: planning.Plan | None = None
        self.net: Any = None
        self.engine: LinkEngine | None = None
        self.controller: ControllerProcess | None = None
        self.placement: MachinePlacement | None = None
        self._watch: ChangeWatch | None = None
        self.tunnels: list[TunnelMeasurement] = []
        self.pids: dict[str, int] = {}  # a process in each node, valid on the node's machine

    @property
    def state(self) -> FabricState:
        """This fabric's state entry; raises FabricError when it is not up."""
        if self._state is None:
            raise FabricError("the fabric is not up")
        return self._state

    @property
    def plan(self) -> planning.Plan:
        """The plan of names and ports; raises FabricError when it is not up."""
        if self._plan is None:
            raise FabricError("the fabric is not up")
        return self._plan

    def __enter__(self) -> Fabric:
        self.up()
        return self

    def __exit__(self, *reason: object) -> None:
        self.down()

    def up(self) -> None:
        """Build everything, read every setting back, and test TCP.

        Raises:
            FabricError: The fabric cannot be built. Everything built so far has been removed.
        """
        if os.geteuid() != 0:
            raise FabricError("building a network needs root: run it through sudo")
        if self.topology.pauses and self.link_engine != PAUSE_ENGINE:
            raise FabricError(
                f"link engine {self.link_engine} does not support PAUSE, {PAUSE_ENGINE} does: "
                "docs/explanation/pause.md"
            )
        if self.rdma and (reason := soft_roce_obstacle()):
            raise FabricError(f"soft-RoCE is not available here: {reason}; see docs/reference/rdma.md")
        self._state = register(self.topology.name)
        self._plan = planning.Plan(
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
            "policy": self._choice.name,
            "seed": self.seed,
            "scale": dataclasses.asdict(self.scale),
        }
        state.save()
        self.placement = placement = MachinePlacement(plan, self.machines)
        self.progress(f"starting the controller with policy {self._choice.name.rpartition(':')[2]}")
        self.controller = self._start_controller()
        hosts, buildings = len(plan.topology.hosts), len(plan.topology.populated)
        self.progress(f"building {hosts} hosts in {buildings} buildings")
        controller = f"tcp:127.0.0.1:{self.controller.port}"
        self.net = assemble(placement, self.datapath, controller, state.folder)
        self.pids = {node.name: node.pid for node in (*self.net.hosts, *self.net.switches)}
        state.pids = {
            name: pid for name, pid in self.pids.items() if placement.operations(name) is placement.here
        }
        edges = {edge.name for edge in plan.edges}  # in the root namespace
        state.namespaces = namespace_cookies([pid for name, pid in state.pids.items() if name not in edges])
        state.save()
        if placement.machines:
            names = ", ".join(machine.name for machine in placement.machines)
            self.progress(f"measuring the tunnels to {names}")
            self.tunnels = placement.measure_tunnels(self.pids)
        self._configure()
        with large_receive_buffers(STATE_ROOT):
            self.net.start()
        # Start the engine after the switches: Open vSwitch removes the qdiscs of ports that it adds.
        self.progress(f"starting the {self.link_engine} link engine on {len(plan.topology.wan)} WAN links")
        self.engine = engine_of(self.state)  # before its start, so that `down` also stops a failed one
        self.engine.start()
        self.controller.wait_ready(CONTROLLER_TIMEOUT_S)
        self._verify()
        self._verify_offloads()
        self.progress("testing TCP across every WAN link")
        check_transfers(plan, state.pids)
        self.engine.compensate(measure_path_excess(plan, state.pids), far_end_macs(plan))
        api = self.controller.api
        write_private(state.folder / CONTROLLER_FILE, json.dumps({"port": api.port, "token": api.token}))
        state.phase = "up"
        state.save()

    def _start_controller(self) -> ControllerProcess:
        edges = self.plan.edge_ports()
        compiled = compute(self._choice, View(self.topology, self.flows, seed=self.seed), edges)
        self._classes = compiled.classes
        snapshot = snapshot_of(
            self.topology, edges, dataclasses.asdict(self._choice), self.flows, self.seed, self.control
        )
        controller = ControllerProcess(compiled.rules, snapshot=snapshot, log=self.events)
        controller.start()
        return controller

    @property
    def has_queues(self) -> bool:
        """Whether the policy has queues."""
        return bool(self._classes)

    def apply_queues(self) -> None:
        """Add the policy's queues to the WAN links, and read them back; raises LinkError on failure.

        This is not part of `up`, so that the links can first be measured without queues.
        """
        assert self.engine is not None
        if self.has_queues:
            self.engine.change(self.requested_directions(wan_only=True))

    def requested_directions(self, wan_only: bool = False) -> dict[tuple[str, str], Direction]:
        """Return the settings expected after `apply_queues`, by (link name, direction), or only those of WAN links."""
        wan = requested_settings(self.plan.wan_wires())
        queued = {key: replace(direction, classes=self._classes) for key, direction in wan.items()}
        return queued if wan_only else {**requested_settings(self.plan.wires()), **queued}

    def _configure(self) -> None:
        plan, pids = self.plan, self.pids
        probes = [(edge.probe, namespace_setup.probe_setup(plan, edge.building.name)) for edge in plan.edges]
        hosts = [(host.name, namespace_setup.host_setup(plan, host)) for host in self.topology.hosts]
        namespace_setup.edge_setup(plan).apply(None)
        namespace_setup.wan_setup(plan).apply(pids[planning.WAN_NODE])
        for name, setup in hosts:
            if machine := self.machine_of(name):
                machine.apply(setup, pids[name])
        local = [(name, setup) for name, setup in (*probes, *hosts) if not self.machine_of(name)]
        if os.cpu_count() == 1:  # as in a guest, where threads do not help
            for name, setup in local:
                setup.apply(pids[name])
            return
        # Threads work since a network namespace is per thread, and most of the time is spent in other programs.
        with ThreadPoolExecutor(PARALLEL_SETUPS) as pool:
            for future in [pool.submit(setup.apply, pids[name]) for name, setup in local]:
                future.result()

    def _operations(self, node: str) -> MachineOperations:
        assert self.placement is not None
        return self.placement.operations(node)

    def machine_of(self, node: str) -> Machine | None:
        """Return the remote machine of a node; None if it is on this machine."""
        return self.placement.machine_of(node) if self.placement else None

    @property
    def other_machines(self) -> Sequence[Machine]:
        """The remote machines of the fabric's buildings."""
        return self.placement.machines if self.placement else ()

    def tunnel_frames(self) -> dict[str, tuple[int, int]]:
        """Return (frames sent, frames received) of each tunnel so far, by building."""
        return self.placement.tunnel_frames(self.pids) if self.placement else {}

    def counts(self, of_hosts: bool = True) -> dict[str, NodeCounts]:
        """Read the interface counters of building switches and, if `of_hosts`, of hosts with their protocols."""
        hosts = {host.name for host in self.topology.hosts} if of_hosts else set()
        names = [*hosts, *(bridge.name for bridge in self.plan.bridges)]
        found = {name: self._operations(name).counts(self.pids[name], name in hosts) for name in names}
        if self.rdma:
            for host in hosts:
                found[host] = found[host].with_sent_packets(
                    read_rdma_packets_sent(self.plan.rdma_device(host))
                )
        return found

    def _verify(self) -> None:
        for settings in namespace_settings(self.plan, self.pids):
            self._operations(settings.name).verify(settings)

    def _verify_offloads(self) -> None:
        for settings in namespace_settings(self.plan, self.pids):
            self._operations(settings.name).verify_offloads(settings)

    def inspect(self) -> dict[str, Any]:
        """Return hosts and WAN links with every setting, as read back now."""
        return inspect(self.state)

    def command(self, host: str, arguments: list[str]) -> list[str]:
        """Return the command line that runs `arguments` inside a host."""
        return command_in_namespace(self.state.pids[host], arguments)

    def probe_pids(self) -> dict[str, int]:
        """Return the process id of each building's probe node."""
        return {edge.building.name: self.state.pids[edge.probe] for edge in self.plan.edges}

    def watch(
        self, links: Collection[str] = (), switches: Collection[str] = (), cards: Collection[str] = ()
    ) -> ChangeWatch:
        """Start watching for changes, except of these links, switches and hosts' NICs; raises LinkError on failure."""
        assert self.placement is not None
        with mark_child_processes(self.state.id):
            self._watch = ChangeWatch(self.placement, self.pids, links, switches, cards)
        return self._watch

    def changed_offloads(self) -> str | None:
        """Return a message if an interface's offload settings have changed; None otherwise."""
        return _mismatch(self._verify_offloads)

    def changed_settings(self) -> str | None:
        """Return a message for the first changed rate, delay, queue or parameter; None if there is none."""
        assert self.engine is not None
        engine = self.engine
        checks = (
            lambda: compare_settings(self.requested_directions(), engine.settings()),
            engine.verify,
            self._verify,
        )
        return next((words for check in checks if (words := _mismatch(check))), None)

    def failure(self) -> str | None:
        """Return a message if a part of the fabric has failed; None otherwise. A dead controller is restarted first."""
        if self.engine and (words := self.engine.failure()):
            return words
        if self.controller and not self.controller.restart() and (words := self.controller.failure()):
            return f"the controller: {words}"
        if self.placement and (words := self.placement.failure()):
            return words
        for name, pid in self.state.pids.items():
            if process_start_ticks(pid) is None:
                return f"the namespace of {name} is gone: its process {pid} has ended"
        return None

    def down(self) -> None:
        """Remove everything; idempotent. Signals are deferred until it is done."""
        if self._state is None:
            return
        with defer_signals():
            if self._watch:
                self._watch.close()
            if self.engine:
                self.engine.stop()
            if self.controller:
                self.controller.stop()
            # Mininet's shells end only by SIGHUP; their namespaces end with them.
            for node in (*self.net.hosts, *self.net.switches) if self.net else ():
                with contextlib.suppress(OSError):
                    node.terminate()
            if self.placement:
                self.placement.stop()
            clean(self._state)
            self._state = self._plan = self._watch = None
            self.net = self.engine = self.controller = self.placement = None


def _mismatch(check: Callable[[], None]) -> str | None:
    try:
        check()
    except LinkError as error:
        return str(error)
    return None
