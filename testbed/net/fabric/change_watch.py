"""A watch for changes of a running fabric, on all its machines, that the testbed did not make itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from testbed.net.fabric.assembly import MachinePlacement
from testbed.net.fabric.bridges import NIC
from testbed.net.fabric.fingerprint import EVERYTHING
from testbed.net.fabric.namespace_setup import ROOT_NAME, NamespaceSettings, namespace_settings
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.open_vswitch import EdgeTable
from testbed.net.fabric.plan import WAN_NODE, Plan
from testbed.net.links import LinkError
from testbed.net.links.ingress import ingress_device


@dataclass(frozen=True)
class Change:
    """A detected change: its description, and the CLOCK_MONOTONIC time of detection."""

    time_s: float
    words: str


class ChangeWatch:
    """A fingerprint of a fabric that is compared with its state on each `look`; `changes` collects the differences.

    Args:
        placement: The fabric's plan, and the machine of each node.
        pids: A process in each node.
        links: Links that events change; they are excluded.
        switches: Switches that events change; they are excluded.
        cards: Hosts whose NICs events change; they are excluded.

    Raises:
        LinkError: The kernel's state cannot be read.
    """

    def __init__(
        self,
        placement: MachinePlacement,
        pids: Mapping[str, int],
        links: Collection[str] = (),
        switches: Collection[str] = (),
        cards: Collection[str] = (),
    ) -> None:
        plan = placement.plan
        self.changes: list[Change] = []
        watched: dict[MachineOperations, list[NamespaceSettings]] = {placement.here: []}
        for settings in namespace_settings(plan, pids):
            watched.setdefault(placement.operations(settings.name), []).append(settings)
        excluded = excluded_interfaces(plan, links, switches, cards)
        self._machines = list(watched)
        self._tables: list[EdgeTable] = []
        with _wrap_os_errors():
            for operations, own in watched.items():
                operations.watch(own, excluded)
            if not links and not switches:  # otherwise the controller may change rules
                with contextlib.ExitStack() as stack:
                    for edge in plan.edges:
                        self._tables.append(EdgeTable(edge.name, edge.bridge))
                        stack.callback(self._tables[-1].close)
                    for table in self._tables:
                        table.take()
                    stack.pop_all()

    def close(self) -> None:
        """Stop watching the edges' tables; the rest ends with the namespaces."""
        for table in self._tables:
            table.close()
        self._tables = []

    def look(self, thorough: bool = False) -> None:
        """Record changes since the last look; `thorough` includes slow comparisons. Raises LinkError on failure."""
        now_s = time.monotonic()
        with _wrap_os_errors():
            for operations in self._machines:
                self.changes += [Change(now_s, words) for words in operations.look(thorough)]
            for table in self._tables:
                self.changes += [Change(now_s, words) for words in table.look()]

    @contextlib.contextmanager
    def own_change(self) -> Iterator[None]:
        """Accept all changes made within the block as the testbed's own; raises LinkError on failure."""
        self.look(thorough=True)
        yield
        with _wrap_os_errors():
            for operations in self._machines:
                operations.take()
            for table in self._tables:
                table.take()


@contextlib.contextmanager
def _wrap_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LinkError(f"cannot read the network's state from the kernel: {error}") from error


def excluded_interfaces(
    plan: Plan, links: Collection[str], switches: Collection[str], cards: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return (namespace, interface) of everything that changes with these links, switches and hosts' NICs."""
    return sorted(
        {*_link_interfaces(plan, links), *_switch_interfaces(plan, switches), *_nic_interfaces(plan, cards)}
    )


def _nic_interfaces(plan: Plan, hosts: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield everything in the hosts, since routes and neighbours change with the NIC, and their switch ports."""
    for cable in plan.cables:
        if cable.a[1] == NIC and cable.a[0] in hosts:
            switch, port = cable.b
            yield cable.a[0], EVERYTHING
            yield switch, port
            yield switch, ingress_device(port)
            yield from _link_interfaces(plan, [cable.name])


def _link_interfaces(plan: Plan, links: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield all interfaces of links, by namespace."""
    for number, wire in enumerate(plan.wires()):
        if wire.name not in links:
            continue
        yield WAN_NODE, f"br{number}"  # made by the netem engine
        for inner, node, outer in (
            (wire.inner_a, wire.node_a, wire.outer_a),
            (wire.inner_b, wire.node_b, wire.outer_b),
        ):
            yield WAN_NODE, inner
            yield WAN_NODE, ingress_device(inner)
            yield node or ROOT_NAME, outer


def _switch_interfaces(plan: Plan, switches: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield everything in the switches' namespaces and in the nodes that they are connected to."""
    for edge in plan.edges:
        if edge.local_interface is not None and edge.building.core in switches:
            yield ROOT_NAME, edge.local_interface
        if edge.name not in switches:
            continue
        yield from ((ROOT_NAME, interface) for interface in edge.interfaces)
        if not edge.building.is_transit:
            yield edge.building.core, EVERYTHING
        yield edge.probe, EVERYTHING
        yield from _link_interfaces(plan, [port.link.name for port in edge.wan])
    for cable in plan.cables:
        ends = {cable.a[0], cable.b[0]}
        if ends & set(switches):
            yield from ((node, EVERYTHING) for node in ends)
            yield from _link_interfaces(plan, [cable.name])
